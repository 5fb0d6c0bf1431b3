// SPDX-License-Identifier: MIT
// memcpy and its kin for this library alone (hidden, so the linker binds the library's own calls here). A
// sanitizer's versions would record accesses to memory whose synchronisation it cannot see: shared state, and
// buffers that a real GPU would read and write unseen.
#include <cstddef>

#define VAMDGPU_OWN __attribute__((visibility("hidden")))

extern "C" {

VAMDGPU_OWN void* own_memcpy(void* to, const void* from, std::size_t bytes) noexcept __asm__("memcpy");
VAMDGPU_OWN void* own_memmove(void* to, const void* from, std::size_t bytes) noexcept __asm__("memmove");
VAMDGPU_OWN void* own_memset(void* to, int value, std::size_t bytes) noexcept __asm__("memset");

void* own_memcpy(void* to, const void* from, std::size_t bytes) noexcept {
  void* const result = to;
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  auto* d = static_cast<volatile unsigned char*>(to);
  auto* s = static_cast<const unsigned char*>(from);
  while (bytes-- != 0) *d++ = *s++;
#endif
  return result;
}

void* own_memmove(void* to, const void* from, std::size_t bytes) noexcept {
  auto* d = static_cast<volatile unsigned char*>(to);
  auto* s = static_cast<const unsigned char*>(from);
  if (d <= s || d >= s + bytes) return own_memcpy(to, from, bytes);
  while (bytes-- != 0) d[bytes] = s[bytes];
  return to;
}

void* own_memset(void* to, int value, std::size_t bytes) noexcept {
  void* const result = to;
#if defined(__x86_64__)
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
#else
  auto* d = static_cast<volatile unsigned char*>(to);
  while (bytes-- != 0) *d++ = static_cast<unsigned char>(value);
#endif
  return result;
}

}  // extern "C"
