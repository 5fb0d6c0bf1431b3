// SPDX-License-Identifier: MIT
// Sidecars, render images, and what ties a dump's files together.
#include "images/metadata.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <thread>

#include "images/files/digest.h"
#include "images/files/files.h"
#include "images/sums.h"
#include "kfd/uapi.h"
#include "sluice-sums.pb-c.h"
#include "support/refuse_system_call.h"
#include "support/unknown_fields.h"

namespace sluice {
namespace {

Sidecar sample_sidecar() {
  Sidecar sidecar;
  for (const std::uint64_t bytes : {3 * kSumBlockBytes + 8, std::uint64_t{4104}}) {
    SumTable& table = sidecar.tables.emplace_back();
    table.file_bytes = bytes;
    table.sums.resize(static_cast<std::size_t>(div_ceil(bytes, kSumUnitBytes)) + 1);
    for (std::size_t i = 0; i < table.sums.size(); ++i)
      table.sums[i].fill(static_cast<std::uint8_t>(i + bytes));
  }
  sidecar.bo_table_digest.fill(9);
  sidecar.dump_id.fill(7);
  sidecar.pages_files = {"amdgpu-drm-pages-4-128-0000.img", "amdgpu-drm-pages-4-128-0001.img"};
  return sidecar;
}

TEST(Sidecar, SurvivesTheRoundTrip) {
  const Sidecar sidecar = sample_sidecar();
  const auto back = unpack_sidecar(pack_sidecar(sidecar, {}), "s", {});
  ASSERT_TRUE(back.ok()) << back.error().what;
  ASSERT_EQ(back->tables.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back->tables[i].block_bytes, kSumBlockBytes);
    EXPECT_EQ(back->tables[i].file_bytes, sidecar.tables[i].file_bytes);
    EXPECT_EQ(back->tables[i].sums, sidecar.tables[i].sums);
  }
  EXPECT_EQ(back->bo_table_digest, sidecar.bo_table_digest);
  EXPECT_EQ(back->dump_id, sidecar.dump_id);
  EXPECT_EQ(back->pages_files, sidecar.pages_files);
}

// Of all files of the sidecar. A reader that does not know it must not take such sums for others.
TEST(Sidecar, TheSecretOfItsSumsSurvivesTheRoundTripUnderANameThatOlderReadersRefuse) {
  const auto drawn = new_sum_method({});
  ASSERT_TRUE(drawn.ok()) << drawn.error().what;
  EXPECT_NE(*drawn, *new_sum_method({}));
  Sidecar sidecar = sample_sidecar();
  for (SumTable& table : sidecar.tables) table.method = *drawn;
  const std::vector<std::uint8_t> packed = pack_sidecar(sidecar, {});
  const std::string_view text(reinterpret_cast<const char*>(packed.data()), packed.size());
  EXPECT_NE(text.find("XXH3-128-secret"), text.npos);
  const auto back = unpack_sidecar(packed, "s", {});
  ASSERT_TRUE(back.ok()) << back.error().what;
  for (const SumTable& table : back->tables) EXPECT_EQ(table.method, *drawn);
}

// A large GPU's are many MiB, which were copied once more.
TEST(Sidecar, TakesNoMoreMemoryThanItHas) {
  Sidecar sidecar = sample_sidecar();
  sidecar.tables[0].sums.resize(1 << 16);
  const std::vector<std::uint8_t> packed = pack_sidecar(sidecar, {});
  EXPECT_EQ(packed.capacity(), packed.size());
}

TEST(Sidecar, TruncatedAnywhereIsRefused) {
  const std::vector<std::uint8_t> whole = pack_sidecar(sample_sidecar(), {});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto back =
        unpack_sidecar({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}, "s", {});
    ASSERT_FALSE(back.ok()) << length;
    EXPECT_EQ(back.error().err, EBADMSG);
  }
}

