// SPDX-License-Identifier: MIT
// Chains of checkpoints: what lies in which of them, and what is refused.
#include "images/chain/chain.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flatten/flatten.h"
#include "images/checkpoint.h"
#include "images/files/files.h"
#include "kfd/uapi.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/lane_thread.h"
#include "pipeline/store/file_set.h"
#include "support/clone_emulator.h"
#include "support/lane.h"
#include "support/memory_copy.h"
#include "support/refuse_system_call.h"
#include "support/rng.h"
#include "support/temp_dir.h"
#include "verify/compare.h"
#include "verify/verify.h"

namespace sluice {
namespace {

using test::BoList;
using test::Bytes;
using test::ReactorKind;
using test::Rng;

constexpr std::uint32_t kGpu = 0x5759;
constexpr int kId = 1;

// What a process has, by address.
struct Memory {
  std::vector<std::uint64_t> addresses;
  BoList bos;
};

KfdImage image_of(const Memory& memory, const DumpId& dump_id) {
  KfdImage image;
  image.pid = 7;
  image.topology.nodes.push_back({.node_id = 0, .cpu_cores_count = 1});
  image.topology.nodes.push_back(
      {.node_id = 1, .gpu_id = kGpu, .drm_render_minor = 128, .gfx_target_version = 90010});
  for (std::size_t i = 0; i < memory.bos.size(); ++i) {
    image.bos.push_back({{.addr = memory.addresses[i],
                          .bytes = memory.bos[i].size(),
                          .gpu_id = kGpu,
                          .alloc_flags = kfd::kAllocVram}});
  }
  image.dump_id = dump_id;
  image.has_sums = true;
  image.id = kId;
  return image;
}

// That of all dumps here.
SumMethod method_of_chain() {
  SumSecret secret;
  test::Rng(1).fill(std::as_writable_bytes(std::span(secret.bytes)));
  return SumMethod(secret);
}

// A dump, as the plugin writes it. `parent`: null, for a full one.
void write_dump(const test::TempDir& dir, Memory memory, const DumpId& dump_id, const Ancestor* parent) {
  const KfdImage image = image_of(memory, dump_id);
  const PagesSet set = pages_of(image).front();
  const ImageLayout layout = std::move(set.layout(kMiB)).value();
  Sidecar sidecar{
      unit_tables(layout, kSumBlockBytes, method_of_chain()), {}, set.bo_table_digest, dump_id, {}, {}};
  std::unique_ptr<ContentMatch> match;
  if (parent != nullptr) {
    match = std::make_unique<ContentMatch>(layout, sidecar.tables, parent->bos_like(set));
  }
  test::TestWorld world(ReactorKind::Threads);
  const auto lane = test::make_lane(layout, 2, world);
  FileSetSink sink(dir.fd(), {"amdgpu-pages-working.img"}, layout, lane->reactor(), {});
  test::MemoryCopy copy(Direction::Dump, layout, lane->reactor(), memory.bos);
  const auto checksum =
      std::move(make_checksum(*lane, Direction::Dump, sidecar.tables, {.match = match.get()}, nullptr, 0))
          .value();
  ASSERT_TRUE(lane->run(Route{&copy, checksum.get(), &sink}).ok());
  if (match) {
    sidecar.parents = {match->runs(0).parents};
    sidecar.parent_dump_id = parent->dump_id();
  }
  sidecar.pages_files = {set.pages_name(kId, 0, sidecar.is_partial(0) ? Lacks::Parents : Lacks::Nothing)};
  sink.set_names(sidecar.pages_files);
  ASSERT_TRUE(sink.commit().ok());
  ASSERT_TRUE(write_image(dir.fd(), set.sums_name(kId), pack_sidecar(sidecar, ImageKeys()), false).ok());
  ASSERT_TRUE(write_image(dir.fd(), kfd_image_name(kId), pack_kfd_image(image, ImageKeys()), false).ok());
}

// What a restore gets.
Result<BoList> read_back(const test::TempDir& dir) {
  const DirectorySource source(dir.fd());
  SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint(source));
  if (!checkpoint.faults().empty()) return checkpoint.faults().front();
  const KfdImage& image = checkpoint.kfd.front().image;
  const PagesSet set = pages_of(image).front();
  SLUICE_TRY_ASSIGN(const ImageLayout layout, set.layout(2 * kMiB));
  SLUICE_TRY_ASSIGN(auto sidecar, read_sidecar(source, kId, set, layout, *image.dump_id));
  SLUICE_TRY_ASSIGN(const auto chain, Chain::open(dir.fd(), sidecar->needs(), ImageKeys()));
  SLUICE_TRY_ASSIGN(std::vector<ExtentMap> maps,
                    chain->resolve(dir.fd(), chain->directories(), layout, *sidecar));
  test::TestWorld world(ReactorKind::Threads);
  const auto lane = test::make_lane(layout, 2, world);
  ExtentSource files(std::move(maps), layout, lane->reactor(), {.io_mode = IoMode::Uncached});
  BoList bos;
  for (const PagesBo& bo : set.bos) bos.emplace_back(bo.bytes, std::byte{0x5a});
  test::MemoryCopy copy(Direction::Restore, layout, lane->reactor(), bos);
  SLUICE_TRY_ASSIGN(const auto checksum,
                    make_checksum(*lane, Direction::Restore, sidecar->tables, {}, nullptr, 0));
  SLUICE_TRY(lane->run(Route{&copy, checksum.get(), &files}.towards(Direction::Restore)));
  return bos;
}

class ChainTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kDumps = 4;

