// SPDX-License-Identifier: MIT
#include "corruption/made_checkpoint.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"
#include "corruption/basics.h"
#include "images/files/files.h"
#include "kfd/uapi.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/file_set.h"
#include "support/memory_copy.h"

namespace sluice::corruption_test {

using test::BoList;
using test::Bytes;
using test::Rng;

namespace {

constexpr int kKfdId = 1, kRenderId = 2, kDmaBufId = 3, kIdleId = 4;
constexpr std::array<std::uint32_t, 3> kGpus{0x5759, 0xab, 0xc0de};  // the last has no contents

DumpId dump_id_from(Rng& rng) {
  DumpId id{};
  rng.fill(std::as_writable_bytes(std::span(id)));
  return id;
}

std::uint64_t bo_bytes(Rng& rng) {
  const std::uint64_t bytes = rng.percent(60) ? rng.between(1, 5) * kPage : rng.between(6, 40) * kPage;
  return rng.percent(10) ? bytes - rng.between(1, kPage - 1) : bytes;  // with an odd tail
}

void add_bos(KfdImage& image, std::uint32_t gpu_id, Rng& rng) {
  const bool has_contents = gpu_id != kGpus.back();
  for (std::uint64_t left = rng.between(2, 6); left > 0; --left) {
    BoEntry bo;
    bo.addr = 0x7f0000000000 + image.bos.size() * 0x10000000;
    bo.bytes = bo_bytes(rng);
    bo.offset = image.bos.size() << 32U;
    bo.alloc_flags = rng.percent(50) ? kfd::kAllocVram : kfd::kAllocGtt;
    if (!has_contents || rng.percent(10)) bo.alloc_flags = kfd::kAllocUserptr;
    bo.gpu_id = gpu_id;
    image.bos.push_back(bo);
  }
  if (!has_contents) return;
  image.bos.back().alloc_flags = kfd::kAllocVram;  // one at least
}

// What the images say of BOs, with room for the contents.
void note_sets(MadeCheckpoint& made) {
  made.known.metadata = {{kfd_image_name(kKfdId), pack_kfd_image(made.kfd, {})},
                         {kfd_image_name(kIdleId), pack_kfd_image(made.idle, {})},
                         {render_image_name(kRenderId), pack_render_image(made.render, {})},
                         {dmabuf_image_name(kDmaBufId), pack_dmabuf_image(made.dmabuf, {})}};
  std::vector<PagesSet> sets = pages_of(made.kfd);
  sets.push_back(pages_of(made.render));
  made.known.sets.resize(sets.size());
  for (std::size_t i = 0; i < sets.size(); ++i) {
    made.known.sets[i].id = sets[i].drm_minor ? kRenderId : kKfdId;
    made.known.sets[i].set = std::move(sets[i]);
  }
}

void stamp(MadeCheckpoint& made, Rng& rng) {
  const DumpId id = dump_id_from(rng);
  made.kfd.dump_id = made.idle.dump_id = made.render.dump_id = made.dmabuf.dump_id = id;
  made.kfd.has_sums = made.render.has_sums = true;
  for (KfdImage* const process : {&made.kfd, &made.idle}) {
    process->priv_data.resize(rng.between(50, 6000));
    rng.fill(std::as_writable_bytes(std::span(process->priv_data)));
  }
}

// Pages of noise, of zeros, and of one word again and again, as real memory has.
void fill(Bytes& bo, Rng& rng) {
  rng.fill(bo);
  for (std::size_t begin = 0; begin < bo.size();) {
    const std::size_t end = std::min<std::size_t>(bo.size(), begin + rng.between(1, 20) * kPage);
    if (rng.percent(35)) {
      const std::byte value = rng.percent(80) ? std::byte{0} : std::byte{0x42};
      std::fill(bo.begin() + static_cast<long>(begin), bo.begin() + static_cast<long>(end), value);
    }
    begin = end;
  }
}

// `parents`: the BOs of the parent that may be the same; none: it has no parent.
Result<void> write_set(int dir_fd, const KnownSet& known, const DumpId& dump_id, const WriteSizes& sizes,
                       const LaneKit& kit, Reactor& reactor, const Ancestor* parent,
                       std::vector<KnownBo> parents) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, known.set.layout(sizes.chunk_bytes));
  Sidecar sidecar;
  sidecar.tables = unit_tables(layout, sizes.block_bytes);
  sidecar.pages_files = known.set.pages_names(known.id);
  sidecar.bo_table_digest = known.set.bo_table_digest;
  sidecar.dump_id = dump_id;
  BoList bos = known.bos;
  test::MemoryCopy copy(Direction::Dump, layout, reactor, bos);
  std::optional<ContentMatch> match;
  if (parent != nullptr) match.emplace(layout, sidecar.tables, std::move(parents));
  ChecksumStage checksum(Direction::Dump, layout, reactor, sidecar.tables,
                         ChecksumOptions{.match = match ? &*match : nullptr}, nullptr);
  FileSetSink sink(dir_fd, sidecar.pages_files, layout, reactor, FileOptions{.sync = false});
  const std::array<Stage*, 3> route{&copy, &checksum, &sink};
  std::vector<Slot> slots = slots_of(kit.arena);
  Pipeline pipeline(layout, slots, route, reactor);
  SLUICE_TRY(pipeline.run());
  if (match) {
    for (std::uint32_t file = 0; file < layout.file_count(); ++file)
      sidecar.parents.push_back(match->runs(file).parents);
    sidecar.parent_dump_id = parent->dump_id();
    sidecar.pages_files = known.set.names_with(known.id, sidecar);
    sink.set_names(sidecar.pages_files);
  }
  SLUICE_TRY(write_image(dir_fd, known.set.sums_name(known.id), pack_sidecar(sidecar, {}), false));
  return sink.commit();
}

}  // namespace