// Whether the BO table has just as many is take_sidecar()'s question.
TEST(Sidecar, MoreSumsThanBytesOrFewerThanUnitsAreRefused) {
  Sidecar sidecar = sample_sidecar();
  for (const std::uint64_t count :
       {div_ceil(sidecar.tables[1].file_bytes, kSumUnitBytes) - 1, sidecar.tables[1].file_bytes + 1}) {
    sidecar.tables[1].sums.resize(static_cast<std::size_t>(count));
    EXPECT_EQ(unpack_sidecar(pack_sidecar(sidecar, {}), "s", {}).error().err, EBADMSG) << count;
  }
}

TEST(Sidecar, BlockSizesOutOfRangeAreRefused) {
  for (const std::uint64_t block :
       {std::uint64_t{0}, std::uint64_t{2048}, std::uint64_t{kSumBlockBytes + 1}, 2 * kSumBlockBytes}) {
    Sidecar sidecar = sample_sidecar();
    sidecar.tables[0].block_bytes = block;
    EXPECT_EQ(unpack_sidecar(pack_sidecar(sidecar, {}), "s", {}).error().err, EBADMSG) << block;
  }
}

TEST(Sidecar, FileSizesNearTheEndOfNumbersAreRefused) {
  for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - kSumBlockBytes, std::uint64_t{1} << 63}) {
    Sidecar sidecar = sample_sidecar();
    sidecar.tables[0].file_bytes = bytes;
    EXPECT_EQ(unpack_sidecar(pack_sidecar(sidecar, {}), "s", {}).error().err, EBADMSG) << bytes;
  }
}

// A sidecar, field by field, with one run that is in the parent: what no writer of ours makes of it.
struct RawSidecar {
  RawSidecar() {
    file.algorithm = units.data();
    file.block_bytes = kSumBlockBytes;
    file.file_bytes = kSumUnitBytes + 8;
    file.bo_table_digest = {16, bytes.data()};
    file.dump_id = {16, bytes.data()};
    file.sums = {3 * sizeof(Sum128), bytes.data()};
    file.pages_file = name.data();
    file.n_parent_files = 1, file.parent_files = &names;
    file.n_parent_first = 1, file.parent_first = &first;
    file.n_parent_units = 1, file.parent_units = &count;
    file.n_parent_file = 1, file.parent_file = &number;
    file.n_parent_offset = 1, file.parent_offset = &offset;
    image.n_files = 1, image.files = &files;
    image.has_secret = 1;
    image.secret = {secret.size(), secret.data()};
    image.has_parent_dump_id = 1;
    image.parent_dump_id = {16, bytes.data()};
  }
  RawSidecar(const RawSidecar&) = delete;
  RawSidecar& operator=(const RawSidecar&) = delete;

  void forget_runs() {
    file.n_parent_first = file.n_parent_units = file.n_parent_file = file.n_parent_offset = 0;
  }
  // The same run once more, as one of another file of the dump.
  void add_replica() {
    file.n_replica_files = file.n_replica_first = file.n_replica_units = 1;
    file.n_replica_file = file.n_replica_offset = 1;
    file.replica_files = &names;
    file.replica_first = &first, file.replica_units = &count;
    file.replica_file = &number, file.replica_offset = &offset;
  }
  Result<Sidecar> unpacked() {
    std::vector<std::uint8_t> message(sums_image__get_packed_size(&image));
    (void)sums_image__pack(&image, message.data());
    return unpack_sidecar(with_digest(std::move(message), MessageKind::Sums, {}), "s", {});
  }

  std::string units = "XXH3-128-secret-units", plain = "XXH3-128-units", of_0_1 = "XXH3-128";
  std::string name = "amdgpu-delta-1-5759.img";
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(64, 5);
  std::vector<std::uint8_t> secret = std::vector<std::uint8_t>(192, 6);
  char* names = name.data();
  std::uint64_t first = 1, count = 2, offset = 8;
  std::uint32_t number = 0;
  FileSums file = FILE_SUMS__INIT;
  FileSums* files = &file;
  SumsImage image = SUMS_IMAGE__INIT;
};