  ChainTest() {
    memory_.addresses = {0x1000000, 0x2000000, 0x3000000};
    memory_.bos = {Bytes(3 * kMiB), Bytes(8192), Bytes(5 * kMiB + 4096)};
    for (Bytes& bo : memory_.bos) rng_.fill(bo);
    std::fill_n(memory_.bos[2].begin(), 2 * kMiB, std::byte{0});
  }

  static DumpId id_of(std::size_t dump) { return DumpId{static_cast<std::uint8_t>(dump + 1)}; }
  void link(std::size_t from, std::size_t to) {
    ::unlinkat(dirs_[from].fd(), kParentLink, 0);
    ASSERT_EQ(::symlinkat(("../" + name_of(to)).c_str(), dirs_[from].fd(), kParentLink), 0);
  }
  std::string name_of(std::size_t dump) {
    return dirs_[dump].path().substr(dirs_[dump].path().rfind('/') + 1);
  }

  // Each the parent of the next; the process has worked in between. `was_[i]`: its memory at dump i.
  void dump_all() {
    for (std::size_t i = 0; i < kDumps; ++i) {
      std::unique_ptr<Ancestor> parent;
      if (i > 0) {
        work();
        link(i, i - 1);
        auto opened = Ancestor::open(dirs_[i].fd(), kParentLink, ImageKeys());
        ASSERT_TRUE(opened.ok()) << opened.error().what;
        parent = std::move(*opened);
      }
      ASSERT_NO_FATAL_FAILURE(write_dump(dirs_[i], memory_, id_of(i), parent.get()));
      was_.push_back(memory_);
    }
  }
  void work() {
    const auto changed = std::span(*(memory_.bos.end() - 3)).subspan(rng_.between(0, 2) * kMiB, 100'000);
    rng_.fill(changed);
    std::fill_n(memory_.bos.back().begin() + 4 * kMiB, 200'000,
                std::byte{static_cast<unsigned char>(was_.size() % 2)});
    if (was_.size() == 2) {  // a small BO with a low number comes, and moves all others
      memory_.addresses.insert(memory_.addresses.begin(), 0x800000);
      memory_.bos.insert(memory_.bos.begin(), Bytes(12288, std::byte{9}));
    }
  }
  std::uint64_t disk_bytes(std::size_t dump) {
    std::uint64_t bytes = 0;
    for (const std::string& name : dirs_[dump].names()) {
      struct stat status {};
      if (::fstatat(dirs_[dump].fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          name.find("sums") == name.npos)
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }

  Rng rng_{11};
  Memory memory_;
  std::vector<Memory> was_;
  test::TempDir dirs_[kDumps];
};

TEST_F(ChainTest, EachOfFourIsReadBackAndWritesWhatHasChanged) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  for (std::size_t i = 0; i < kDumps; ++i) {
    const auto back = read_back(dirs_[i]);
    ASSERT_TRUE(back.ok()) << i << ": " << back.error().what;
    ASSERT_EQ(back->size(), was_[i].bos.size());
    for (std::size_t bo = 0; bo < back->size(); ++bo) {
      const auto [is, was] = std::mismatch((*back)[bo].begin(), (*back)[bo].end(), was_[i].bos[bo].begin());
      EXPECT_EQ(is - (*back)[bo].begin(), static_cast<long>(was_[i].bos[bo].size()))
          << "dump " << i << ", BO " << bo;
    }
  }
  EXPECT_TRUE(dirs_[0].exists("amdgpu-pages-1-5759.img"));
  EXPECT_TRUE(dirs_[3].exists("amdgpu-delta-1-5759.img"));
  EXPECT_FALSE(dirs_[3].exists("amdgpu-pages-1-5759.img"));
  EXPECT_GT(disk_bytes(0), 6 * kMiB);
  for (std::size_t i = 1; i < kDumps; ++i) EXPECT_LT(disk_bytes(i), 2 * kMiB) << i;
}

std::vector<VerifyProblem> problems_of(const test::TempDir& dir, VerifyTotals* totals = nullptr) {
  const DirectorySource source(dir.fd());
  const Checkpoint checkpoint = std::move(read_checkpoint(source)).value();
  const auto verification =
      std::move(Verification::start(source, checkpoint, {.chunk_bytes = kMiB, .staging_bytes = 4 * kMiB}))
          .value();
  while (!verification->wait_for(std::chrono::seconds(1))) {
  }
  if (totals != nullptr) *totals = verification->totals();
  return verification->take_problems();
}

TEST_F(ChainTest, VerifyReadsAllThatACheckpointNeedsAndNamesTheFileThatIsBad) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  VerifyTotals totals;
  EXPECT_TRUE(problems_of(dirs_[3], &totals).empty());
  EXPECT_GT(totals.bytes, 8 * kMiB);
  Bytes pages = dirs_[0].read("amdgpu-pages-1-5759.img");
  pages[6 * kMiB + 208'400] ^= std::byte{1};
  dirs_[0].write("amdgpu-pages-1-5759.img", pages);
  ASSERT_EQ(::fchmodat(dirs_[0].fd(), "amdgpu-pages-1-5759.img", 0600, 0), 0);
  const auto problems = problems_of(dirs_[3]);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].kind, ProblemKind::BadBlock);
  EXPECT_EQ(problems[0].file, "parent/parent/parent/amdgpu-pages-1-5759.img");
  EXPECT_LE(problems[0].file_offset, 6 * kMiB + 208'400);
  EXPECT_GT(problems[0].file_offset + problems[0].length, 6 * kMiB + 208'400);
  ::unlinkat(dirs_[3].fd(), kParentLink, 0);
  const auto missing = problems_of(dirs_[3]);
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].kind, ProblemKind::Missing);
}

