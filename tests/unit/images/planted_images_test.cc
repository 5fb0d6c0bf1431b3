// SPDX-License-Identifier: MIT
// Image directories that no dump has made: whole images that contradict each other, and what readers of
// chains, `verify`, `diff` and `flatten` say of them. Few have contents: metadata and sums are enough.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "flatten/flatten.h"
#include "images/chain/parent_chain.h"
#include "images/chain/predump_mark.h"
#include "images/checkpoint.h"
#include "images/files/files.h"
#include "kfd/uapi.h"
#include "pipeline/lane_thread.h"
#include "support/equal_sums.h"
#include "support/flip_byte.h"
#include "support/refuse_system_call.h"
#include "support/rng.h"
#include "support/temp_dir.h"
#include "verify/compare.h"
#include "verify/verify.h"

namespace sluice {
namespace {

constexpr std::uint32_t kGpu = 0x5759;
constexpr int kId = 1;
constexpr std::uint64_t kBoBytes = 2 * kMiB;
constexpr std::uint64_t kNoMemoryHasIt = std::uint64_t{1} << 62;
const ImageKeys kNoKeys;

DumpId id_of(std::size_t dump) {
  return DumpId{static_cast<std::uint8_t>(dump)};
}

bool has(const Error& error, const std::string& message_id) {
  return error.what.find(message_id) != std::string::npos;
}

// A BO of each of these sizes on each GPU.
KfdImage image_of(const DumpId& dump_id, std::uint32_t gpus = 1,
                  const std::vector<std::uint64_t>& sizes = {kBoBytes}) {
  KfdImage image;
  image.pid = 7;
  image.topology.nodes.push_back({.node_id = 0, .cpu_cores_count = 1});
  for (std::uint32_t gpu = 0; gpu < gpus; ++gpu) {
    image.topology.nodes.push_back({.node_id = gpu + 1,
                                    .gpu_id = kGpu + gpu,
                                    .drm_render_minor = 128 + gpu,
                                    .gfx_target_version = 90010});
    for (std::size_t bo = 0; bo < sizes.size(); ++bo) {
      image.bos.push_back({{.addr = 0x100000000ULL * (gpu + 1) + 0x10000000ULL * bo,
                            .bytes = sizes[bo],
                            .gpu_id = kGpu + gpu,
                            .alloc_flags = kfd::kAllocVram}});
    }
  }
  image.dump_id = dump_id;
  image.has_sums = true;
  image.id = kId;
  return image;
}

RenderImage render_image_of(const DumpId& dump_id, const std::vector<std::uint64_t>& sizes = {kBoBytes}) {
  RenderImage image{kGpu, kId, 128, {}, false, dump_id, 7, true};
  for (std::size_t bo = 0; bo < sizes.size(); ++bo)
    image.bos.push_back({{static_cast<std::uint32_t>(bo + 1), sizes[bo], 4096, 4, 0, {}, {}}, 0});
  return image;
}

SumMethod method_of(std::uint64_t seed) {
  SumSecret made;
  test::Rng(seed).fill(std::as_writable_bytes(std::span(made.bytes)));
  return SumMethod(made);
}

// Sums by units, all of them zero, which no contents have.
Sidecar sidecar_of(const PagesSet& set, const DumpId& dump_id) {
  const ImageLayout layout = std::move(set.layout(kMiB)).value();
  return {unit_tables(layout, kSumBlockBytes, method_of(1)),
          set.pages_names(kId),
          set.bo_table_digest,
          dump_id,
          {},
          {}};
}

// All of its contents are in a file of the parent, there from `offset` on.
void lean(Sidecar& sidecar, const PagesSet& set, const DumpId& parent, const std::string& file,
          std::uint64_t offset = kHeaderBytes) {
  sidecar.parents = {{{file}, {{1, sidecar.tables[0].sums.size() - 1, 0, offset}}}};
  sidecar.parent_dump_id = parent;
  sidecar.pages_files = {set.pages_name(kId, 0, Lacks::Parents)};
}

void save(int dir_fd, const std::string& name, const std::vector<std::uint8_t>& payload) {
  ASSERT_TRUE(write_image(dir_fd, name, payload, false).ok()) << name;
}

using Change = std::function<void(Sidecar&, const PagesSet&)>;
void plant(int dir_fd, const KfdImage& image, const Change& change = nullptr) {
  const int id = static_cast<int>(*image.id);
  for (const PagesSet& set : pages_of(image)) {
    Sidecar sidecar = sidecar_of(set, *image.dump_id);
    sidecar.pages_files = set.pages_names(id);
    if (change) change(sidecar, set);
    save(dir_fd, set.sums_name(id), pack_sidecar(sidecar, kNoKeys));
  }
  save(dir_fd, kfd_image_name(id), pack_kfd_image(image, kNoKeys));
}

// As a dump on dump `parent`, the same pages file of which has all contents.
void plant_on(int dir_fd, const DumpId& parent, const KfdImage& image) {
  plant(dir_fd, image,
        [&](Sidecar& sidecar, const PagesSet& set) { lean(sidecar, set, parent, set.pages_name(kId, 0)); });
}

// A pages file that is all hole.
void make_pages(int dir_fd, const std::string& name, std::uint64_t bytes) {
  const UniqueFd fd(::openat(dir_fd, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd) << name;
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
}
void make_pages(int dir_fd, const KfdImage& image) {
  for (const PagesSet& set : pages_of(image)) {
    make_pages(dir_fd, set.pages_name(static_cast<int>(*image.id), 0),
               std::move(set.layout(kMiB)).value().file_bytes());
  }
}

// A pages file without a hole: of BOs of so many bytes in all.
void write_pages(const test::TempDir& dir, const std::string& name, std::uint64_t bytes) {
  test::Bytes file(static_cast<std::size_t>(kHeaderBytes + bytes), std::byte{1});
  std::memcpy(file.data(), &bytes, kHeaderBytes);
  dir.write(name, file);
  ASSERT_EQ(::fchmodat(dir.fd(), name.c_str(), 0600, 0), 0);
}

// The parent's directory as one in the directory, instead of a link.
UniqueFd make_parent(int dir_fd) {
  EXPECT_EQ(::mkdirat(dir_fd, kParentLink, 0700), 0);
  UniqueFd fd(::openat(dir_fd, kParentLink, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(fd);
  return fd;
}

Result<std::unique_ptr<Ancestor>> open_as_parent(int dir_fd) {
  return Ancestor::of(UniqueFd(::openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), "parent", kNoKeys);
}

TEST(PlantedParent, OfTwoParentsIsRefused) {
  const test::TempDir dir;
  std::size_t sets = 0;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(3), 2), [&](Sidecar& sidecar, const PagesSet& set) {
    lean(sidecar, set, id_of(++sets), set.pages_name(kId, 0));
  }));
  ASSERT_EQ(sets, 2U);
  const auto opened = open_as_parent(dir.fd());
  ASSERT_FALSE(opened.ok());
  EXPECT_TRUE(has(opened.error(), "[SL-I36]")) << opened.error().what;
}

TEST(PlantedParent, OfSizesThatAddUpToNoFileIsRefused) {
  const test::TempDir dir;
  const RenderImage image = render_image_of(id_of(1), {INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2});
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), render_image_name(kId), pack_render_image(image, kNoKeys)));
  EXPECT_FALSE(open_as_parent(dir.fd()).ok());
}