TEST(Sidecar, FieldsThatContradictEachOtherAreRefused) {
  RawSidecar good;
  const auto unpacked = good.unpacked();
  ASSERT_TRUE(unpacked.ok()) << unpacked.error().what;
  ASSERT_EQ(unpacked->parents.size(), 1U);
  EXPECT_EQ(unpacked->parents[0].runs, (std::vector<KnownRun>{{1, 2, 0, 8}}));

  using Spoil = void (*)(RawSidecar&);
  const std::vector<Spoil> spoils = {
      // Fewer of a run's numbers than runs.
      [](RawSidecar& raw) { raw.file.n_parent_first = 0; },
      [](RawSidecar& raw) { raw.file.n_parent_units = 0; },
      [](RawSidecar& raw) { raw.file.n_parent_file = 0; },
      [](RawSidecar& raw) { raw.file.n_parent_offset = 0; },
      // Runs that are not in the file, or in none of the parent's.
      [](RawSidecar& raw) { raw.first = 0; },
      [](RawSidecar& raw) { raw.first = 3; },
      [](RawSidecar& raw) { raw.count = 0; },
      [](RawSidecar& raw) { raw.count = 3; },
      [](RawSidecar& raw) { raw.count = UINT64_MAX; },
      [](RawSidecar& raw) { raw.number = 1; },
      [](RawSidecar& raw) { raw.file.n_parent_files = 0; },
      [](RawSidecar& raw) { raw.offset = 7; },
      [](RawSidecar& raw) { raw.offset = std::uint64_t{1} << 63; },
      [](RawSidecar& raw) { raw.name = "../another.img", raw.names = raw.name.data(); },
      // Units that are in the parent and in another file, too; replicas left out, but none.
      [](RawSidecar& raw) { raw.add_replica(); },
      [](RawSidecar& raw) { raw.image.has_replicas_left_out = raw.image.replicas_left_out = 1; },
      // Bytes of another length.
      [](RawSidecar& raw) { raw.file.bo_table_digest.len = 15; },
      [](RawSidecar& raw) { raw.file.dump_id.len = 17; },
      [](RawSidecar& raw) { raw.file.sums.len -= 1; },
      [](RawSidecar& raw) { raw.image.parent_dump_id.len = 15; },
      // More units than bytes.
      [](RawSidecar& raw) { raw.file.file_bytes = 2; },
      // Sums with a secret without one, and others with one, or with one of another length.
      [](RawSidecar& raw) { raw.image.has_secret = 0; },
      [](RawSidecar& raw) { raw.image.secret.len -= 1; },
      [](RawSidecar& raw) { raw.file.algorithm = raw.plain.data(); },
      // Runs without a parent, and a parent without runs.
      [](RawSidecar& raw) { raw.image.has_parent_dump_id = 0; },
      [](RawSidecar& raw) { raw.forget_runs(); },
  };
  for (std::size_t i = 0; i < spoils.size(); ++i) {
    RawSidecar raw;
    spoils[i](raw);
    const auto refused = raw.unpacked();
    ASSERT_FALSE(refused.ok()) << i;
    EXPECT_EQ(refused.error().err, EBADMSG) << i;
  }
  RawSidecar complete;
  complete.forget_runs();
  complete.image.has_parent_dump_id = 0;
  EXPECT_TRUE(complete.unpacked().ok());
}

// Its sums are of blocks of the file.
TEST(Sidecar, OfVersion01IsRefusedByName) {
  RawSidecar raw;
  raw.forget_runs();
  raw.image.has_parent_dump_id = raw.image.has_secret = 0;
  raw.file.algorithm = raw.of_0_1.data();
  raw.file.sums.len = sizeof(Sum128);
  const auto refused = raw.unpacked();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, ENOSYS);
  EXPECT_NE(refused.error().what.find("[SL-I96]"), std::string::npos) << refused.error().what;
}