// From sums alone, whatever has moved: what the newer one of the two has written.
TEST_F(ChainTest, DiffTellsWhatHasChangedWithoutContents) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  ::unlinkat(dirs_[3].fd(), "amdgpu-delta-1-5759.img", 0);
  ::unlinkat(dirs_[2].fd(), "amdgpu-delta-1-5759.img", 0);
  const DirectorySource old_source(dirs_[1].fd());
  const DirectorySource new_source(dirs_[2].fd());
  const Checkpoint older = std::move(read_checkpoint(old_source)).value();
  const Checkpoint newer = std::move(read_checkpoint(new_source)).value();
  const auto found = compare({&old_source, &older}, {&new_source, &newer});
  ASSERT_TRUE(found.ok()) << found.error().what;
  ASSERT_EQ(found->size(), 1U);
  EXPECT_TRUE(found->front().by_sums);
  ASSERT_EQ(found->front().bos.size(), 4U);
  EXPECT_TRUE(found->front().bos[0].is_new);
  EXPECT_EQ(found->front().bos[0].bytes.changed, 12288U);
  EXPECT_EQ(found->front().bos[2].bytes.equal, 8192U);
  const Difference total = found->front().total();
  EXPECT_EQ(total.bytes(), 8 * kMiB + 8192 + 4096 + 12288);
  EXPECT_GE(total.zero, 2 * kMiB);
  EXPECT_LT(total.changed, 2 * kMiB);
}