MadeCheckpoint make_checkpoint(Rng& rng) {
  MadeCheckpoint made;
  KfdImage& kfd = made.kfd;
  kfd.pid = 1234;
  kfd.topology.nodes.push_back({.node_id = 0, .cpu_cores_count = 8});
  for (std::uint32_t i = 0; i < kGpus.size(); ++i) {
    kfd::Node gpu{
        .node_id = i + 1, .gpu_id = kGpus[i], .drm_render_minor = 128 + i, .gfx_target_version = 90010};
    gpu.links.push_back({kfd::kLinkPcie, 0});
    kfd.topology.nodes.push_back(gpu);
    add_bos(kfd, kGpus[i], rng);
  }
  kfd.num_objects = 3;
  kfd.sluice_version = "test";
  kfd.kernel_release = "6.1.0";
  kfd.kfd_minor_version = 17;
  kfd.id = kKfdId;
  made.idle = kfd;
  made.idle.pid = 1235;
  made.idle.id = kIdleId;
  made.idle.bos.clear();

  made.render.gpu_id = kGpus[1];
  made.render.id = kRenderId;
  made.render.minor = 129;
  made.render.pid = kfd.pid;
  const std::uint64_t render_bos = rng.between(2, 4);
  for (std::uint32_t i = 0; i < render_bos; ++i) {
    RenderBo bo;
    bo.gem = {i + 1, bo_bytes(rng), kPage, 4, 0, {{0x800000000000 + (std::uint64_t{i} << 32U), kPage, 0, 6}}};
    if (bo.gem.bytes < kPage) bo.gem.mappings.clear();
    bo.imports = i == 1;
    bo.shared = bo.imports ? 1 : 0;
    made.render.bos.push_back(bo);
  }
  kfd.bos.front().shared = 1;
  made.dmabuf.gem_handle = 2;
  made.dmabuf.shared = 1;
  made.dmabuf.id = kDmaBufId;
  stamp(made, rng);
  note_sets(made);
  for (KnownSet& one : made.known.sets) {
    for (const PagesBo& bo : one.set.bos) {
      Bytes& bytes = one.bos.emplace_back(static_cast<std::size_t>(bo.bytes));
      fill(bytes, rng);
    }
  }
  return made;
}

MadeCheckpoint make_later(const MadeCheckpoint& earlier, Rng& rng, unsigned worked_on_percent) {
  MadeCheckpoint later = earlier;
  stamp(later, rng);
  note_sets(later);
  for (std::size_t i = 0; i < later.known.sets.size(); ++i) {
    for (Bytes& bo : later.known.sets[i].bos) {
      for (std::size_t begin = 0; begin < bo.size(); begin += kPage) {
        if (!rng.percent(worked_on_percent)) continue;
        rng.fill(std::span(bo).subspan(begin, std::min<std::size_t>(bo.size() - begin, kPage)));
      }
    }
  }
  return later;
}

std::string pages_without_contents() {
  return pages_image_name(kKfdId, kGpus.back());
}

Result<void> write_checkpoint(int dir_fd, const MadeCheckpoint& made, const WriteSizes& sizes,
                              const LaneKit& kit, Reactor& reactor, const Ancestor* parent) {
  for (const KnownSet& one : made.known.sets) {
    std::vector<KnownBo> parents;
    if (parent != nullptr) parents = parent->bos_like(one.set);
    SLUICE_TRY(write_set(dir_fd, one, *made.kfd.dump_id, sizes, kit, reactor, parent, std::move(parents)));
  }
  SLUICE_TRY(write_image(dir_fd, pages_without_contents(), {}, false));
  for (const auto& [name, payload] : made.known.metadata)
    SLUICE_TRY(write_image(dir_fd, name, payload, false));
  return {};
}

}  // namespace sluice::corruption_test