TEST(PlantedParent, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(1))));
  ASSERT_TRUE(open_as_parent(dir.fd()).ok());
  ASSERT_EQ(::fchown(dir.fd(), 12345, 0), 0);
  const auto opened = open_as_parent(dir.fd());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().err, EACCES);
}

TEST(PlantedParent, FindsUnitsOnlyWhereTheyBegin) {
  const test::TempDir dir;
  const KfdImage image = image_of(id_of(1));
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image));
  const auto parent = std::move(open_as_parent(dir.fd())).value();
  const std::string name = pages_of(image).front().pages_name(kId, 0);
  const auto found = parent->find(name, kHeaderBytes, kSumUnitBytes, Sum128{});
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_EQ(*found->file, name);
  EXPECT_FALSE(found->in_parent);
  struct Case {
    std::string file;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    Sum128 sum{};
  };
  const std::vector<Case> cases = {
      {"amdgpu-pages-1-9999.img", kHeaderBytes, kSumUnitBytes},
      {name, 0, kHeaderBytes},
      {name, kHeaderBytes + kBoBytes, kSumUnitBytes},
      {name, UINT64_MAX, kSumUnitBytes},
      {name, kHeaderBytes, kBoBytes + 1},
      {name, kHeaderBytes, UINT64_MAX},
      {name, kHeaderBytes, 0},
      {name, kHeaderBytes + 4096, kSumUnitBytes - 4096},
      {name, kHeaderBytes, kSumUnitBytes - 4096},
      {name, kHeaderBytes, kSumUnitBytes, Sum128{1}},
  };
  for (const Case& each : cases) {
    const auto refused = parent->find(each.file, each.offset, each.length, each.sum);
    ASSERT_FALSE(refused.ok()) << each.file << ' ' << each.offset << ' ' << each.length;
    EXPECT_EQ(refused.error().err, EBADMSG);
  }
}

TEST(PlantedParent, ThatCannotBeSyncedIsNamed) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(1))));
  const auto parent = std::move(open_as_parent(dir.fd())).value();
  EXPECT_TRUE(parent->sync().ok());
  for (const int number : {SYS_fdatasync, SYS_getdents64}) {
    bool is_refused = false;
    Result<void> failed;
    std::thread([&] {
      is_refused = test::refuse_system_call(static_cast<unsigned>(number), EIO);
      failed = parent->sync();
    }).join();
    ASSERT_TRUE(is_refused);
    EXPECT_EQ(failed.error().err, EIO) << number;
  }
  ASSERT_EQ(::mkdirat(dir.fd(), "amdgpu-new.img", 0700), 0);
  const auto synced = parent->sync();
  ASSERT_FALSE(synced.ok());
  EXPECT_TRUE(has(synced.error(), "amdgpu-new.img")) << synced.error().what;
}

TEST(PlantedParent, ThatCannotBeListedIsRefused) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(1))));
  bool is_refused = false;
  int err = 0;
  std::thread([&] {
    is_refused = test::refuse_system_call(SYS_getdents64, EIO);
    const auto opened = open_as_parent(dir.fd());
    err = opened.ok() ? 0 : opened.error().err;
  }).join();
  ASSERT_TRUE(is_refused);
  EXPECT_EQ(err, EIO);
}

// A pre-dump with a KFD's image and a render file's, written as the plugin does.
struct PreDump {
  KfdImage kfd = image_of(id_of(1));
  RenderImage render = render_image_of(id_of(1));
  PreDumpMark mark{{predump_name(kfd_image_name(kId)), predump_name(render_image_name(kId))}, 0, id_of(1)};
  bool kfd_sums = true, render_sums = true;

  void write(int dir_fd) const {
    const auto save_sums = [&](PagesSet set, const DumpId& dump_id) {
      set.predump = true;
      save(dir_fd, set.sums_name(kId), pack_sidecar(sidecar_of(set, dump_id), kNoKeys));
    };
    if (kfd_sums) save_sums(pages_of(kfd).front(), *kfd.dump_id);
    if (render_sums) save_sums(pages_of(render), *render.dump_id);
    save(dir_fd, predump_name(kfd_image_name(kId)), pack_kfd_image(kfd, kNoKeys));
    save(dir_fd, predump_name(render_image_name(kId)), pack_render_image(render, kNoKeys));
    save(dir_fd, kPreDumpMark, pack_predump_mark(mark, kNoKeys));
  }
};

TEST(PlantedPreDump, ThatIsWholeIsAParent) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(PreDump().write(dir.fd()));
  const auto opened = open_as_parent(dir.fd());
  ASSERT_TRUE(opened.ok()) << opened.error().what;
  EXPECT_EQ((*opened)->dump_id(), id_of(1));
  EXPECT_EQ((*opened)->pages_files().size(), 2U);
}

// Each of its images is whole.
TEST(PlantedPreDump, ThatContradictsItselfIsRefused) {
  struct Case {
    std::string why;
    std::function<void(PreDump&)> change;
    int err = EBADMSG;
  };
  const std::vector<Case> cases = {
      {"[SL-I33]", [](PreDump& made) { made.mark.images[0] = "amdgpu-predump-nothing.img"; }},
      {"[SL-I33]", [](PreDump& made) { made.mark.images[0] = kfd_image_name(kId); }},
      {"[SL-I33]", [](PreDump& made) { made.mark.images[0] = "../amdgpu-predump-kfd-1.img"; }},
      {"", [](PreDump& made) { made.mark.images[1] = predump_name(render_image_name(9)); }, ENOENT},
      {"[SL-I34]", [](PreDump& made) { made.kfd.dump_id = id_of(2); }},
      {"[SL-I34]", [](PreDump& made) { made.render.dump_id = id_of(2); }},
      {"[SL-I19]", [](PreDump& made) { made.kfd_sums = false; }},
      {"[SL-I19]", [](PreDump& made) { made.render_sums = false; }},
      {"[SL-I35]", [](PreDump& made) { made.kfd_sums = made.kfd.has_sums = false; }, ENODATA},
      {"[SL-I32]",
       [](PreDump& made) {
         made.render.bos.clear();
         made.render_sums = false;
         made.mark.images.erase(made.mark.images.begin());
       },
       ENXIO},
      {"[SL-I32]", [](PreDump& made) { made.mark.images.clear(); }, ENXIO},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const test::TempDir dir;
    PreDump made;
    cases[i].change(made);
    // Without BOs there are no sums to write.
    ASSERT_NO_FATAL_FAILURE(made.write(dir.fd()));
    const auto opened = open_as_parent(dir.fd());
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().err, cases[i].err) << opened.error().what;
    EXPECT_TRUE(has(opened.error(), cases[i].why)) << opened.error().what;
  }
}

TEST(PlantedPreDump, WithADamagedFileIsRefused) {
  for (const std::string& name :
       {std::string(kPreDumpMark), predump_name(kfd_image_name(kId)), predump_name(render_image_name(kId))}) {
    const test::TempDir dir;
    ASSERT_NO_FATAL_FAILURE(PreDump().write(dir.fd()));
    test::flip_byte(dir.path() + "/" + name, 12);
    EXPECT_EQ(open_as_parent(dir.fd()).error().err, EBADMSG) << name;
    ASSERT_EQ(::truncate((dir.path() + "/" + name).c_str(), 10), 0);
    EXPECT_EQ(open_as_parent(dir.fd()).error().err, EBADMSG) << name;
  }
}

