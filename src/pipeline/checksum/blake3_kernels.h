// SPDX-License-Identifier: MIT
// The part of BLAKE3 that takes the time, compiled once per instruction set (blake3.cc, blake3_avx2.cc).
//
// As with checksum_kernels.h: who includes blake3_lanes.h includes nothing with inline functions of external
// linkage.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sluice::detail {

// Bytes of a chunk, the leaf of BLAKE3's tree; chunks that a kernel takes at once; 32-bit words of a key and
// of a chaining value.
inline constexpr size_t kBlake3ChunkBytes = 1024;
inline constexpr size_t kBlake3LeastChunks = 8;
inline constexpr size_t kBlake3MostChunks = 64;
inline constexpr size_t kBlake3Words = 8;

// The chaining value of the subtree over `chunks` whole chunks, the first of which is the message's chunk
// number `counter`, to `value`. REQUIRES: `chunks` is a power of two from kBlake3LeastChunks to
// kBlake3MostChunks; `key` and `value` have kBlake3Words words. `data` may have any alignment.
using Blake3Subtree = void (*)(const unsigned char* data, size_t chunks, const uint32_t* key,
                               uint64_t counter, uint32_t* value);

void blake3_subtree_baseline(const unsigned char* data, size_t chunks, const uint32_t* key, uint64_t counter,
                             uint32_t* value);

#if defined(__x86_64__)
// REQUIRES: the CPU has AVX2.
void blake3_subtree_avx2(const unsigned char* data, size_t chunks, const uint32_t* key, uint64_t counter,
                         uint32_t* value);
#endif

}  // namespace sluice::detail