// Not zeros, which are no dump's.
TEST(DumpId, WithoutRandomBytesThereIsNone) {
  ASSERT_TRUE(random_dump_id().ok());
  bool is_refused = false, is_drawn = true;
  int err = 0;
  std::thread([&] {
    is_refused = test::refuse_system_call(SYS_getrandom, ENOSYS);
    const auto id = random_dump_id();
    err = id.ok() ? 0 : id.error().err;
    is_drawn = new_sum_method({}).ok();
  }).join();
  EXPECT_FALSE(is_drawn);
  ASSERT_TRUE(is_refused);
  EXPECT_EQ(err, ENOSYS);
}

RenderImage sample_render_image() {
  RenderImage image{0x5759, 4, 129, {}, true, DumpId{7}, 4711, true};
  image.bos.push_back({{1, 4096, 4096, 2, 0, {}, {}}, 0});
  image.bos.push_back(
      {{70, 1 << 20, 1 << 16, 4, 1, {{0x1000, 4096, 0, 6}, {0x8000, 8192, 4096, 14}}, {9, 8, {7, 6, 5}}},
       0x100000000});
  return image;
}

TEST(RenderImage, SurvivesTheRoundTrip) {
  RenderImage image = sample_render_image();
  const auto back = unpack_render_image(pack_render_image(image, {}), "r", {});
  ASSERT_TRUE(back.ok()) << back.error().what;
  EXPECT_EQ(back->gpu_id, 0x5759U);
  EXPECT_EQ(back->id, 4U);
  EXPECT_EQ(back->minor, 129U);
  EXPECT_EQ(back->bos, image.bos);
  EXPECT_EQ(back->kfd_acquired, true);
  EXPECT_EQ(back->dump_id, image.dump_id);
  EXPECT_EQ(back->pid, image.pid);
  EXPECT_TRUE(back->has_sums);
  image.kfd_acquired.reset();
  EXPECT_EQ(unpack_render_image(pack_render_image(image, {}), "r", {})->kfd_acquired, std::nullopt);
}

// CRIU 3.17 to 4.2. The number is in the file's name, the GPU's minor in the image of a KFD process.
TEST(RenderImage, OneOfAReleasedPluginTellsTheGpuAlone) {
  const std::vector<std::uint8_t> whole = {0x08, 0xd9, 0xae, 0x01};
  const auto image = unpack_render_image(whole, render_image_name(12), {});
  ASSERT_TRUE(image.ok()) << image.error().what;
  EXPECT_EQ(image->gpu_id, 0x5759U);
  EXPECT_EQ(image->id, 12U);
  EXPECT_EQ(image->minor, RenderImage::kUnknownMinor);
  EXPECT_TRUE(image->bos.empty());
  EXPECT_FALSE(image->has_contents() || image->has_sums || image->dump_id || image->pid);
  EXPECT_EQ(image->node_words(), "the render node of GPU 0x5759");
}

// No plugin writes some of what the released ones do not know, and ours writes all.
TEST(RenderImage, APartOfWhatReleasedPluginsDoNotTellIsRefused) {
  const std::vector<std::vector<std::uint8_t>> fields = {{0x10, 4}, {0x18, 0x81, 1}, {0x20, 0}};
  const std::vector<std::uint8_t> dump_id = {0xca, 0x3e, 16, 1,  2,  3,  4,  5,  6, 7,
                                             8,    9,    10, 11, 12, 13, 14, 15, 16};
  for (unsigned there = 0; there < 8; ++there) {
    std::vector<std::uint8_t> message = {0x08, 7};
    for (unsigned i = 0; i < 3; ++i) {
      if ((there & (1U << i)) != 0) message.insert(message.end(), fields[i].begin(), fields[i].end());
    }
    const bool good = there == 0 || there == 7;
    EXPECT_EQ(unpack_render_image(message, "r", {}).ok(), good) << there;
    message.insert(message.end(), dump_id.begin(), dump_id.end());
    const auto ours = unpack_render_image(with_digest(message, MessageKind::RenderNode, {}), "r", {});
    EXPECT_EQ(ours.ok(), there == 7) << there;
  }
  EXPECT_EQ(unpack_render_image(std::vector<std::uint8_t>{0x08, 0}, "r", {}).error().err, EBADMSG)
      << "of no GPU";
}