// Dump 1 is at the end, `length` directories below.
void plant_chain(int dir_fd, std::size_t length) {
  UniqueFd at(::dup(dir_fd));
  for (std::size_t dump = length + 1; dump > 1; --dump) {
    ASSERT_NO_FATAL_FAILURE(plant_on(at.get(), id_of(dump - 1), image_of(id_of(dump))));
    at = make_parent(at.get());
  }
  ASSERT_NO_FATAL_FAILURE(plant(at.get(), image_of(id_of(1))));
}

TEST(PlantedChain, LongerThanTheLimitIsRefused) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_chain(dir.fd(), kMostAncestors + 1));
  const auto opened = Chain::open(dir.fd(), {.parent = id_of(kMostAncestors + 1)}, kNoKeys);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().err, ELOOP);
  EXPECT_TRUE(has(opened.error(), "[SL-I37]")) << opened.error().what;
  const UniqueFd parent(::openat(dir.fd(), kParentLink, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(Chain::open(parent.get(), {.parent = id_of(kMostAncestors)}, kNoKeys).ok());
  const auto built_on = ParentChain::of(std::move(open_as_parent(parent.get())).value(), kNoKeys);
  ASSERT_FALSE(built_on.ok());
  EXPECT_TRUE(has(built_on.error(), "[SL-D10]")) << built_on.error().what;
}

// As version 0.2 made them: contents can be made that have the sum of others.
TEST(PlantedChain, NothingIsBuiltOnSumsWithoutASecret) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(1)), [](Sidecar& sidecar, const PagesSet&) {
    for (SumTable& table : sidecar.tables) table.method = SumMethod();
  }));
  const auto built_on = ParentChain::of(std::move(open_as_parent(dir.fd())).value(), kNoKeys);
  ASSERT_FALSE(built_on.ok());
  EXPECT_TRUE(has(built_on.error(), "[SL-D95]")) << built_on.error().what;
}

TEST(PlantedChain, NothingIsBuiltOnAParentThatLacksItsOwn) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_on(dir.fd(), id_of(1), image_of(id_of(2))));
  const auto built_on = ParentChain::of(std::move(open_as_parent(dir.fd())).value(), kNoKeys);
  ASSERT_FALSE(built_on.ok());
  EXPECT_EQ(built_on.error().err, ENOENT);
}

TEST(PlantedChain, OnlyLinksFromTheRootAreRefusedWhereThatIsAsked) {
  const auto open_from = [](int dir_fd) {
    return Chain::open(dir_fd, {.parent = id_of(1)}, kNoKeys, LinkKind::Relative);
  };
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(1))));
  const test::TempDir child;
  EXPECT_EQ(open_from(child.fd()).error().err, ENOENT);
  ASSERT_EQ(::symlinkat(dir.path().c_str(), child.fd(), kParentLink), 0);
  EXPECT_TRUE(has(open_from(child.fd()).error(), "[SL-I38]"));
  EXPECT_TRUE(Chain::open(child.fd(), {.parent = id_of(1)}, kNoKeys).ok());
  ASSERT_EQ(::unlinkat(child.fd(), kParentLink, 0), 0);
  const std::string beside = "../" + dir.path().substr(dir.path().rfind('/') + 1);
  ASSERT_EQ(::symlinkat(beside.c_str(), child.fd(), kParentLink), 0);
  EXPECT_TRUE(open_from(child.fd()).ok());
  ASSERT_EQ(::unlinkat(child.fd(), kParentLink, 0), 0);
  // A directory is no link.
  ASSERT_NO_FATAL_FAILURE(plant(make_parent(child.fd()).get(), image_of(id_of(1))));
  EXPECT_TRUE(open_from(child.fd()).ok());
  // What is not known is not followed.
  EXPECT_FALSE(open_from(-1).ok());
}

TEST(PlantedChain, ReopensTheSameDirectoriesOnly) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_chain(dir.fd(), 2));
  const auto chain = std::move(Chain::open(dir.fd(), {.parent = id_of(2)}, kNoKeys)).value();
  const auto again = chain->reopen(dir.fd());
  ASSERT_TRUE(again.ok()) << again.error().what;
  EXPECT_EQ(again->size(), 2U);
  ASSERT_EQ(::renameat(dir.fd(), "parent/parent", dir.fd(), "parent/gone"), 0);
  EXPECT_EQ(chain->reopen(dir.fd()).error().err, ENOENT);
  ASSERT_EQ(::mkdirat(dir.fd(), "parent/parent", 0700), 0);
  EXPECT_TRUE(has(chain->reopen(dir.fd()).error(), "[SL-I41]"));
}

Result<FlattenTotals> flatten_all(int dir_fd, const Checkpoint& checkpoint, const FlattenOptions& options) {
  const DirectorySource source(dir_fd);
  FlattenTotals totals;
  SLUICE_TRY_ASSIGN(auto thread, LaneThread::start("flatten", [&]() -> Result<void> {
                      SLUICE_TRY_ASSIGN(totals, flatten(source, checkpoint, options));
                      return {};
                    }));
  SLUICE_TRY(thread.join());
  return totals;
}
Result<FlattenTotals> flatten_in(int dir_fd, std::uint64_t chunk_bytes = kMiB) {
  SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint(DirectorySource(dir_fd)));
  return flatten_all(dir_fd, checkpoint, {.chunk_bytes = chunk_bytes, .staging_bytes = 4 * kMiB});
}

TEST(PlantedChain, WhatCannotBeLookedAtIsNotTrusted) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_chain(dir.fd(), 1));
  const auto chain = std::move(Chain::open(dir.fd(), {.parent = id_of(1)}, kNoKeys)).value();
  const Checkpoint checkpoint = std::move(read_checkpoint(DirectorySource(dir.fd()))).value();
  bool are_refused = false;
  int opened = 0, reopened = 0, flattened = 0;
  std::thread([&] {
    are_refused = test::refuse_system_call(SYS_fstat, EIO) &&
                  test::refuse_system_call(SYS_newfstatat, EIO, {{.argument = 3, .bits = AT_EMPTY_PATH}});
    const auto err_of = [](const auto& result) { return result ? 0 : result.error().err; };
    opened = err_of(open_as_parent(dir.fd()));
    reopened = err_of(chain->reopen(dir.fd()));
    flattened = err_of(flatten_all(dir.fd(), checkpoint, {.chunk_bytes = kMiB, .staging_bytes = 4 * kMiB}));
  }).join();
  ASSERT_TRUE(are_refused);
  EXPECT_EQ(opened, EIO);
  EXPECT_EQ(reopened, EIO);
  EXPECT_EQ(flattened, EIO);
}

