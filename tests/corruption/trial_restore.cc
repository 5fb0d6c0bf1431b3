// SPDX-License-Identifier: MIT
#include "corruption/trial_restore.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "images/chain/chain.h"
#include "images/checkpoint.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/pipeline.h"
#include "pipeline/reactor/uring_reactor.h"
#include "pipeline/store/file_set.h"
#include "support/memory_copy.h"

namespace sluice::corruption_test {

using test::BoList;
using test::Bytes;

namespace {

constexpr std::byte kGarbage{0x5a};

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

// The copy stage: moves what comes, and counts the bytes that are not what they should be.
class CheckedMemory final : public Stage {
 public:
  CheckedMemory(const ImageLayout& layout, Reactor& reactor, const BoList& expected)
      : layout_(layout), reactor_(reactor), expected_(expected) {
    for (const Bytes& bo : expected) memory_.emplace_back(bo.size(), kGarbage);
  }

  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override {
    test::move_chunk(Direction::Restore, layout_, memory_, slot);
    Piece piece;
    for (auto at = layout_.pieces(slot.chunk); at.next(piece);) {
      if (piece.is_header()) continue;
      const std::byte* const got = &memory_[piece.bo][piece.bo_offset];
      const std::byte* const wanted = &expected_[piece.bo][piece.bo_offset];
      if (std::memcmp(got, wanted, piece.length) == 0) continue;
      for (std::uint64_t i = 0; i < piece.length; ++i) wrong_bytes_ += got[i] != wanted[i] ? 1U : 0U;
    }
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

  std::uint64_t wrong_bytes() const { return wrong_bytes_; }
  bool whole() const { return memory_ == expected_; }

 private:
  const ImageLayout& layout_;
  Reactor& reactor_;
  const BoList& expected_;
  BoList memory_;
  std::uint64_t wrong_bytes_ = 0;
};

// What the pages files of a set are read through.
struct Store {
  std::shared_ptr<const Chain> chain;  // where they have parts of a parent's; outlives the stage
  std::unique_ptr<Stage> stage;
};
Result<Store> open_store(int dir_fd, int id, const PagesSet& set, const std::optional<Sidecar>& sums,
                         const ImageLayout& layout, Reactor& reactor) {
  if (!sums || !sums->needs().any()) {
    SLUICE_TRY_ASSIGN(auto source,
                      FileSetSource::open(dir_fd, set.pages_names(id), layout, reactor, FileOptions{}));
    return Store{nullptr, std::move(source)};
  }
  SLUICE_TRY_ASSIGN(auto chain, Chain::open(dir_fd, sums->needs(), ImageKeys()));
  SLUICE_TRY_ASSIGN(auto maps, chain->resolve(dir_fd, chain->directories(), layout, *sums));
  auto stage = std::make_unique<ExtentSource>(std::move(maps), layout, reactor, FileOptions{});
  return Store{std::move(chain), std::move(stage)};
}

// One lane, as plugin/contents.cc runs it.
Result<std::uint64_t> restore_set(int dir_fd, const KnownSet& known, const PagesSet& set,
                                  const DumpId& dump_id, std::uint64_t chunk_bytes, const LaneKit& kit,
                                  Reactor& reactor, std::uint64_t& wrong_bytes) {
  SLUICE_TRY_ASSIGN(ImageLayout layout, set.layout(chunk_bytes));
  SLUICE_TRY_ASSIGN(std::optional<Sidecar> sums,
                    read_sidecar(DirectorySource(dir_fd), known.id, set, layout, dump_id));
  if (sums) {
    SLUICE_TRY_ASSIGN(layout, set.layout(std::max(chunk_bytes, sums->tables.front().block_bytes)));
  }
  SLUICE_TRY_ASSIGN(const Store store, open_store(dir_fd, known.id, set, sums, layout, reactor));
  const auto* const extents = dynamic_cast<const ExtentSource*>(store.stage.get());
  ChecksumOptions options;
  options.check_headers = !set.drm_minor || sums;
  ChecksumStage checksum(Direction::Restore, layout, reactor,
                         sums ? std::span(sums->tables) : std::span<SumTable>(), options,
                         [&](std::uint32_t file, std::uint64_t offset, std::uint64_t length) {
                           std::string text = set.describe(known.id, layout, Chunk{0, offset, length, file});
                           return extents != nullptr ? text + extents->describe(file, offset) : text;
                         });
  CheckedMemory memory(layout, reactor, known.bos);
  const std::array<Stage*, 3> route{store.stage.get(), &checksum, &memory};
  std::vector<Slot> slots = slots_of(kit.arena);
  Pipeline pipeline(layout, slots, route, reactor);
  const auto stats = pipeline.run();
  wrong_bytes += memory.wrong_bytes();
  if (!stats) return stats.error();
  if (!memory.whole() && memory.wrong_bytes() == 0) give_up("a lane that ended well left out a part of a BO");
  return stats->bytes;
}

// What a lane asks of a set that is none of those known, before it would copy anything.
Result<void> open_set(int dir_fd, int id, const PagesSet& set, const DumpId& dump_id,
                      std::uint64_t chunk_bytes, Reactor& reactor) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, set.layout(chunk_bytes));
  SLUICE_TRY_ASSIGN(const auto sums, read_sidecar(DirectorySource(dir_fd), id, set, layout, dump_id));
  SLUICE_TRY(open_store(dir_fd, id, set, sums, layout, reactor));
  return {};
}

// What restores read of one metadata image: its name, its BOs, its packed form.
struct Read {
  std::string name;
  std::vector<std::uint8_t> payload;
  std::vector<std::pair<int, PagesSet>> sets;
  DumpId dump_id{};
};

std::vector<Read> read_metadata(int dir_fd, std::vector<Error>& errors) {
  std::vector<Read> all;
  const auto checkpoint = read_checkpoint(DirectorySource(dir_fd));
  if (!checkpoint) {
    errors.push_back(checkpoint.error());
    return all;
  }
  errors = checkpoint->unreadable;
  for (const auto& [id, image] : checkpoint->kfd) {
    Read read{kfd_image_name(id), pack_kfd_image(image, {}), {}, image.dump_id.value_or(DumpId{})};
    for (PagesSet& set : pages_of(image)) read.sets.emplace_back(id, std::move(set));
    all.push_back(std::move(read));
  }
  for (const auto& [id, image] : checkpoint->render) {
    Read read{render_image_name(id), pack_render_image(image, {}), {}, image.dump_id.value_or(DumpId{})};
    if (image.has_contents()) read.sets.emplace_back(id, pages_of(image));
    all.push_back(std::move(read));
  }
  for (const auto& [id, image] : checkpoint->dmabufs)
    all.push_back({dmabuf_image_name(id), pack_dmabuf_image(image, {}), {}, DumpId{}});
  return all;
}

// The first that has this image as it was read.
const KnownCheckpoint* find(const std::vector<const KnownCheckpoint*>& known, const Read& read) {
  for (const KnownCheckpoint* one : known) {
    const auto image = one->metadata.find(read.name);
    if (image != one->metadata.end() && image->second == read.payload) return one;
  }
  return nullptr;
}

const KnownSet* find(const KnownCheckpoint& known, int id, const PagesSet& set) {
  for (const KnownSet& one : known.sets) {
    if (one.id == id && one.set.sums_name(id) == set.sums_name(id)) return &one;
  }
  return nullptr;
}

// Fills `bytes` from where the map says that the file has them.
void read_extents(const ExtentMap& map, std::uint64_t at, Bytes& bytes) {
  for (std::uint64_t done = 0; done < bytes.size();) {
    const Extent& extent = map.at(at + done);
    const std::uint64_t length = std::min(extent.end - (at + done), bytes.size() - done);
    std::span<std::byte> part = std::span(bytes).subspan(done, length);
    done += length;
    if (extent.is_zeros()) {
      std::fill(part.begin(), part.end(), std::byte{0});
      continue;
    }
    const ExtentFile& file = map.files[extent.file];
    const UniqueFd fd(::openat(file.dir_fd, file.name.c_str(), O_RDONLY | O_CLOEXEC));
    const std::uint64_t from = extent.offset + (at + done - length - extent.begin);
    if (::pread(fd.get(), part.data(), part.size(), static_cast<off_t>(from)) !=
        static_cast<ssize_t>(part.size()))
      give_up(file.words + " ends early");
  }
}

// Contents of pages files, without looking at sums.
BoList bos_of(int dir_fd, int id, const PagesSet& set, const DumpId& dump_id) {
  const ImageLayout layout = std::move(set.layout(kSumBlockBytes)).value();
  const auto sums = read_sidecar(DirectorySource(dir_fd), id, set, layout, dump_id);
  std::shared_ptr<const Chain> chain;
  std::vector<ExtentMap> maps;
  if (sums && *sums && (*sums)->needs().any()) {
    chain = std::move(Chain::open(dir_fd, (*sums)->needs(), ImageKeys())).value();
    maps = std::move(chain->resolve(dir_fd, chain->directories(), layout, **sums)).value();
  } else {
    for (const std::string& name : set.pages_names(id)) {
      const std::uint64_t bytes = layout.file_bytes(static_cast<std::uint32_t>(maps.size()));
      maps.push_back({{{dir_fd, name, bytes, name, false}}, {{0, bytes, 0, 0}}});
    }
  }
  BoList bos;
  std::uint64_t at = kHeaderBytes;
  for (std::size_t i = 0; i < set.bos.size(); ++i) {
    if (set.drm_minor) at = kHeaderBytes;
    Bytes& bo = bos.emplace_back(static_cast<std::size_t>(set.bos[i].bytes));
    read_extents(maps[set.drm_minor ? i : 0], at, bo);
    at += bo.size();
  }
  return bos;
}

}  // namespace