TEST_F(ChainTest, AMissingMemberIsNamed) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  ::unlinkat(dirs_[1].fd(), kParentLink, 0);
  const auto back = read_back(dirs_[3]);
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().err, ENOENT);
  EXPECT_NE(back.error().what.find("parent/parent/parent"), std::string::npos) << back.error().what;
  EXPECT_TRUE(read_back(dirs_[0]).ok());
}

TEST_F(ChainTest, AnExchangedMemberIsNamed) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  link(3, 0);
  const auto back = read_back(dirs_[3]);
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().err, EBADMSG);
  EXPECT_NE(back.error().what.find("[SL-I40]"), std::string::npos) << back.error().what;
}

TEST_F(ChainTest, CyclesAndTheDirectoryItselfAreRefused) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  link(1, 3);
  EXPECT_EQ(read_back(dirs_[3]).error().err, ELOOP);
  link(3, 3);
  EXPECT_EQ(read_back(dirs_[3]).error().err, ELOOP);
}

TEST_F(ChainTest, WhatOthersMayWriteOrOwnIsNotRead) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  ASSERT_EQ(::chmod(dirs_[1].path().c_str(), 0777), 0);
  EXPECT_EQ(read_back(dirs_[3]).error().err, EACCES);
  ASSERT_EQ(::chmod(dirs_[1].path().c_str(), 0755), 0);
  EXPECT_TRUE(read_back(dirs_[3]).ok());
  ASSERT_EQ(::fchmodat(dirs_[1].fd(), "amdgpu-delta-1-5759.img", 0644, 0), 0);
  EXPECT_EQ(read_back(dirs_[3]).error().err, EACCES);
  ASSERT_EQ(::fchmodat(dirs_[1].fd(), "amdgpu-delta-1-5759.img", 0600, 0), 0);
  if (::geteuid() != 0) return;
  ASSERT_EQ(::fchownat(dirs_[1].fd(), "amdgpu-sums-1-5759.img", 12345, 0, 0), 0);
  EXPECT_EQ(read_back(dirs_[3]).error().err, EACCES);
}

TEST_F(ChainTest, ADamagedByteOfAnyMemberIsFound) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  Bytes pages = dirs_[0].read("amdgpu-pages-1-5759.img");
  pages[6 * kMiB + 208'400] ^= std::byte{1};  // of the last BO; has not changed since
  dirs_[0].write("amdgpu-pages-1-5759.img", pages);
  ASSERT_EQ(::fchmodat(dirs_[0].fd(), "amdgpu-pages-1-5759.img", 0600, 0), 0);
  for (std::size_t i = 1; i < kDumps; ++i) EXPECT_EQ(read_back(dirs_[i]).error().err, EBADMSG) << i;
  ::unlinkat(dirs_[0].fd(), "amdgpu-sums-1-5759.img", 0);
  EXPECT_FALSE(read_back(dirs_[1]).ok());
}

TEST_F(ChainTest, AShorterPagesFileOfAMemberIsNamed) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  Bytes pages = dirs_[0].read("amdgpu-pages-1-5759.img");
  pages.pop_back();
  dirs_[0].write("amdgpu-pages-1-5759.img", pages);
  ASSERT_EQ(::fchmodat(dirs_[0].fd(), "amdgpu-pages-1-5759.img", 0600, 0), 0);
  const auto back = read_back(dirs_[3]);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().what.find("parent/parent/parent/amdgpu-pages-1-5759.img"), std::string::npos)
      << back.error().what;
}