// Its sums name the all-zero dump for a parent, which is none.
TEST(PlantedChain, ThatEndsBeforeTheContentsIsRefused) {
  const test::TempDir dir;
  const KfdImage image = image_of(id_of(2));
  ASSERT_NO_FATAL_FAILURE(plant_on(dir.fd(), id_of(1), image));
  ASSERT_NO_FATAL_FAILURE(plant_on(make_parent(dir.fd()).get(), DumpId{}, image_of(id_of(1))));
  const auto chain = std::move(Chain::open(dir.fd(), {.parent = id_of(1)}, kNoKeys)).value();
  ASSERT_EQ(chain->ancestors().size(), 1U);
  const PagesSet set = pages_of(image).front();
  const ImageLayout layout = std::move(set.layout(kMiB)).value();
  const Sidecar sidecar =
      std::move(read_sidecar(DirectorySource(dir.fd()), kId, set, layout, id_of(2))).value().value();
  const auto maps = chain->resolve(dir.fd(), chain->directories(), layout, sidecar);
  ASSERT_FALSE(maps.ok());
  EXPECT_TRUE(has(maps.error(), "[SL-I42]")) << maps.error().what;
}

// Two GPUs, the second one's contents in the first one's file; `change`: of the second's sidecar.
Result<std::vector<ExtentMap>> resolve_replicas(const Change& change) {
  const test::TempDir dir;
  const KfdImage image = image_of(id_of(1), 2);
  const std::vector<PagesSet> sets = pages_of(image);
  plant(dir.fd(), image, [&](Sidecar& sidecar, const PagesSet& set) {
    if (set.gpu_id == sets[0].gpu_id) return;
    sidecar.replicas = {
        {{sets[0].pages_name(kId, 0)}, {{1, sidecar.tables[0].sums.size() - 1, 0, kHeaderBytes}}}};
    sidecar.replicas_left_out = true;
    sidecar.pages_files = {set.pages_name(kId, 0, Lacks::Replicas)};
    change(sidecar, set);
  });
  const ImageLayout layout = std::move(sets[1].layout(kMiB)).value();
  SLUICE_TRY_ASSIGN(const auto sidecar,
                    read_sidecar(DirectorySource(dir.fd()), kId, sets[1], layout, id_of(1)));
  SLUICE_TRY_ASSIGN(const auto chain, Chain::open(dir.fd(), sidecar->needs(), kNoKeys));
  EXPECT_TRUE(chain->meets({.replicas = true}));
  EXPECT_FALSE(chain->meets({.parent = id_of(2)}));
  return chain->resolve(dir.fd(), {}, layout, *sidecar);
}

TEST(PlantedReplicas, LeadToTheOtherFile) {
  const auto maps = resolve_replicas([](auto&, auto&) {});
  ASSERT_TRUE(maps.ok()) << maps.error().what;
  ASSERT_EQ(maps->front().extents.size(), 2U);
  EXPECT_EQ(maps->front().extents.back(), (Extent{kHeaderBytes, kHeaderBytes + kBoBytes, 1, kHeaderBytes}));
}

TEST(PlantedReplicas, ThatLeadNowhereAreRefused) {
  const std::pair<const char*, Change> plants[] = {
      {"itself",
       [](Sidecar& sidecar, const PagesSet& set) {
         sidecar.replicas[0].files = {set.pages_name(kId, 0, Lacks::Replicas)};
       }},
      {"no file",
       [](Sidecar& sidecar, const PagesSet&) { sidecar.replicas[0].files = {"amdgpu-pages-9-1.img"}; }},
      {"past the end",
       [](Sidecar& sidecar, const PagesSet&) { sidecar.replicas[0].runs[0].offset = kHeaderBytes + kMiB; }},
      {"within a unit",
       [](Sidecar& sidecar, const PagesSet&) { sidecar.replicas[0].runs[0].offset = kHeaderBytes + 4096; }},
      {"other contents", [](Sidecar& sidecar, const PagesSet&) { sidecar.tables[0].sums[5] = {1}; }},
  };
  for (const auto& [what, change] : plants) {
    const auto maps = resolve_replicas(change);
    ASSERT_FALSE(maps.ok()) << what;
    EXPECT_EQ(maps.error().err, EBADMSG) << what << ": " << maps.error().what;
  }
}

TEST(PlantedChain, HalvesThatAreTheOtherWayRoundInTheParentAreTwoExtents) {
  const test::TempDir dir;
  const KfdImage image = image_of(id_of(2));
  const PagesSet set = pages_of(image).front();
  const std::string name = set.pages_name(kId, 0);
  Sidecar sidecar = sidecar_of(set, id_of(2));
  const std::uint64_t half = (sidecar.tables[0].sums.size() - 1) / 2;
  sidecar.parents = {{{name}, {{1, half, 0, kHeaderBytes + kMiB}, {1 + half, half, 0, kHeaderBytes}}}};
  ASSERT_NO_FATAL_FAILURE(plant(make_parent(dir.fd()).get(), image_of(id_of(1))));
  const auto chain = std::move(Chain::open(dir.fd(), {.parent = id_of(1)}, kNoKeys)).value();
  const ImageLayout layout = std::move(set.layout(kMiB)).value();
  const auto maps = chain->resolve(dir.fd(), chain->directories(), layout, sidecar);
  ASSERT_TRUE(maps.ok()) << maps.error().what;
  const std::vector<Extent> expected = {{0, kHeaderBytes, 0, 0},
                                        {kHeaderBytes, kHeaderBytes + kMiB, 1, kHeaderBytes + kMiB},
                                        {kHeaderBytes + kMiB, kHeaderBytes + kBoBytes, 1, kHeaderBytes}};
  EXPECT_EQ(maps->front().extents, expected);
}

// What is read one after the other, as an archive is: it may have lost files since it was looked at, and it
// may fail.
class Stream final : public ImageSource {
 public:
  // `before_read`: may be null.
  explicit Stream(int dir_fd, std::set<std::string> lost = {}, std::optional<std::uint64_t> end = {},
                  std::function<void()> before_read = nullptr)
      : directory_(dir_fd), lost_(std::move(lost)), end_(end), before_read_(std::move(before_read)) {}

  Result<std::vector<std::string>> names() const override { return directory_.names(); }
  Result<std::vector<std::uint8_t>> read(const std::string& name, std::uint64_t most) const override {
    return directory_.read(name, most);
  }
  Result<SourceFile> look(const std::string& name) const override { return directory_.look(name); }
  std::uint64_t hole_bytes(const std::string& name) const override { return directory_.hole_bytes(name); }
  Result<void> stream(const std::set<std::string>& names, const Take& take) const override {
    std::set<std::string> left;
    for (const std::string& name : names) {
      if (!lost_.contains(name)) left.insert(name);
    }
    return directory_.stream(left, [&](const std::string& name, ByteStream& bytes) {
      Failing failing(bytes, *this);
      return take(name, failing);
    });
  }

 private:
  class Failing final : public ByteStream {
   public:
    Failing(ByteStream& bytes, const Stream& stream) : bytes_(bytes), stream_(stream) {}

    std::uint64_t zeros_ahead(std::uint64_t most) override { return bytes_.zeros_ahead(most); }
    Result<void> read(std::span<std::byte> into) override {
      if (stream_.before_read_) stream_.before_read_();
      SLUICE_TRY(pass(into.size()));
      return bytes_.read(into);
    }
    Result<void> skip(std::uint64_t bytes) override {
      SLUICE_TRY(pass(bytes));
      return bytes_.skip(bytes);
    }

