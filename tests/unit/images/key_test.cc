// SPDX-License-Identifier: MIT
// Images that are made with the operator's key: who has it reads them, who has not makes none that are read.
#include "images/files/key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "images/files/cause.h"
#include "images/files/digest.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "images/sums.h"

namespace sluice {
namespace {

ImageKey key_of(std::uint8_t byte) {
  ImageKey key;
  key.fill(byte);
  return key;
}

// With the operator's key, or none.
class ImageKeysTest : public ::testing::Test {
 protected:
  void use(std::uint8_t byte) { keys_ = ImageKeys(std::optional(key_of(byte))); }
  void use_none() { keys_ = ImageKeys(); }

  std::vector<std::uint8_t> dmabuf() const {
    return pack_dmabuf_image({.gem_handle = 3, .shared = 1, .pid = 7, .dump_id = DumpId{1}, .id = 5}, keys_);
  }
  int error_of_dmabuf(std::span<const std::uint8_t> payload) const {
    const auto image = unpack_dmabuf_image(payload, "amdgpu-dmabuf_5.img", keys_);
    return image ? 0 : image.error().err;
  }
  // Of one file with one BO.
  std::vector<SumTable> tables_of(std::uint64_t bo_bytes) const {
    const ImageLayout layout = std::move(ImageLayout::make(std::array{bo_bytes}, kSumBlockBytes)).value();
    return unit_tables(layout, kSumBlockBytes, keys_.contents());
  }
  std::vector<std::uint8_t> sidecar() const {
    Sidecar made;
    made.tables = tables_of(2 * kSumBlockBytes);
    made.pages_files = {"amdgpu-pages-1-5759.img"};
    return pack_sidecar(made, keys_);
  }

  ImageKeys keys_;
};

TEST_F(ImageKeysTest, AnImageMadeWithTheKeyIsReadWithItAndNoOther) {
  use(1);
  const auto image = dmabuf();
  EXPECT_EQ(error_of_dmabuf(image), 0);
  use(2);
  EXPECT_EQ(error_of_dmabuf(image), EKEYREJECTED);
  use_none();
  EXPECT_EQ(error_of_dmabuf(image), ENOKEY);
}

TEST_F(ImageKeysTest, WithAKeyNothingElseIsRead) {
  const auto image = dmabuf();
  const auto kfd = pack_kfd_image({}, keys_);
  const auto upstreams = encode_kfd_image({});  // without a digest
  use(1);
  EXPECT_EQ(error_of_dmabuf(image), kUnsigned);
  EXPECT_EQ(unpack_kfd_image(kfd, "amdgpu-kfd-1.img", keys_).error().err, kUnsigned);
  EXPECT_EQ(unpack_kfd_image(upstreams, "amdgpu-kfd-1.img", keys_).error().err, kUnsigned);
  EXPECT_EQ(unpack_render_image({}, "amdgpu-renderD-1.img", keys_).error().err, kUnsigned);
  auto changed = image;
  changed[0] ^= 1;
  EXPECT_EQ(error_of_dmabuf(changed), EBADMSG) << "its own digest tells";
}

TEST_F(ImageKeysTest, AByteThatWasChangedAnywhereIsRefused) {
  use(1);
  const auto whole = sidecar();
  ASSERT_TRUE(unpack_sidecar(whole, "s", keys_).ok());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] ^= 1;
    EXPECT_EQ(beside_signed(unpack_sidecar(changed, "s", keys_).error()).err, EKEYREJECTED) << i;
    EXPECT_EQ(unpack_sidecar({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(i)}, "s", keys_)
                  .error()
                  .err,
              kUnsigned)
        << i;
  }
}

// Both are sums of one key that anybody may read in the images.
TEST_F(ImageKeysTest, AMessageOfOneKindIsNoneOfAnother) {
  use(1);
  const std::vector<std::uint8_t> message{8, 3};
  for (int made = 0; made <= static_cast<int>(MessageKind::PreDumpMark); ++made) {
    for (int read = 0; read <= static_cast<int>(MessageKind::PreDumpMark); ++read) {
      const auto payload = with_digest(message, static_cast<MessageKind>(made), keys_);
      EXPECT_EQ(check_digest(payload, static_cast<MessageKind>(read), "m", keys_).ok(), made == read);
    }
  }
}