// Sums that a planted parent brings along are not those that the child has.
TEST_F(ChainTest, OtherContentsUnderTheSameIdAreRefused) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  Memory other = was_[0];
  rng_.fill(other.bos[2]);
  ASSERT_NO_FATAL_FAILURE(write_dump(dirs_[0], other, id_of(0), nullptr));
  const auto back = read_back(dirs_[1]);
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().err, EBADMSG);
  EXPECT_NE(back.error().what.find("is not the checkpoint that this one was made from"), std::string::npos)
      << back.error().what;
}

// At the same address. The first BO is always the parent's.
TEST_F(ChainTest, ABoThatHasGrownOrShrunkIsWrittenAnew) {
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> sizes = {
      {8192, 5 * kMiB + 4096}, {4096, 5 * kMiB + 64 * kKiB}, {64 * kKiB + 4096, kMiB}, {64 * kKiB, kMiB + 1}};
  for (std::size_t i = 0; i < kDumps; ++i) {
    memory_.bos[1].resize(sizes[i].first, std::byte{7});
    memory_.bos[2].resize(sizes[i].second, std::byte{8});
    std::unique_ptr<Ancestor> parent;
    if (i > 0) {
      link(i, i - 1);
      parent = std::move(Ancestor::open(dirs_[i].fd(), kParentLink, ImageKeys())).value();
    }
    ASSERT_NO_FATAL_FAILURE(write_dump(dirs_[i], memory_, id_of(i), parent.get()));
    const auto back = read_back(dirs_[i]);
    ASSERT_TRUE(back.ok()) << back.error().what;
    EXPECT_TRUE(*back == memory_.bos);
    if (i > 0) {
      EXPECT_LT(disk_bytes(i), disk_bytes(0) - 2 * kMiB);
    }
  }
}

TEST_F(ChainTest, ADumpWithoutSumsIsNobodysParent) {
  ASSERT_NO_FATAL_FAILURE(write_dump(dirs_[0], memory_, id_of(0), nullptr));
  link(1, 0);
  KfdImage image = image_of(memory_, id_of(0));
  const std::string sums_name = pages_of(image).front().sums_name(kId);
  ASSERT_EQ(::unlinkat(dirs_[0].fd(), sums_name.c_str(), 0), 0);
  image.has_sums = false;
  ASSERT_TRUE(write_image(dirs_[0].fd(), kfd_image_name(kId), pack_kfd_image(image, {}), false).ok());
  EXPECT_EQ(Ancestor::open(dirs_[1].fd(), kParentLink, ImageKeys()).error().err, ENODATA);
}

Result<FlattenTotals> flatten_in(const test::TempDir& dir, std::uint64_t* most_done = nullptr,
                                 const CloneCall& call = clone_range) {
  const DirectorySource source(dir.fd());
  SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint(source));
  const FlattenOptions options{.chunk_bytes = kMiB,
                               .staging_bytes = 4 * kMiB,
                               .clone = call,
                               .progress = [&](std::uint64_t done, std::uint64_t total) {
                                 EXPECT_LE(done, total);
                                 if (most_done != nullptr) *most_done = std::max(*most_done, done);
                               }};
  FlattenTotals totals;
  SLUICE_TRY_ASSIGN(auto thread, LaneThread::start("flatten", [&]() -> Result<void> {
                      SLUICE_TRY_ASSIGN(totals, flatten(source, checkpoint, options));
                      return {};
                    }));
  SLUICE_TRY(thread.join());
  return totals;
}