   private:
    Result<void> pass(std::uint64_t bytes) {
      at_ += bytes;
      return stream_.end_ && at_ > *stream_.end_ ? Result<void>(make_error(EIO, "read")) : Result<void>();
    }

    ByteStream& bytes_;
    const Stream& stream_;
    std::uint64_t at_ = 0;
  };

  DirectorySource directory_;
  std::set<std::string> lost_;
  std::optional<std::uint64_t> end_;  // of what can be read of each file
  std::function<void()> before_read_;
};

Result<std::vector<SetDifference>> differences(const ImageSource& older, const ImageSource& newer) {
  SLUICE_TRY_ASSIGN(const Checkpoint before, read_checkpoint(older));
  SLUICE_TRY_ASSIGN(const Checkpoint after, read_checkpoint(newer));
  return compare({&older, &before}, {&newer, &after});
}
Result<std::vector<SetDifference>> differences(int older, int newer) {
  return differences(DirectorySource(older), DirectorySource(newer));
}

Change sums_by(const SumMethod& method, std::uint64_t block_bytes = kMiB) {
  return [=](Sidecar& sidecar, const PagesSet& set) {
    sidecar.tables = unit_tables(std::move(set.layout(kMiB)).value(), block_bytes, method);
  };
}

TEST(PlantedDiff, SumsThatCannotBeComparedAreNotBelieved) {
  struct Side {
    std::vector<std::uint64_t> sizes;
    Change change;
    std::uint64_t first_address = 0;  // 0: the usual one
  };
  const Side usual{{kBoBytes}, nullptr};
  const Side other_cuts{{kBoBytes}, sums_by(method_of(1), 64 * kKiB)};
  const Side other_secret{{kBoBytes}, sums_by(method_of(2))};
  const Side no_secret{{kBoBytes}, sums_by(SumMethod())};
  const Side others{{kBoBytes + kMiB}, sums_by(SumMethod())};
  const Side more{{kBoBytes, 4096}, sums_by(SumMethod())};
  const Side elsewhere{{kBoBytes}, sums_by(SumMethod()), 0x7000000000};
  struct Case {
    Side older, newer;
    std::uint64_t new_bytes = 0;  // of BOs that the older one does not have
  };
  const std::vector<Case> cases = {{usual, other_cuts},
                                   {usual, other_secret},
                                   {other_secret, usual},
                                   {no_secret, usual},
                                   {no_secret, no_secret},
                                   {others, no_secret, kBoBytes},
                                   {no_secret, others, kBoBytes + kMiB},
                                   {more, no_secret},
                                   {no_secret, more, 4096},
                                   {elsewhere, no_secret, kBoBytes}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const test::TempDir older, newer;
    const auto make = [](const test::TempDir& dir, const Side& side) {
      KfdImage image = image_of(id_of(1), 1, side.sizes);
      if (side.first_address != 0) image.bos[0].addr = side.first_address;
      plant(dir.fd(), image, side.change);
      make_pages(dir.fd(), image);
    };
    ASSERT_NO_FATAL_FAILURE(make(older, cases[i].older));
    ASSERT_NO_FATAL_FAILURE(make(newer, cases[i].newer));
    const auto found = differences(older.fd(), newer.fd());
    ASSERT_TRUE(found.ok()) << found.error().what;
    ASSERT_EQ(found->size(), 1U);
    EXPECT_FALSE(found->front().by_sums);
    EXPECT_TRUE(found->front().sums_differ);
    EXPECT_EQ(found->front().total().zero, found->front().total().bytes());
    std::uint64_t new_bytes = 0;
    for (const BoDifference& bo : found->front().bos) new_bytes += bo.is_new ? bo.bo.bytes : 0;
    EXPECT_EQ(new_bytes, cases[i].new_bytes);
  }
}

// Contents that a chain has elsewhere are read from there, and contents made to have one sum are not one.
TEST(PlantedDiff, ContentsOfAChainAreReadFromItsParentAndComparedWithASecret) {
  const auto [one, other] = test::contents_with_one_sum(static_cast<std::size_t>(kBoBytes));
  const test::TempDir older, newer;
  const KfdImage image = image_of(id_of(2));
  const PagesSet set = pages_of(image).front();
  const auto write = [&](int dir_fd, const std::string& name, const test::Bytes& contents) {
    ASSERT_NO_FATAL_FAILURE(make_pages(dir_fd, name, kHeaderBytes + kBoBytes));
    const UniqueFd file(::openat(dir_fd, name.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(file.get(), contents.data(), contents.size(), kHeaderBytes),
              static_cast<ssize_t>(contents.size()));
  };
  ASSERT_NO_FATAL_FAILURE(plant(older.fd(), image_of(id_of(1)), [](Sidecar& sidecar, const PagesSet&) {
    for (SumTable& table : sidecar.tables) table.method = method_of(2);
  }));
  ASSERT_NO_FATAL_FAILURE(write(older.fd(), set.pages_name(kId, 0), one));
  ASSERT_NO_FATAL_FAILURE(plant_on(newer.fd(), id_of(1), image));
  ASSERT_NO_FATAL_FAILURE(
      make_pages(newer.fd(), set.pages_name(kId, 0, Lacks::Parents), kHeaderBytes + kBoBytes));
  const UniqueFd parent = make_parent(newer.fd());
  ASSERT_NO_FATAL_FAILURE(plant(parent.get(), image_of(id_of(1))));
  for (const bool same : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(write(parent.get(), set.pages_name(kId, 0), same ? one : other));
    const auto found = differences(older.fd(), newer.fd());
    ASSERT_TRUE(found.ok()) << found.error().what;
    EXPECT_TRUE(found->front().sums_differ);
    EXPECT_EQ(found->front().total().changed > 0, !same);
    EXPECT_EQ(found->front().total().bytes(), kBoBytes);
  }
  const DirectorySource first(older.fd());
  EXPECT_TRUE(has(differences(first, Stream(newer.fd(), {}, std::nullopt)).error(), "[SL-T95]"));
  ASSERT_EQ(::unlinkat(parent.get(), set.pages_name(kId, 0).c_str(), 0), 0);
  EXPECT_EQ(differences(older.fd(), newer.fd()).error().err, ENOENT);
}

TEST(PlantedDiff, MemoryOfAnotherGpuOrProcessIsOther) {
  const test::TempDir older, newer;
  const KfdImage before = image_of(id_of(1), 2);
  ASSERT_NO_FATAL_FAILURE(plant(older.fd(), before));
  KfdImage after = before;
  after.bos.erase(after.bos.begin());  // the first GPU's
  ASSERT_NO_FATAL_FAILURE(plant(newer.fd(), after));
  const auto found = differences(older.fd(), newer.fd());
  ASSERT_TRUE(found.ok()) << found.error().what;
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[0].total().equal, kBoBytes);
  EXPECT_EQ((*found)[1].gone_bytes, kBoBytes);
  after.pid = 8;
  ASSERT_NO_FATAL_FAILURE(plant(newer.fd(), after));
  ASSERT_NO_FATAL_FAILURE(make_pages(newer.fd(), after));
  const auto others = differences(older.fd(), newer.fd());
  ASSERT_TRUE(others.ok()) << others.error().what;
  ASSERT_EQ(others->size(), 3U);
  EXPECT_TRUE((*others)[0].bos[0].is_new);
}