// criu-dev calls imported what has the handle of some BO of the KFD, too. Memory of another GPU is never in
// VRAM.
TEST(RenderImage, WhatUpstreamCallsImportedIsBelievedWhereItMayBe) {
  RenderImage image = sample_render_image();
  for (RenderBo& bo : image.bos) bo.imports = true;
  const auto unpacked = [&](std::uint64_t domains) {
    for (RenderBo& bo : image.bos) bo.gem.domains = domains;
    return unpack_render_image(pack_render_image(image, {}), "r", {});
  };
  for (const std::uint64_t domains : {4, 6}) {
    EXPECT_EQ(unpacked(domains).error().err, ENOSYS) << "ours means what it says";
  }
  image.dump_id.reset();
  for (const std::uint64_t domains : {4, 6}) {
    const auto theirs = unpacked(domains);
    ASSERT_TRUE(theirs.ok()) << theirs.error().what;
    EXPECT_FALSE(theirs->bos[0].imports || theirs->bos[1].imports);
  }
  for (const std::uint64_t domains : {1, 2}) EXPECT_EQ(unpacked(domains).error().err, ENOSYS);
}

// Whatever changes, in the digest itself too, and wherever it is cut.
TEST(Digest, FindsEveryChangedBitOfEveryImage) {
  KfdImage kfd;
  kfd.dump_id = DumpId{7};
  kfd.priv_data = {1, 2, 3};
  const auto expect_found = [](const std::vector<std::uint8_t>& whole, const auto& unpack) {
    ASSERT_TRUE(unpack(whole, "i", ImageKeys()).ok());
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::vector<std::uint8_t> damaged = whole;
      damaged[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      const auto back = unpack(damaged, "i", ImageKeys());
      ASSERT_FALSE(back.ok()) << "bit " << bit;
      EXPECT_TRUE(back.error().err == EBADMSG || back.error().err == ENOSYS) << back.error().what;
    }
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const auto back = unpack(std::span(whole).first(length), "i", ImageKeys());
      EXPECT_TRUE(!back.ok() || !back->dump_id) << length;
    }
  };
  expect_found(pack_kfd_image(kfd, {}), unpack_kfd_image);
  expect_found(pack_render_image(sample_render_image(), {}), unpack_render_image);
  expect_found(pack_dmabuf_image({1, 2, 3, DumpId{7}, 4}, {}), unpack_dmabuf_image);
}

// What is lost is more than the digest: nothing in the rest says that it was there.
TEST(Digest, AnImageThatHasLostItsEndIsNotTakenForUpstreams) {
  KfdImage kfd;
  kfd.topology.nodes.push_back({.node_id = 1, .gpu_id = 7, .gfx_target_version = 90010});
  EXPECT_EQ(unpack_kfd_image(encode_kfd_image(kfd), "k", {}).error().err, EBADMSG);
}

TEST(Digest, UpstreamsImagesHaveNone) {
  const KfdImage kfd;
  EXPECT_TRUE(unpack_kfd_image(encode_kfd_image(kfd), "k", {}).ok());
}

void expect_refused(const Result<void>& result, const std::string& words) {
  ASSERT_FALSE(result.ok()) << words;
  EXPECT_EQ(result.error().err, EBADMSG);
  EXPECT_NE(result.error().what.find(words), std::string::npos) << result.error().what;
}

