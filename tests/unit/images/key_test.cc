// SPDX-License-Identifier: MIT
// Images that are made with the operator's key: who has it reads them, who has not makes none that are read.
#include "images/key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "images/digest.h"
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

class ImageKeys : public ::testing::Test {
 protected:
  void TearDown() override { use_none(); }
  static void use(std::uint8_t byte) { use_image_key(std::optional(key_of(byte))); }
  static void use_none() { use_image_key(std::optional<ImageKey>()); }
};

std::vector<std::uint8_t> dmabuf() {
  return pack_dmabuf_image({.gem_handle = 3, .shared = 1, .pid = 7, .dump_id = DumpId{1}, .id = 5});
}

int error_of_dmabuf(std::span<const std::uint8_t> payload) {
  const auto image = unpack_dmabuf_image(payload, "amdgpu-dmabuf_5.img");
  return image ? 0 : image.error().err;
}

std::vector<std::uint8_t> sidecar() {
  Sidecar made;
  made.tables.push_back(SumTable::sized(2 * kSumBlockBytes + 8, kSumBlockBytes, contents_method()));
  made.pages_files = {"amdgpu-pages-1-5759.img"};
  return pack_sidecar(made);
}

TEST_F(ImageKeys, AnImageMadeWithTheKeyIsReadWithItAndNoOther) {
  use(1);
  const auto image = dmabuf();
  EXPECT_EQ(error_of_dmabuf(image), 0);
  use(2);
  EXPECT_EQ(error_of_dmabuf(image), EKEYREJECTED);
  use_none();
  EXPECT_EQ(error_of_dmabuf(image), ENOKEY);
}

TEST_F(ImageKeys, WithAKeyNothingElseIsRead) {
  const auto image = dmabuf();
  const auto kfd = pack_kfd_image({});
  const auto upstreams = kfd::encode_kfd_image({});  // without a digest
  use(1);
  EXPECT_EQ(error_of_dmabuf(image), EKEYREJECTED);
  EXPECT_EQ(unpack_kfd_image(kfd, "amdgpu-kfd-1.img").error().err, EKEYREJECTED);
  EXPECT_EQ(unpack_kfd_image(upstreams, "amdgpu-kfd-1.img").error().err, EKEYREJECTED);
  EXPECT_EQ(unpack_render_image({}, "amdgpu-renderD-1.img").error().err, EKEYREJECTED);
}

TEST_F(ImageKeys, AByteThatWasChangedAnywhereIsRefused) {
  use(1);
  const auto whole = sidecar();
  ASSERT_TRUE(unpack_sidecar(whole, "s").ok());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] ^= 1;
    EXPECT_EQ(unpack_sidecar(changed, "s").error().err, EKEYREJECTED) << i;
    EXPECT_EQ(unpack_sidecar(std::span(whole).first(i), "s").error().err, EKEYREJECTED) << i;
  }
}

// Both are sums of one key that anybody may read in the images.
TEST_F(ImageKeys, AMessageOfOneKindIsNoneOfAnother) {
  use(1);
  const std::vector<std::uint8_t> message{8, 3};
  for (int made = 0; made <= static_cast<int>(MessageKind::StreamIndex); ++made) {
    for (int read = 0; read <= static_cast<int>(MessageKind::StreamIndex); ++read) {
      const auto payload = with_digest(message, static_cast<MessageKind>(made));
      EXPECT_EQ(check_digest(payload, static_cast<MessageKind>(read), "m").ok(), made == read);
    }
  }
}

TEST_F(ImageKeys, OfAKeyedImageOfVersion01TheRefusalNamesThatVersion) {
  std::vector<std::uint8_t> image{8, 3, 0xba, 0x7d, sizeof(Sum128)};
  image.resize(image.size() + sizeof(Sum128), 0x5a);
  const auto error = [&image] { return check_digest(image, MessageKind::Kfd, "m").error(); };
  EXPECT_EQ(error().err, EKEYREJECTED);
  EXPECT_NE(error().what.find("0.1"), std::string::npos) << error().what;
  use(1);
  EXPECT_EQ(error().err, EKEYREJECTED);
  EXPECT_NE(error().what.find("0.1"), std::string::npos) << error().what;
}

// A process chooses what it has in its GPU memory, and the sidecar shows the sum of that.
TEST_F(ImageKeys, TheSumOfContentsIsNoDigest) {
  use(1);
  auto payload = dmabuf();
  const auto message = std::span(payload).first(payload.size() - sizeof(Sum128) - 3);
  const Sum128 sum = contents_method().of(std::as_bytes(message));
  std::copy(sum.begin(), sum.end(), payload.end() - sizeof(Sum128));
  EXPECT_EQ(error_of_dmabuf(payload), EKEYREJECTED);
}

TEST_F(ImageKeys, UpstreamsReaderPassesOverTheDigest) {
  kfd::KfdImage image;
  image.pid = 77;
  use(1);
  const auto read = kfd::decode_kfd_image(pack_kfd_image(image));
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_EQ(read->pid, 77U);
}

// Without a key that is an image of upstream's, or one that was dumped without checksums.
TEST_F(ImageKeys, ContentsWithoutSumsAreRefused) {
  PagesSet set{.gpu_id = 0x5759, .bos = {{4096, 0, 0}}};
  const auto layout = set.layout(kSumBlockBytes);
  ASSERT_TRUE(layout.ok());
  const Result<std::vector<std::uint8_t>> missing = Error{ENOENT, "no sidecar"};
  EXPECT_TRUE(take_sidecar(missing, 1, set, *layout, {}).ok());
  use(1);
  const auto taken = take_sidecar(missing, 1, set, *layout, {});
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().what.find("SLUICE_CHECKSUM=off"), std::string::npos) << taken.error().what;
}

TEST_F(ImageKeys, ASidecarsSumsAreMadeWithTheKey) {
  use(1);
  const auto read = unpack_sidecar(sidecar(), "s");
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_EQ(read->tables[0].method, contents_method());
  EXPECT_STREQ(read->tables[0].method.name(), "HMAC-SHA-256-128");
  const Sum128 with_first = contents_method().of({});
  use(2);
  EXPECT_NE(contents_method().of({}), with_first);
}

TEST_F(ImageKeys, WhereTheKeyIsNotToBeHadNoImageIsRead) {
  const auto image = dmabuf();
  use_image_key(Error{EACCES, "the key is somebody's secret"});
  EXPECT_EQ(image_key_is_usable().error().err, EACCES);
  EXPECT_EQ(error_of_dmabuf(image), EACCES);
  EXPECT_FALSE(has_image_key());
}

}  // namespace
}  // namespace sluice