// At the same address.
TEST(PlantedDiff, ABoOfAnotherSizeIsNewByUnitsToo) {
  const test::TempDir older, newer;
  ASSERT_NO_FATAL_FAILURE(plant(older.fd(), image_of(id_of(1), 1, {kMiB, kBoBytes})));
  ASSERT_NO_FATAL_FAILURE(plant(newer.fd(), image_of(id_of(2), 1, {kBoBytes, kBoBytes})));
  const auto found = differences(older.fd(), newer.fd());
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_TRUE(found->front().by_sums);
  EXPECT_TRUE(found->front().bos[0].is_new);
  EXPECT_FALSE(found->front().bos[1].is_new);
  EXPECT_EQ(found->front().gone_bytes, kMiB);
}

// The first BO is gone, so contents are read from the middle of the older one's file.
TEST(PlantedDiff, OnlyWhatBothHaveIsReadOfTheOlderOne) {
  const test::TempDir older, newer;
  KfdImage before = image_of(id_of(1), 1, {kMiB, kBoBytes});
  KfdImage after = before;
  after.bos.erase(after.bos.begin());
  ASSERT_NO_FATAL_FAILURE(plant(older.fd(), before, sums_by(SumMethod())));
  ASSERT_NO_FATAL_FAILURE(plant(newer.fd(), after, sums_by(SumMethod())));
  ASSERT_NO_FATAL_FAILURE(make_pages(older.fd(), before));
  ASSERT_NO_FATAL_FAILURE(make_pages(newer.fd(), after));
  const std::string name = pages_of(after).front().pages_name(kId, 0);
  test::flip_byte(older.path() + "/" + name, kHeaderBytes + kMiB);
  test::flip_byte(newer.path() + "/" + name, kHeaderBytes);
  test::flip_byte(newer.path() + "/" + name, kHeaderBytes + kMiB);
  const auto found = differences(older.fd(), newer.fd());
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_EQ(found->front().total().equal, kMiB);
  EXPECT_EQ(found->front().total().changed, kMiB);
  EXPECT_EQ(found->front().gone_bytes, kMiB);
  // As a stream that fails before that BO, within it, or that has lost the file meanwhile.
  const DirectorySource second(newer.fd());
  for (const std::uint64_t end : {kMiB / 2, kMiB + kMiB / 2})
    EXPECT_EQ(differences(Stream(older.fd(), {}, end), second).error().err, EIO) << end;
  EXPECT_EQ(differences(DirectorySource(older.fd()), Stream(newer.fd(), {}, 0)).error().err, EIO);
  for (const bool is_older : {false, true}) {
    const Stream first(older.fd(), is_older ? std::set<std::string>{name} : std::set<std::string>{});
    const Stream last(newer.fd(), is_older ? std::set<std::string>{} : std::set<std::string>{name});
    const auto lost = differences(first, last);
    ASSERT_FALSE(lost.ok());
    EXPECT_TRUE(has(lost.error(), "[SL-T10]")) << lost.error().what;
  }
}

TEST(PlantedDiff, DamageOfEitherIsNamed) {
  const KfdImage image = image_of(id_of(1));
  const std::string sums = pages_of(image).front().sums_name(kId);
  const std::string pages = pages_of(image).front().pages_name(kId, 0);
  for (const bool is_older : {true, false}) {
    const test::TempDir one, other;
    const auto differ = [&] {
      return is_older ? differences(one.fd(), other.fd()) : differences(other.fd(), one.fd());
    };
    ASSERT_NO_FATAL_FAILURE(plant(one.fd(), image));
    ASSERT_NO_FATAL_FAILURE(plant(other.fd(), image, sums_by(SumMethod())));
    ASSERT_NO_FATAL_FAILURE(make_pages(one.fd(), image));
    ASSERT_NO_FATAL_FAILURE(make_pages(other.fd(), image));
    ASSERT_TRUE(differ().ok());
    ASSERT_NO_FATAL_FAILURE(make_pages(one.fd(), pages, 100));
    EXPECT_EQ(differ().error().err, EBADMSG);
    ASSERT_EQ(::unlinkat(one.fd(), pages.c_str(), 0), 0);
    EXPECT_EQ(differ().error().err, ENOENT);
    test::flip_byte(one.path() + "/" + sums, 20);
    EXPECT_EQ(differ().error().err, EBADMSG);
  }
}

struct Found {
  std::vector<VerifyProblem> problems;
  VerifyTotals totals;
  std::vector<std::string> notes;
};
Found verify(const ImageSource& source, std::uint64_t chunk_bytes = kMiB) {
  const Checkpoint checkpoint = std::move(read_checkpoint(source)).value();
  const auto running = std::move(Verification::start(source, checkpoint, {chunk_bytes, 4 * kMiB})).value();
  while (!running->wait_for(std::chrono::hours(1))) {
  }
  return {running->take_problems(), running->totals(), running->take_notes()};
}

// The files are holes, as their sums say.
void plant_zeros(int dir_fd, const KfdImage& image) {
  plant(dir_fd, image, [](Sidecar& sidecar, const PagesSet& set) {
    ZeroSums zeros;
    SumTable& table = sidecar.tables[0];
    const ImageLayout layout = std::move(set.layout(kMiB)).value();
    each_unit(layout, UnitIndex(layout, table.block_bytes), 0, [&](const SumRange& unit) {
      table.sums[static_cast<std::size_t>(unit.index)] = zeros.of(table.method, unit.end - unit.begin);
    });
  });
  make_pages(dir_fd, image);
}

TEST(PlantedVerify, AStreamThatLosesAFileOrFailsIsToldOnce) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_zeros(dir.fd(), image_of(id_of(1), 2)));
  EXPECT_EQ(verify(Stream(dir.fd())).problems.size(), 0U);
  const std::string second = pages_of(image_of(id_of(1), 2))[1].pages_name(kId, 0);
  const auto lost = verify(Stream(dir.fd(), {second})).problems;
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].file, second);
  EXPECT_EQ(lost[0].kind, ProblemKind::Missing);
  EXPECT_NE(lost[0].what.find("[SL-T11]"), std::string::npos) << lost[0].what;
  const auto failed = verify(Stream(dir.fd(), {}, kMiB + 100)).problems;
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_EQ(failed[0].kind, ProblemKind::Unreadable);
  EXPECT_EQ(failed[0].file_offset, kMiB);
  EXPECT_EQ(failed[1].file, second);
  EXPECT_EQ(failed[1].length, 0U);
}

TEST(PlantedVerify, WhereThereIsNoMemoryForAChunkNothingIsCalledDamaged) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_zeros(dir.fd(), image_of(id_of(1), 2)));
  const DirectorySource files(dir.fd());
  const Stream stream(dir.fd());
  for (const ImageSource* source :
       {static_cast<const ImageSource*>(&files), static_cast<const ImageSource*>(&stream)}) {
    const Found found = verify(*source, kNoMemoryHasIt);
    EXPECT_EQ(found.totals.unread, 2U);
    EXPECT_EQ(found.totals.problems, 2U);
    for (const VerifyProblem& problem : found.problems) EXPECT_EQ(problem.err, ENOMEM) << problem.what;
  }
}