TEST(SameDump, NamesBothImagesOfTwoDumps) {
  SameDump dump;
  EXPECT_TRUE(dump.add("first", DumpId{1}, 1).ok());
  EXPECT_TRUE(dump.add("second", DumpId{1}, 2).ok());
  expect_refused(dump.add("other", DumpId{2}, 3), "other belongs to another dump than first");
}

TEST(SameDump, ImagesOfUpstreamsAreAmongThemselves) {
  SameDump upstreams;
  EXPECT_TRUE(upstreams.add("first", std::nullopt, std::nullopt).ok());
  EXPECT_TRUE(upstreams.add("second", std::nullopt, std::nullopt).ok());
  expect_refused(upstreams.add("ours", DumpId{1}, 1), "ours belongs to another dump than first");
  SameDump ours;
  EXPECT_TRUE(ours.add("ours", DumpId{1}, 1).ok());
  expect_refused(ours.add("theirs", std::nullopt, std::nullopt), "theirs belongs to another dump than ours");
}

// Two that have changed their names are both whole, and of one dump.
TEST(SameDump, AnImageUnderAnothersNameIsRefused) {
  SameDump dump;
  EXPECT_TRUE(dump.add(kfd_image_name(4), DumpId{1}, 4).ok());
  EXPECT_TRUE(dump.add(render_image_name(14), DumpId{1}, 14).ok());
  expect_refused(dump.add(dmabuf_image_name(14), DumpId{1}, 4),
                 dmabuf_image_name(14) + " is the image of open file 4;");
  SameDump upstreams;  // nothing of theirs was ever held against the name
  EXPECT_TRUE(upstreams.add(render_image_name(14), std::nullopt, 4).ok());
}

TEST(RenderImage, WhatCouldNotBeMadeAgainIsRefused) {
  const auto refused = [](const auto& spoil) {
    RenderImage image = sample_render_image();
    spoil(image.bos[1].gem);
    const auto back = unpack_render_image(pack_render_image(image, {}), "r", {});
    return !back.ok() && back.error().err == EBADMSG;
  };
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.handle = 1; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.handle = 0x80000000; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.bytes = 0; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.bytes = UINT64_MAX; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.mappings[0].bytes = 0; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.mappings[1].bo_offset = bo.bytes; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.mappings[0].address = UINT64_MAX - 4095; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.mappings[0].flags = 1ULL << 32; }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.metadata.data.resize(drm::kMostMetadataBytes + 1); }));
  EXPECT_TRUE(refused([](drm::GemBo& bo) { bo.metadata.data.resize(1 << 20); }));
}

TEST(RenderImage, EachKindOfMetadataSurvivesTheRoundTrip) {
  RenderImage image = sample_render_image();
  const std::size_t with_some = pack_render_image(image, {}).size();
  for (const drm::GemMetadata& metadata :
       {drm::GemMetadata{UINT64_MAX, 0, {}}, drm::GemMetadata{0, UINT64_MAX, {}}, drm::GemMetadata{0, 0, {0}},
        drm::GemMetadata{0, 0, std::vector<std::uint8_t>(drm::kMostMetadataBytes, 3)}}) {
    image.bos[1].gem.metadata = metadata;
    const auto back = unpack_render_image(pack_render_image(image, {}), "r", {});
    ASSERT_TRUE(back.ok()) << back.error().what;
    EXPECT_EQ(back->bos, image.bos);
  }
  image.bos[1].gem.metadata = {};
  EXPECT_EQ(pack_render_image(image, {}).size() + 12, with_some) << "nothing stands for a BO that has none";
}

TEST(RenderImage, TruncatedAnywhereIsRefusedOrShortOfNothing) {
  const RenderImage image = sample_render_image();
  const std::vector<std::uint8_t> whole = pack_render_image(image, {});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto back = unpack_render_image(std::span(whole).first(length), "r", {});
    if (!back.ok()) continue;
    if (back->minor == RenderImage::kUnknownMinor) {
      EXPECT_EQ(length, 4U) << "more than a released plugin of upstream's writes";
    } else {
      EXPECT_EQ(back->bos, image.bos) << length;
    }
  }
}

