// SPDX-License-Identifier: MIT
// XXH3-128 in the canonical (big-endian) byte order, compiled once per instruction set (checksum.cc,
// checksum_avx2.cc, checksum_avx512.cc).
//
// This file and those for an instruction set include nothing with inline functions of external linkage:
// compiled for AVX2, such a function could be the copy that the linker keeps for everybody, and fault on a
// CPU without AVX2.
#pragma once

#include <stddef.h>

namespace sluice::detail {

// Stores 16 bytes at `sum`. `data` may have any alignment.
void xxh3_128_baseline(const void* data, size_t bytes, unsigned char* sum);

#if defined(__x86_64__)
// REQUIRES: the CPU has AVX2.
void xxh3_128_avx2(const void* data, size_t bytes, unsigned char* sum);
// REQUIRES: the CPU has AVX-512F.
void xxh3_128_avx512(const void* data, size_t bytes, unsigned char* sum);
#endif

}  // namespace sluice::detail