// Under the name of the flat file there may be anything: what is not the file itself is made anew.
TEST_F(ChainTest, FlattenTakesAFileThatIsThereOnlyIfItIsWhole) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  const std::string name = "amdgpu-pages-1-5759.img", delta = "amdgpu-delta-1-5759.img";
  const std::string sums = "amdgpu-sums-1-5759.img";
  const Bytes own = dirs_[3].read(delta);
  const Bytes own_sums = dirs_[3].read(sums);
  const auto write = [&](const std::string& file, const Bytes& bytes, mode_t mode = 0600) {
    dirs_[3].write(file, bytes);
    ASSERT_EQ(::fchmodat(dirs_[3].fd(), file.c_str(), mode, 0), 0);
  };
  std::uint64_t most_done = 0;
  const auto first = flatten_in(dirs_[3], &most_done);
  ASSERT_TRUE(first.ok()) << first.error().what;
  EXPECT_EQ(first->files, 1U);
  EXPECT_GT(first->written_bytes, 0U);
  EXPECT_EQ(most_done, first->bytes);
  EXPECT_FALSE(dirs_[3].exists(delta));
  const Bytes whole = dirs_[3].read(name);

  Bytes damaged = whole;
  damaged[3 * kMiB] ^= std::byte{1};
  Bytes shorter = whole;
  shorter.pop_back();
  struct Case {
    const Bytes& bytes;
    mode_t mode = 0600;
    bool is_taken = false;
  };
  for (const Case& each : {Case{whole, 0600, true}, Case{whole, 0644}, Case{damaged}, Case{shorter}}) {
    ASSERT_NO_FATAL_FAILURE(write(delta, own));
    ASSERT_NO_FATAL_FAILURE(write(sums, own_sums));
    ASSERT_NO_FATAL_FAILURE(write(name, each.bytes, each.mode));
    const auto again = flatten_in(dirs_[3]);
    ASSERT_TRUE(again.ok()) << again.error().what;
    EXPECT_EQ(again->files, 1U);
    EXPECT_EQ(again->written_bytes == 0, each.is_taken);
    EXPECT_TRUE(dirs_[3].read(name) == whole);
    EXPECT_FALSE(dirs_[3].exists(delta));
  }
  ::unlinkat(dirs_[3].fd(), kParentLink, 0);
  const auto back = read_back(dirs_[3]);
  ASSERT_TRUE(back.ok()) << back.error().what;
  EXPECT_TRUE(*back == was_[3].bos);
}

// At any step: with the flat file to be made, and with one that is there.
TEST_F(ChainTest, ADiskThatFailsLeavesAFlattenedCheckpointWhole) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  const std::string name = "amdgpu-pages-1-5759.img", delta = "amdgpu-delta-1-5759.img";
  const std::string sums = "amdgpu-sums-1-5759.img";
  const Bytes own = dirs_[3].read(delta), own_sums = dirs_[3].read(sums);
  ASSERT_TRUE(flatten_in(dirs_[3]).ok());
  const Bytes whole = dirs_[3].read(name);
  for (const bool is_there : {false, true}) {
    for (const int number : {SYS_fsync, SYS_fdatasync, SYS_renameat, SYS_unlinkat}) {
      SCOPED_TRACE(std::to_string(number) + (is_there ? ", the file is there" : ""));
      ::unlinkat(dirs_[3].fd(), name.c_str(), 0);
      for (const auto& [file, bytes] : {std::pair(&delta, &own), {&sums, &own_sums}, {&name, &whole}}) {
        if (file == &name && !is_there) continue;
        dirs_[3].write(*file, *bytes);
        ASSERT_EQ(::fchmodat(dirs_[3].fd(), file->c_str(), 0600, 0), 0);
      }
      bool are_refused = false;
      Result<FlattenTotals> flat = FlattenTotals();
      std::thread([&] {
        are_refused = test::refuse_system_call(SYS_io_uring_setup, ENOSYS) &&
                      test::refuse_system_call(static_cast<unsigned>(number), EIO);
        flat = flatten_in(dirs_[3]);
      }).join();
      ASSERT_TRUE(are_refused);
      ASSERT_FALSE(flat.ok());
      EXPECT_EQ(flat.error().err, EIO) << flat.error().what;
      const auto back = read_back(dirs_[3]);
      ASSERT_TRUE(back.ok()) << back.error().what;
      EXPECT_TRUE(*back == was_[3].bos);
    }
  }
}