// Two processes on one GPU, where there is no io_uring.
TEST(PlantedVerify, WhatIsToBeSaidOfAGpuIsSaidOnce) {
  const test::TempDir dir;
  KfdImage image = image_of(id_of(1));
  ASSERT_NO_FATAL_FAILURE(plant_zeros(dir.fd(), image));
  image.id = kId + 1;
  image.pid = 8;
  ASSERT_NO_FATAL_FAILURE(plant_zeros(dir.fd(), image));
  RenderImage empty = render_image_of(id_of(1), {});
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), render_image_name(kId), pack_render_image(empty, kNoKeys)));
  Found found;
  bool is_refused = false;
  std::thread([&] {
    is_refused = test::refuse_system_call(SYS_io_uring_setup, ENOSYS);
    found = verify(DirectorySource(dir.fd()));
  }).join();
  ASSERT_TRUE(is_refused);
  EXPECT_EQ(found.problems.size(), 0U);
  EXPECT_EQ(found.totals.files, 2U);
  EXPECT_EQ(found.notes.size(), 1U);
}

// For `run`, and its threads: nothing is read from the second MiB of a file, or there is none.
template <class Run>
void without_second_mib(Run run) {
  bool are_refused = false;
  std::thread([&] {
    are_refused = test::refuse_system_call(SYS_io_uring_setup, ENOSYS) &&
                  test::refuse_system_call(SYS_pread64, EIO, {{.argument = 3, .bits = kMiB}});
    run();
  }).join();
  ASSERT_TRUE(are_refused);
}

TEST(PlantedVerify, WhatCannotBeReadIsNotCalledCorruptToo) {
  const test::TempDir dir;
  const RenderImage image = render_image_of(id_of(1), {kBoBytes, kBoBytes});
  const PagesSet set = pages_of(image);
  const Sidecar sidecar = sidecar_of(set, id_of(1));  // no sum is right
  for (std::uint32_t file = 0; file < 2; ++file) {
    ASSERT_NO_FATAL_FAILURE(write_pages(dir, set.pages_name(kId, file), kBoBytes));
  }
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), set.sums_name(kId), pack_sidecar(sidecar, kNoKeys)));
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), render_image_name(kId), pack_render_image(image, kNoKeys)));
  Found found;
  ASSERT_NO_FATAL_FAILURE(without_second_mib([&] { found = verify(DirectorySource(dir.fd())); }));
  // Of each file: its length, the 16 units before the MiB that cannot be read, that MiB, and what is after
  // it.
  EXPECT_EQ(found.totals.problems, 2 * (1U + 16 + 1 + 1));
  EXPECT_EQ(found.totals.unread, 2U);
  for (const VerifyProblem& problem : found.problems)
    EXPECT_EQ(problem.kind == ProblemKind::Unreadable, problem.file_offset == kMiB) << problem.file_offset;
}

// Whoever asked for it has gone meanwhile.
TEST(PlantedVerify, EndsWhenNobodyWaits) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant_zeros(dir.fd(), image_of(id_of(1), 8)));
  const DirectorySource files(dir.fd());
  const Checkpoint checkpoint = std::move(read_checkpoint(files)).value();
  EXPECT_TRUE(Verification::start(files, checkpoint, {kMiB, 4 * kMiB}).ok());
  std::promise<void> began, go_on;
  std::shared_future<void> may_go_on = go_on.get_future().share();
  std::atomic<bool> is_first{true};
  const Stream stream(dir.fd(), {}, {}, [&] {
    if (is_first.exchange(false)) began.set_value();
    may_go_on.wait();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
  });
  auto verification = Verification::start(stream, checkpoint, {kMiB, 4 * kMiB});
  ASSERT_TRUE(verification.ok());
  began.get_future().wait();
  go_on.set_value();
  verification->reset();
}

TEST(PlantedVerify, AParentWithoutTheFileIsNamed) {
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(2)), [](Sidecar& sidecar, const PagesSet& set) {
    lean(sidecar, set, id_of(1), "amdgpu-pages-1-9999.img");
  }));
  ASSERT_NO_FATAL_FAILURE(plant(make_parent(dir.fd()).get(), image_of(id_of(1))));
  const auto problems = verify(DirectorySource(dir.fd())).problems;
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].kind, ProblemKind::BadFile);
  EXPECT_NE(problems[0].what.find("amdgpu-pages-1-9999.img is not there"), std::string::npos)
      << problems[0].what;
  const auto in_stream = verify(Stream(dir.fd())).problems;
  ASSERT_EQ(in_stream.size(), 1U);
  EXPECT_NE(in_stream[0].what.find("[SL-T12]"), std::string::npos) << in_stream[0].what;
}

TEST(PlantedFlatten, WhatHasNoParentIsLeftAsItIs) {
  const test::TempDir dir;
  KfdImage image = image_of(id_of(1));
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image));
  RenderImage render = render_image_of(id_of(1));
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), pages_of(render).sums_name(kId),
                               pack_sidecar(sidecar_of(pages_of(render), id_of(1)), kNoKeys)));
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), render_image_name(kId), pack_render_image(render, kNoKeys)));
  const auto flat = flatten_in(dir.fd());
  ASSERT_TRUE(flat.ok()) << flat.error().what;
  EXPECT_EQ(flat->files, 0U);
  // A dump without sums.
  image.has_sums = render.has_sums = false;
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), kfd_image_name(kId), pack_kfd_image(image, kNoKeys)));
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), render_image_name(kId), pack_render_image(render, kNoKeys)));
  for (const std::string& name : {pages_of(image).front().sums_name(kId), pages_of(render).sums_name(kId)})
    ASSERT_EQ(::unlinkat(dir.fd(), name.c_str(), 0), 0);
  const auto without = flatten_in(dir.fd());
  ASSERT_TRUE(without.ok()) << without.error().what;
  EXPECT_EQ(without->files, 0U);
  // A render file without contents has none either.
  render.bos.clear();
  ASSERT_NO_FATAL_FAILURE(save(dir.fd(), render_image_name(kId), pack_render_image(render, kNoKeys)));
  EXPECT_TRUE(flatten_in(dir.fd()).ok());
}

