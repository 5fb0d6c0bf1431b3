// SPDX-License-Identifier: MIT
#include "dma_copy.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vamdgpu {
namespace {

#if defined(__x86_64__)
__attribute__((target("avx2"))) void stream_avx2(char* to, const char* from, std::size_t bytes) {
  const std::size_t head =
      std::min<std::size_t>((32 - (reinterpret_cast<std::uintptr_t>(to) & 31)) & 31, bytes);
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= 128; bytes -= 128, to += 128, from += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from);
    auto* out = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
    _mm256_stream_si256(out + 2, c);
    _mm256_stream_si256(out + 3, d);
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace

void dma_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  static const bool vectors = __builtin_cpu_supports("avx2") != 0;
  if (vectors) {
    stream_avx2(static_cast<char*>(to), static_cast<const char*>(from), bytes);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

bool is_mapped(const void* address, std::size_t bytes) {
  constexpr std::size_t kLeastPage = 4096;
  static thread_local unsigned char resident[kDmaCheckBytes / kLeastPage + 1];
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > kDmaCheckBytes - page) return false;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(address) & ~(page - 1);
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(address) + bytes;
  return ::syscall(SYS_mincore, begin, end - begin, resident) == 0;  // ENOMEM: a page is not mapped
}

}  // namespace vamdgpu