// All other tests here have chains as version 0.2 names them.
TEST_F(ChainTest, MetadataHaveTheirOwnNameUntilTheChainIsFlat) {
  ASSERT_NO_FATAL_FAILURE(dump_all());
  const std::string name = kfd_image_name(kId);
  const int second = dirs_[1].fd();
  ASSERT_EQ(::renameat(second, name.c_str(), second, partial_name(name, Lacks::Parents).c_str()), 0);
  for (const std::size_t i : {1U, 2U}) {
    const auto back = read_back(dirs_[i]);
    ASSERT_TRUE(back.ok()) << back.error().what;
    EXPECT_TRUE(*back == was_[i].bos);
  }
  // Another plugin's, beside it.
  dirs_[1].write(name, Bytes(8));
  const auto both = read_back(dirs_[1]);
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.error().what.find("[SL-I95]"), std::string::npos) << both.error().what;
  EXPECT_FALSE(flatten_in(dirs_[1]).ok());
  ASSERT_EQ(::unlinkat(second, name.c_str(), 0), 0);

  const auto flat = flatten_in(dirs_[1]);
  ASSERT_TRUE(flat.ok()) << flat.error().what;
  EXPECT_TRUE(flat->renamed);
  EXPECT_TRUE(dirs_[1].exists(name));
  EXPECT_FALSE(dirs_[1].exists(partial_name(name, Lacks::Parents)));
  ::unlinkat(second, kParentLink, 0);
  for (const std::size_t i : {1U, 2U}) {
    const auto back = read_back(dirs_[i]);
    ASSERT_TRUE(back.ok()) << back.error().what;
    EXPECT_TRUE(*back == was_[i].bos);
  }
}

// The first block of each file can be shared, and so can what is in the first MiB.
TEST_F(ChainTest, WhatCannotBeSharedAfterAllIsCopied) {
  dump_all();
  test::CloneEmulator emulator;
  const CloneCall call = [&emulator](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd,
                                     std::uint64_t to) {
    return from < kMiB ? emulator(from_fd, from, bytes, to_fd, to) : EAGAIN;
  };
  const auto flat = flatten_in(dirs_[3], nullptr, call);
  ASSERT_TRUE(flat.ok()) << flat.error().what;
  EXPECT_GT(flat->cloned_bytes, 0U);
  EXPECT_GT(flat->written_bytes, 2 * kMiB);
  ::unlinkat(dirs_[3].fd(), kParentLink, 0);
  const auto back = read_back(dirs_[3]);
  ASSERT_TRUE(back.ok()) << back.error().what;
  EXPECT_TRUE(*back == was_[3].bos);
}

// Too small for extents to be shared.
TEST_F(ChainTest, ASmallCheckpointIsFlattenedToo) {
  memory_ = {{0x1000000, 0x2000000}, {Bytes(160 * kKiB, std::byte{1}), Bytes(32 * kKiB, std::byte{2})}};
  ASSERT_NO_FATAL_FAILURE(write_dump(dirs_[0], memory_, id_of(0), nullptr));
  link(1, 0);
  const auto parent = std::move(Ancestor::open(dirs_[1].fd(), kParentLink, ImageKeys())).value();
  memory_.bos[1].assign(32 * kKiB, std::byte{3});
  ASSERT_NO_FATAL_FAILURE(write_dump(dirs_[1], memory_, id_of(1), parent.get()));
  ASSERT_TRUE(dirs_[1].exists("amdgpu-delta-1-5759.img"));
  const auto flat = flatten_in(dirs_[1]);
  ASSERT_TRUE(flat.ok()) << flat.error().what;
  EXPECT_EQ(flat->cloned_bytes, 0U);
  ::unlinkat(dirs_[1].fd(), kParentLink, 0);
  const auto back = read_back(dirs_[1]);
  ASSERT_TRUE(back.ok()) << back.error().what;
  EXPECT_TRUE(*back == memory_.bos);
}

}  // namespace
}  // namespace sluice