const KnownSet* KnownCheckpoint::set_of(const std::string& pages_file, std::uint32_t& file) const {
  for (const KnownSet& one : sets) {
    const std::vector<std::string> names = one.set.pages_names(one.id);
    const auto found = std::find(names.begin(), names.end(), pages_file);
    if (found == names.end()) continue;
    file = static_cast<std::uint32_t>(found - names.begin());
    return &one;
  }
  return nullptr;
}

KnownCheckpoint read_known(int dir_fd) {
  std::vector<Error> errors;
  KnownCheckpoint known;
  for (Read& read : read_metadata(dir_fd, errors)) {
    known.metadata.emplace(read.name, std::move(read.payload));
    for (auto& [id, set] : read.sets) {
      BoList bos = bos_of(dir_fd, id, set, read.dump_id);
      known.sets.push_back({id, std::move(set), std::move(bos)});
    }
  }
  if (!errors.empty()) give_up(errors.front().what);
  return known;
}

LaneKit::LaneKit(std::uint64_t most_chunk_bytes, std::uint32_t depth)
    : arena(std::move(StagingArena::make(most_chunk_bytes, depth, -1)).value()) {
  std::string note;
  reactor = std::move(make_reactor(depth * static_cast<unsigned>(kOpsPerSlot), arena.bytes(), note)).value();
}

