// SPDX-License-Identifier: MIT
// BLAKE3 with a key: the published answers, on every processor.
#include "pipeline/checksum/blake3.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "pipeline/checksum/blake3_kernels.h"

namespace sluice {
namespace {

// As the specification's test vectors are made.
std::vector<std::byte> sample(std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

Blake3Key sample_key() {
  constexpr char kWords[] = "whats the Elvish word for friend";
  Blake3Key key;
  static_assert(sizeof kWords == std::tuple_size_v<Blake3Key> + 1);
  std::memcpy(key.data(), kWords, key.size());
  return key;
}

std::string digits(const std::array<std::uint8_t, 32>& sum) {
  std::string text;
  for (const std::uint8_t byte : sum) {
    char two[3];
    (void)std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

// Lengths of the published vectors, and others as b3sum --keyed has them.
TEST(Blake3, KnownAnswers) {
  const struct {
    std::size_t length;
    const char* sum;
  } known[] = {
      {0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"},
      {1, "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b"},
      {63, "bb1eb5d4afa793c1ebdd9fb08def6c36d10096986ae0cfe148cd101170ce37ae"},
      {64, "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6"},
      {65, "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72"},
      {1023, "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e"},
      {1024, "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4"},
      {1025, "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69"},
      {2048, "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1"},
      {2049, "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5"},
      {3073, "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a"},
      {7169, "ed9b1a922c046fdb3d423ae34e143b05ca1bf28b710432857bf738bcedbfa511"},
      {8192, "dc9637c8845a770b4cbf76b8daec0eebf7dc2eac11498517f08d44c8fc00d58a"},
      {8193, "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5"},
      {16384, "9e9fc4eb7cf081ea7c47d1807790ed211bfec56aa25bb7037784c13c4b707b0d"},
      {31744, "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419"},
      {65536, "160fb7538a11d83b9b311825a6baef08484d6aabb8276900a1fb08648085cca2"},
      {65537, "8f9e30b67fc0c4c1d0d5fb87e183d48248d97712223b73a8e1721a77c88c6e1d"},
      {102400, "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7"},
      {1048576, "59b889b0821111fc4c249dc98b5435b767b44fb881542c61a85c1bebbffb2906"},
      {1048577, "a0c8e093827da3e07e22fa684eb60fc1600cf44c5036c80fb0b587d0f39ef421"},
      {3000000, "03b78c7aaa24c6518d29c187403455b93235821d080bd015fff83bdef6486f89"},
  };
  for (const auto& [length, sum] : known) {
    EXPECT_EQ(digits(blake3_keyed(sample(length), sample_key())), sum) << length << " bytes";
  }
}

TEST(Blake3, AnyAlignmentGivesTheSame) {
  const auto bytes = sample(70000);
  const auto sum = blake3_keyed(bytes, sample_key());
  for (std::size_t skew = 1; skew < 9; ++skew) {
    std::vector<std::byte> moved(skew);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(blake3_keyed(std::span(moved).subspan(skew), sample_key()), sum) << skew;
  }
}

TEST(Blake3, AnotherKeyGivesAnother) {
  Blake3Key other = sample_key();
  other.back() ^= 1;
  EXPECT_NE(blake3_keyed({}, other), blake3_keyed({}, sample_key()));
}

#if defined(__x86_64__)
// What a processor without AVX2 makes, another reads.
TEST(Blake3, InstructionSetsAgree) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2 here";
  const auto bytes = sample(detail::kBlake3MostChunks * detail::kBlake3ChunkBytes);
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  const std::uint32_t key[detail::kBlake3Words] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (std::size_t chunks = detail::kBlake3LeastChunks; chunks <= detail::kBlake3MostChunks; chunks *= 2) {
    for (const std::uint64_t counter :
         {std::uint64_t{0}, std::uint64_t{0xfffffff8}, std::uint64_t{1} << 40}) {
      std::array<std::uint32_t, detail::kBlake3Words> plain{}, wide{};
      detail::blake3_subtree_baseline(data, chunks, key, counter, plain.data());
      detail::blake3_subtree_avx2(data, chunks, key, counter, wide.data());
      EXPECT_EQ(plain, wide) << chunks << " chunks from " << counter;
    }
  }
}
#endif

}  // namespace
}  // namespace sluice