TEST_F(ImageKeysTest, OfAKeyedImageOfVersion01TheRefusalNamesThatVersion) {
  std::vector<std::uint8_t> image{8, 3, 0xba, 0x7d, sizeof(Sum128)};
  image.resize(image.size() + sizeof(Sum128), 0x5a);
  const auto error = [&] { return check_digest(image, MessageKind::Kfd, "m", keys_).error(); };
  EXPECT_EQ(error().err, ENOSYS) << "it is whole";
  EXPECT_NE(error().what.find("0.1"), std::string::npos) << error().what;
  use(1);
  EXPECT_EQ(error().err, ENOSYS);
  EXPECT_NE(error().what.find("0.1"), std::string::npos) << error().what;
}

// A process chooses what it has in its GPU memory, and the sidecar shows the sum of that.
TEST_F(ImageKeysTest, TheSumOfContentsIsNoDigest) {
  use(1);
  auto payload = dmabuf();
  const auto message = std::span(payload).first(payload.size() - sizeof(Sum128) - 3);
  const Sum128 sum = keys_.contents().of(std::as_bytes(message));
  std::copy(sum.begin(), sum.end(), payload.end() - sizeof(Sum128));
  EXPECT_EQ(error_of_dmabuf(payload), EKEYREJECTED);
}

TEST_F(ImageKeysTest, UpstreamsReaderPassesOverTheDigest) {
  KfdImage image;
  image.pid = 77;
  use(1);
  const auto read = decode_kfd_image(pack_kfd_image(image, keys_));
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_EQ(read->pid, 77U);
}

// Without a key that is an image of upstream's, or one that was dumped without checksums.
TEST_F(ImageKeysTest, ContentsWithoutSumsAreRefused) {
  const PagesSet set{{0x5759, std::nullopt}, {{4096, 0, 0}}};
  const auto layout = set.layout(kSumBlockBytes);
  ASSERT_TRUE(layout.ok());
  const Result<std::vector<std::uint8_t>> missing = Error{ENOENT, "no sidecar"};
  EXPECT_TRUE(take_sidecar(missing, 1, set, *layout, {}, keys_).ok());
  use(1);
  const auto taken = take_sidecar(missing, 1, set, *layout, {}, keys_);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().what.find("SLUICE_CHECKSUM=off"), std::string::npos) << taken.error().what;
}

TEST_F(ImageKeysTest, SumsOfOtherFilesAreThoseOfAnotherDump) {
  const PagesSet set{{0x5759, std::nullopt}, {{2 * kSumBlockBytes, 0, 0}}};
  const PagesSet others{{0x5759, 128}, {{4096, 0, 0}, {4096, 0, 1}}};
  const auto error_with = [&](std::uint64_t bo_bytes, const std::string& name, const PagesSet& of) {
    Sidecar made;
    made.tables = tables_of(bo_bytes);
    made.pages_files = {name};
    const auto taken = take_sidecar(pack_sidecar(made, keys_), 1, of, *of.layout(kSumBlockBytes), {}, keys_);
    return taken ? std::string() : taken.error().what;
  };
  const std::string name = set.pages_name(1, 0);
  const std::uint64_t bytes = set.bos[0].bytes;
  EXPECT_EQ(error_with(bytes, name, set), "");
  for (const std::string& error :
       {error_with(bytes + 8, name, set), error_with(bytes, "another", set), error_with(bytes, name, others)})
    EXPECT_NE(error.find("[SL-I20]"), std::string::npos) << error;
}

TEST_F(ImageKeysTest, ASidecarsSumsAreMadeWithTheKey) {
  use(1);
  const auto read = unpack_sidecar(sidecar(), "s", keys_);
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_EQ(read->tables[0].method, keys_.contents());
  EXPECT_STREQ(read->tables[0].method.name(), "HMAC-SHA-256-128");
  const Sum128 with_first = keys_.contents().of({});
  use(2);
  EXPECT_NE(keys_.contents().of({}), with_first);
}

TEST_F(ImageKeysTest, WhereTheKeyIsNotToBeHadNoImageIsRead) {
  const auto image = dmabuf();
  keys_ = ImageKeys(Error{EACCES, "the key is somebody's secret"});
  EXPECT_EQ(keys_.usable().error().err, EACCES);
  EXPECT_EQ(error_of_dmabuf(image), EACCES);
  EXPECT_FALSE(keys_.any());
}

}  // namespace
}  // namespace sluice
