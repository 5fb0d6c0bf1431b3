// SPDX-License-Identifier: MIT
#include "own_thread.h"

#include <signal.h>
#include <sys/prctl.h>

#include <cstddef>

namespace vamdgpu {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr std::size_t kNameBytes = 16;  // with its end

}  // namespace

bool start_own_thread(const char* name, void* (*body)(void*), void* argument, pthread_t* thread) {
  // A thread inherits both, the name too, as long as it has not said otherwise.
  sigset_t all, signals_before;
  char name_before[kNameBytes] = {};
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &signals_before);
  ::prctl(PR_GET_NAME, name_before);
  ::prctl(PR_SET_NAME, name);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  const bool started = ::pthread_create(thread, &attributes, body, argument) == 0;
  ::pthread_attr_destroy(&attributes);
  ::prctl(PR_SET_NAME, name_before);
  ::pthread_sigmask(SIG_SETMASK, &signals_before, nullptr);
  return started;
}

}  // namespace vamdgpu
