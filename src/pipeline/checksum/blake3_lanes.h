// SPDX-License-Identifier: MIT
// BLAKE3's compression function, on one block or on as many side by side as the vectors of the instruction
// set have lanes, and what is built of it. Everything here has internal linkage: see blake3_kernels.h.
//
// From the specification, sections 2.1 to 2.4: https://github.com/BLAKE3-team/BLAKE3-specs
#pragma once

#include <endian.h>

#include "pipeline/checksum/blake3_kernels.h"

namespace sluice::detail {
namespace {

inline constexpr size_t kBlockBytes = 64;
inline constexpr size_t kBlockWords = 16;
inline constexpr size_t kBlocksOfChunk = kBlake3ChunkBytes / kBlockBytes;

enum : uint32_t { kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8, kKeyedHash = 16 };

inline constexpr uint32_t kInitial[4] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A};

// Which word of the block each step of a round takes: every round permutes those of the round before.
struct Schedule {
  uint8_t round[7][kBlockWords] = {};
};
constexpr Schedule schedule() {
  constexpr uint8_t kPermutation[kBlockWords] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
  Schedule made;
  for (uint8_t i = 0; i < kBlockWords; ++i) made.round[0][i] = i;
  for (int r = 1; r < 7; ++r) {
    for (size_t i = 0; i < kBlockWords; ++i) made.round[r][i] = made.round[r - 1][kPermutation[i]];
  }
  return made;
}
inline constexpr Schedule kSchedule = schedule();

// A word of each of several blocks.
#if defined(__AVX2__)
inline constexpr size_t kLanes = 8;
#else
inline constexpr size_t kLanes = 4;
#endif
using Lanes [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;

// What `word_of` says of each lane.
template <class WordOf>
[[gnu::always_inline]] inline Lanes each_lane(WordOf word_of) {
#if defined(__AVX2__)
  return Lanes{word_of(0), word_of(1), word_of(2), word_of(3),
               word_of(4), word_of(5), word_of(6), word_of(7)};
#else
  return Lanes{word_of(0), word_of(1), word_of(2), word_of(3)};
#endif
}

template <class Word>
[[gnu::always_inline]] inline void rotate_right(Word& word, int bits) {
  word = (word >> bits) | (word << (32 - bits));
}

template <class Word>
[[gnu::always_inline]] inline void mix(Word* v, int a, int b, int c, int d, const Word& x, const Word& y) {
  v[a] += v[b] + x;
  v[d] ^= v[a];
  rotate_right(v[d], 16);
  v[c] += v[d];
  v[b] ^= v[c];
  rotate_right(v[b], 12);
  v[a] += v[b] + y;
  v[d] ^= v[a];
  rotate_right(v[d], 8);
  v[c] += v[d];
  v[b] ^= v[c];
  rotate_right(v[b], 7);
}

template <class Word>
[[gnu::always_inline]] inline void mix_all(Word* v, const Word* m, const uint8_t (&s)[kBlockWords]) {
  mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
  mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
  mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
  mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
  mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
  mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
  mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
  mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
}

// `value`: the chaining value before, and then the one behind the block `m`.
template <class Word>
[[gnu::always_inline]] inline void compress(Word* value, const Word* m, const Word& counter_low,
                                            const Word& counter_high, uint32_t bytes, uint32_t flags) {
  const Word zero{};
  Word v[kBlockWords];
  for (size_t i = 0; i < kBlake3Words; ++i) v[i] = value[i];
  for (size_t i = 0; i < 4; ++i) v[kBlake3Words + i] = zero + kInitial[i];
  v[12] = counter_low;
  v[13] = counter_high;
  v[14] = zero + bytes;
  v[15] = zero + flags;
  mix_all(v, m, kSchedule.round[0]);
  mix_all(v, m, kSchedule.round[1]);
  mix_all(v, m, kSchedule.round[2]);
  mix_all(v, m, kSchedule.round[3]);
  mix_all(v, m, kSchedule.round[4]);
  mix_all(v, m, kSchedule.round[5]);
  mix_all(v, m, kSchedule.round[6]);
  for (size_t i = 0; i < kBlake3Words; ++i) value[i] = v[i] ^ v[i + kBlake3Words];
}

inline uint32_t load_word(const unsigned char* bytes) {
  uint32_t word;
  __builtin_memcpy(&word, bytes, sizeof word);
  return le32toh(word);
}

// `children`: the chaining values of two, one behind the other.
inline void hash_parent(const uint32_t* children, const uint32_t* key, uint32_t flags, uint32_t* value) {
  uint32_t made[kBlake3Words];
  __builtin_memcpy(made, key, sizeof made);
  compress<uint32_t>(made, children, 0, 0, kBlockBytes, kParent | flags);
  __builtin_memcpy(value, made, sizeof made);
}

// kLanes values that stand in the lanes, one behind the other.
inline void store_lanes(const Lanes* value, uint32_t* values) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t i = 0; i < kBlake3Words; ++i) values[lane * kBlake3Words + i] = value[i][lane];
  }
}

