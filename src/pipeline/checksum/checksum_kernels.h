// SPDX-License-Identifier: MIT
// XXH3-128 in the canonical (big-endian) byte order, compiled once per instruction set (checksum.cc,
// checksum_avx2.cc).
//
// This file and checksum_avx2.cc include nothing with inline functions of external linkage. The linker might
// keep the copy compiled for AVX2 for everyone, which would fault on a CPU without AVX2.
#pragma once

#include <stddef.h>

// For xxhash.h, included after this file: the prefetch distance in bytes, a page and a half. Data just
// written by a GPU or a disk is in no cache of this core, and the CPU's own prefetchers stop at a page's end.
// With the library's 384 bytes a server core hashed 9 GB/s of such data, with this 17
// (docs/measurements/performance.md).
#define XXH_PREFETCH_DIST 6144

namespace sluice::detail {

// The library's own secret is as long, so a block has as many stripes with either.
enum { kSecretBytes = 192 };

// Stores 16 bytes at `sum`. `data` may have any alignment. `secret`: kSecretBytes bytes; null: the library's
// own.
void xxh3_128_baseline(const void* data, size_t bytes, const unsigned char* secret, unsigned char* sum);

#if defined(__x86_64__)
// REQUIRES: the CPU has AVX2.
void xxh3_128_avx2(const void* data, size_t bytes, const unsigned char* secret, unsigned char* sum);
#endif

}  // namespace sluice::detail
