// SPDX-License-Identifier: MIT
// The function that would run if this library were not preloaded: the next one of that name in the process's
// search order (libc's, or another preloaded library's). For calls that are more than one system call; the
// plain ones are in raw.h.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

namespace vamdgpu {

// One per wrapped function, static. Looked up at the first call: thread-safe, not async-signal-safe.
template <typename Function>
class Next {
 public:
  explicit constexpr Next(const char* name) : name_(name) {}

  Function* get() {
    void* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = ::dlsym(RTLD_NEXT, name_);
      if (found == nullptr) std::abort();  // a libc without a function that its own headers declare
      found_.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* name_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace vamdgpu
