// SPDX-License-Identifier: MIT
#include "support/failing_allocation.h"

#include <cstdlib>
#include <new>

namespace sluice::test {
namespace {

constinit NthFails g_failing;
constinit thread_local bool t_spared = false;

}  // namespace

NthFails& failing_allocation() {
  return g_failing;
}

void spare_allocations_of_this_thread() {
  t_spared = true;
}

}  // namespace sluice::test

// Not inlined: the compiler would see one of a pair, and report a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (!sluice::test::t_spared && sluice::test::g_failing.is_this_one()) throw std::bad_alloc();
  void* memory = std::malloc(bytes != 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