TEST(BoTableDigest, CoversExactlyTheBosWithContentsOfTheGpu) {
  const std::vector<BoEntry> bos = {{{0x1000, 4096, 0, 1, kfd::kAllocVram}},
                                    {{0x2000, 4096, 0, 1, kfd::kAllocUserptr}},
                                    {{0x3000, 4096, 0, 2, kfd::kAllocGtt}}};
  const Sum128 digest = bo_table_digest(bos, 1);
  EXPECT_NE(digest, bo_table_digest(bos, 2));
  auto changed = bos;
  changed[1].addr = 0x9000;
  changed[2].bytes = 8192;
  EXPECT_EQ(bo_table_digest(changed, 1), digest);
  changed[0].bytes = 8192;
  EXPECT_NE(bo_table_digest(changed, 1), digest);
}

TEST(CheckPrivateData, RefusesOnlyWhatIsKnownToDiffer) {
  KfdImage image;
  image.kernel_release = "6.1.0";
  image.bo_record_bytes = 80;
  EXPECT_TRUE(check_private_data(image, 0, 80).ok());
  EXPECT_TRUE(check_private_data(image, 0, 0).ok());  // nobody knows
  const Result<void> refused = check_private_data(image, 0, 272);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, EINVAL);
  for (const char* said : {"6.1.0", "80 bytes", "keeps 272"}) {
    EXPECT_NE(refused.error().what.find(said), std::string::npos) << refused.error().what;
  }
  image.bo_record_bytes = 0;  // an upstream image without BOs: nothing to go by
  EXPECT_EQ(driver_records_of(image).bo_bytes, 0U);
  EXPECT_TRUE(check_private_data(image, 0, 272).ok());
}

// The records must be known only where a restore edits them.
TEST(CheckPrivateData, RefusesMoreGpusAndImportsIfTheRecordsAreUnknown) {
  KfdImage image;
  image.bos.resize(1);
  image.priv_data.resize(8 + 72 + 1);  // no record has this size
  EXPECT_TRUE(check_private_data(image, 0, 272).ok());
  EXPECT_EQ(check_private_data(image, 1, 272).error().err, EBADMSG);
  image.bos[0].imports = true;
  EXPECT_EQ(check_private_data(image, 0, 0).error().err, EBADMSG);
  image.priv_data.pop_back();
  EXPECT_EQ(driver_records_of(image).bo_bytes, 72U);
  EXPECT_TRUE(check_private_data(image, 1, 72).ok());
}

// What is unpacked of `message`, and does not make an image for its own reason, or for memory.
template <class Unpack>
void expect_bounded_memory(std::vector<std::uint8_t> message, MessageKind kind, Unpack unpack) {
  const auto unpacked = [&](std::size_t fields) {
    const auto image =
        unpack(with_digest(test::with_unknown_fields(message, fields), kind, {}), "image", ImageKeys());
    return image.ok() ? std::string() : image.error().what;
  };
  EXPECT_EQ(unpacked(test::kFieldsThatFit).find("cannot be parsed"), std::string::npos);
  EXPECT_NE(unpacked(test::kFieldsThatDoNot).find("cannot be parsed"), std::string::npos);
}

TEST(Metadata, MessagesOfTinyPartsTakeBoundedMemory) {
  expect_bounded_memory({}, MessageKind::Sums, unpack_sidecar);
  // Numbers of the GPU, the file and its minor, and no BOs; a handle.
  expect_bounded_memory({0x08, 1, 0x10, 1, 0x18, 128, 1, 0x20, 0}, MessageKind::RenderNode,
                        unpack_render_image);
  expect_bounded_memory({0x08, 1}, MessageKind::DmaBuf, unpack_dmabuf_image);
}

}  // namespace
}  // namespace sluice