TrialRestore trial_restore(int dir_fd, const std::vector<const KnownCheckpoint*>& known,
                           std::uint64_t chunk_bytes, const LaneKit& kit, Reactor& reactor) {
  TrialRestore trial;
  const std::vector<Read> images = read_metadata(dir_fd, trial.errors);
  const bool all_read = trial.errors.empty();
  for (const auto& [name, payload] : known.front()->metadata) {
    const auto has_name = [&name = name](const Read& read) { return read.name == name; };
    if (all_read && std::none_of(images.begin(), images.end(), has_name))
      trial.errors.push_back(Error{ENOENT, "no plugin takes the file of " + name});
  }
  bool known_bytes = true;
  for (const Read& read : images) {
    const KnownCheckpoint* const same = find(known, read);
    if (trial.became == nullptr) trial.became = same;
    if (same == nullptr || same != trial.became) known_bytes = false;
    for (const auto& [id, set] : read.sets) {
      const KnownSet* const expected = same != nullptr ? find(*same, id, set) : nullptr;
      if (expected == nullptr) {
        if (const auto refused = open_set(dir_fd, id, set, read.dump_id, chunk_bytes, reactor); !refused)
          trial.errors.push_back(refused.error());
        continue;
      }
      const auto bytes =
          restore_set(dir_fd, *expected, set, read.dump_id, chunk_bytes, kit, reactor, trial.wrong_bytes);
      if (bytes) {
        trial.bytes += *bytes;
      } else {
        trial.errors.push_back(bytes.error());
      }
    }
  }
  if (!trial.errors.empty() || !known_bytes || trial.wrong_bytes > 0) trial.became = nullptr;
  return trial;
}

}  // namespace sluice::corruption_test