// kLanes whole chunks.
inline void hash_chunks(const unsigned char* data, const uint32_t* key, uint64_t counter, uint32_t* values) {
  Lanes value[kBlake3Words];
  for (size_t i = 0; i < kBlake3Words; ++i) value[i] = Lanes{} + key[i];
  const Lanes low = each_lane([=](size_t lane) { return static_cast<uint32_t>(counter + lane); });
  const Lanes high = each_lane([=](size_t lane) { return static_cast<uint32_t>((counter + lane) >> 32); });
  for (size_t block = 0; block < kBlocksOfChunk; ++block) {
    Lanes m[kBlockWords];
    for (size_t i = 0; i < kBlockWords; ++i) {
      const unsigned char* const word = data + block * kBlockBytes + i * sizeof(uint32_t);
      m[i] = each_lane([=](size_t lane) { return load_word(word + lane * kBlake3ChunkBytes); });
    }
    const uint32_t place = (block == 0 ? kChunkStart : 0U) | (block + 1 == kBlocksOfChunk ? kChunkEnd : 0U);
    compress(value, m, low, high, kBlockBytes, kKeyedHash | place);
  }
  store_lanes(value, values);
}

// kLanes parents of twice as many children. `values` may begin where `children` does.
inline void hash_parents(const uint32_t* children, const uint32_t* key, uint32_t* values) {
  Lanes m[kBlockWords];
  for (size_t i = 0; i < kBlockWords; ++i)
    m[i] = each_lane([=](size_t lane) { return children[lane * kBlockWords + i]; });
  Lanes value[kBlake3Words];
  for (size_t i = 0; i < kBlake3Words; ++i) value[i] = Lanes{} + key[i];
  compress(value, m, Lanes{}, Lanes{}, kBlockBytes, kKeyedHash | kParent);
  store_lanes(value, values);
}

// A Blake3Subtree: level by level, each in place of the one below.
inline void hash_subtree(const unsigned char* data, size_t chunks, const uint32_t* key, uint64_t counter,
                         uint32_t* value) {
  uint32_t values[kBlake3MostChunks * kBlake3Words];
  for (size_t i = 0; i < chunks; i += kLanes)
    hash_chunks(data + i * kBlake3ChunkBytes, key, counter + i, values + i * kBlake3Words);
  for (size_t parents = chunks / 2; parents > 0; parents /= 2) {
    size_t i = 0;
    for (; i + kLanes <= parents; i += kLanes)
      hash_parents(values + i * kBlockWords, key, values + i * kBlake3Words);
    for (; i < parents; ++i)
      hash_parent(values + i * kBlockWords, key, kKeyedHash, values + i * kBlake3Words);
  }
  __builtin_memcpy(value, values, kBlake3Words * sizeof(uint32_t));
}

}  // namespace
}  // namespace sluice::detail