TEST(PlantedFlatten, WhatCannotBeMadeCompleteIsNamedAndStaysAsItWas) {
  const KfdImage image = image_of(id_of(2));
  const PagesSet set = pages_of(image).front();
  const std::uint64_t file_bytes = std::move(set.layout(kMiB)).value().file_bytes();
  struct Case {
    std::string why;
    std::function<void(const test::TempDir&)> change;
    int err = EBADMSG;
    std::uint64_t chunk_bytes = kMiB;
  };
  const std::vector<Case> cases = {
      {kfd_image_name(kId),
       [](const test::TempDir& dir) { test::flip_byte(dir.path() + "/" + kfd_image_name(kId), 20); }},
      {set.sums_name(kId),
       [&](const test::TempDir& dir) { test::flip_byte(dir.path() + "/" + set.sums_name(kId), 20); }},
      {"[SL-I19]",
       [](const test::TempDir& dir) {
         const RenderImage render = render_image_of(id_of(2));
         save(dir.fd(), render_image_name(kId), pack_render_image(render, kNoKeys));
       }},
      {"[SL-I43]",
       [](const test::TempDir& dir) {
         std::size_t parents = 0;
         plant(dir.fd(), image_of(id_of(2), 2), [&](Sidecar& sidecar, const PagesSet& each) {
           lean(sidecar, each, id_of(++parents), each.pages_name(kId, 0));
         });
       }},
      {"amdgpu-pages-1-9999.img is not there",
       [&](const test::TempDir& dir) {
         plant(dir.fd(), image, [](Sidecar& sidecar, const PagesSet& each) {
           lean(sidecar, each, id_of(1), "amdgpu-pages-1-9999.img");
         });
       }},
      {"[SL-I40]", [&](const test::TempDir& dir) { plant_on(dir.fd(), id_of(3), image); }},
      {"parent/" + set.pages_name(kId, 0), [](const test::TempDir&) {}, ENOENT},
      {"parent/" + set.pages_name(kId, 0),
       [&](const test::TempDir& dir) { make_pages(dir.fd(), "parent/" + set.pages_name(kId, 0), 100); }},
      {"[SL-C07]",
       [&](const test::TempDir& dir) {
         make_pages(dir.fd(), "parent/" + set.pages_name(kId, 0), file_bytes);
       }},
      {"is corrupt",
       [&](const test::TempDir& dir) {
         make_pages(dir.fd(), "parent/" + set.pages_name(kId, 0), file_bytes);
         const UniqueFd own(
             ::openat(dir.fd(), set.pages_name(kId, 0, Lacks::Parents).c_str(), O_WRONLY | O_CLOEXEC));
         ASSERT_EQ(::pwrite(own.get(), &kBoBytes, sizeof kBoBytes, 0), static_cast<ssize_t>(sizeof kBoBytes));
       }},
      {"",
       [&](const test::TempDir& dir) {
         make_pages(dir.fd(), "parent/" + set.pages_name(kId, 0), file_bytes);
       },
       ENOMEM, kNoMemoryHasIt},
      {"", [&](const test::TempDir& dir) { make_pages(dir.fd(), set.pages_name(kId, 0), file_bytes); },
       ENOMEM, kNoMemoryHasIt},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const test::TempDir dir;
    ASSERT_NO_FATAL_FAILURE(plant_on(dir.fd(), id_of(1), image));
    const KfdImage parent = image_of(id_of(1));
    ASSERT_NO_FATAL_FAILURE(plant(make_parent(dir.fd()).get(), parent));
    ASSERT_NO_FATAL_FAILURE(make_pages(dir.fd(), set.pages_name(kId, 0, Lacks::Parents), file_bytes));
    ASSERT_NO_FATAL_FAILURE(cases[i].change(dir));
    const test::Bytes before = dir.read(set.sums_name(kId));
    const auto flat = flatten_in(dir.fd(), cases[i].chunk_bytes);
    ASSERT_FALSE(flat.ok());
    EXPECT_EQ(flat.error().err, cases[i].err) << flat.error().what;
    EXPECT_TRUE(has(flat.error(), cases[i].why)) << flat.error().what;
    EXPECT_TRUE(dir.read(set.sums_name(kId)) == before);
    EXPECT_TRUE(dir.exists(set.pages_name(kId, 0, Lacks::Parents)));
  }
}

TEST(PlantedFlatten, WhatCannotBeReadIsNamedAndNothingChanges) {
  const test::TempDir dir;
  const KfdImage image = image_of(id_of(2));
  const PagesSet set = pages_of(image).front();
  const std::string name = set.pages_name(kId, 0);
  ASSERT_NO_FATAL_FAILURE(plant_on(dir.fd(), id_of(1), image));
  ASSERT_NO_FATAL_FAILURE(plant(make_parent(dir.fd()).get(), image_of(id_of(1))));
  ASSERT_NO_FATAL_FAILURE(write_pages(dir, set.pages_name(kId, 0, Lacks::Parents), kBoBytes));
  ASSERT_NO_FATAL_FAILURE(write_pages(dir, "parent/" + name, kBoBytes));
  for (const bool is_there : {false, true}) {
    // What an earlier run has left is read, too.
    if (is_there) {
      ASSERT_NO_FATAL_FAILURE(write_pages(dir, name, kBoBytes));
    }
    Result<FlattenTotals> flat = FlattenTotals();
    ASSERT_NO_FATAL_FAILURE(without_second_mib([&] { flat = flatten_in(dir.fd()); }));
    ASSERT_FALSE(flat.ok());
    EXPECT_TRUE(dir.exists(set.pages_name(kId, 0, Lacks::Parents)));
    if (is_there) {
      EXPECT_EQ(flat.error().err, EIO) << flat.error().what;
    }
  }
}

TEST(PlantedFlatten, ADirectoryUnderTheNameOfAFileThatGoesIsNamed) {
  const test::TempDir dir;
  const KfdImage image = image_of(id_of(1));
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image));
  const std::string name = pages_of(image).front().pages_name(kId, 0, Lacks::Parents);
  ASSERT_EQ(::mkdirat(dir.fd(), name.c_str(), 0700), 0);
  const auto flat = flatten_in(dir.fd());
  ASSERT_FALSE(flat.ok());
  EXPECT_TRUE(has(flat.error(), name)) << flat.error().what;
}

TEST(PlantedFlatten, InTheDirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const test::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(plant(dir.fd(), image_of(id_of(1))));
  ASSERT_EQ(::fchown(dir.fd(), 12345, 0), 0);
  EXPECT_TRUE(has(flatten_in(dir.fd()).error(), "[SL-T46]"));
  ASSERT_EQ(::fchown(dir.fd(), 0, 0), 0);
  ASSERT_EQ(::fchmod(dir.fd(), 0770), 0);
  EXPECT_TRUE(has(flatten_in(dir.fd()).error(), "[SL-T46]"));
}

// No image says so: unpacking refuses them.
TEST(PlantedSizes, ThatAddUpToNoFileAreRefusedByAllReaders) {
  const std::vector<std::uint64_t> sizes(3, kNoMemoryHasIt);
  const test::TempDir dir;
  const DirectorySource source(dir.fd());
  const Checkpoint none;
  Checkpoint of_kfd;
  of_kfd.kfd.push_back({kId, image_of(id_of(1), 1, sizes)});
  Checkpoint of_render;
  of_render.render.push_back({kId, render_image_of(id_of(1), sizes)});
  Checkpoint small;
  small.kfd.push_back({kId, image_of(id_of(1))});
  for (const Checkpoint* each : {&of_kfd, &of_render}) {
    EXPECT_EQ(Verification::start(source, *each, {kMiB, 4 * kMiB}).error().err, EOVERFLOW);
    EXPECT_EQ(compare({&source, &none}, {&source, each}).error().err, EOVERFLOW);
    EXPECT_EQ(compare({&source, each}, {&source, each}).error().err, EOVERFLOW);
    EXPECT_EQ(flatten_all(dir.fd(), *each, {.chunk_bytes = kMiB, .staging_bytes = 4 * kMiB}).error().err,
              EOVERFLOW);
  }
  EXPECT_EQ(compare({&source, &of_kfd}, {&source, &small}).error().err, EOVERFLOW);
}

}  // namespace
}  // namespace sluice
