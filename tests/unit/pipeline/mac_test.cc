// SPDX-License-Identifier: MIT
// HMAC-SHA-256: the published answers.
#include "pipeline/checksum/mac.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

std::string hex_of(const Mac& mac) {
  std::string text;
  for (const std::uint8_t byte : mac) {
    std::array<char, 3> digits{};
    (void)std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

// HMAC fills a key up with zeros, so that a shorter one of the RFC is one of 32 bytes, too.
MacKey key_of(std::string_view bytes) {
  MacKey key{};
  std::memcpy(key.data(), bytes.data(), bytes.size());
  return key;
}

std::string mac_hex(std::string_view text, const MacKey& key) {
  return hex_of(mac_of(std::as_bytes(std::span(text)), key));
}

class MacOfKey : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto loaded = load_mac();
    ASSERT_TRUE(loaded.ok()) << loaded.error().what;
  }
};

TEST_F(MacOfKey, IsThatOfRfc4231) {
  EXPECT_EQ(mac_hex("Hi There", key_of(std::string(20, '\x0b'))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac_hex("what do ya want for nothing?", key_of("Jefe")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac_hex(std::string(50, '\xdd'), key_of(std::string(20, '\xaa'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
}

TEST_F(MacOfKey, IsOfAnyLengthAndPlace) {
  const MacKey key = key_of("a key");
  std::vector<char> bytes(5'000, 'x');
  const std::string at_start = mac_hex({bytes.data(), 4'000}, key);
  EXPECT_EQ(mac_hex({bytes.data() + 7, 4'000}, key), at_start);
  EXPECT_NE(mac_hex({bytes.data(), 4'001}, key), at_start);
  EXPECT_NE(mac_hex({bytes.data(), 4'000}, key_of("another")), at_start);
  EXPECT_NE(mac_hex("", key), mac_hex("", key_of("another")));
}

}  // namespace
}  // namespace sluice
