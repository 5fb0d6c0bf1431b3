// SPDX-License-Identifier: MIT
// A library to be preloaded into the host look-alike. It stands between amdgpu_plugin.so, as it is shipped,
// and all that the plugin calls: libc, libdrm, protobuf-c, the host, and, of io_uring, the kernel. When the
// host loads the plugin, what the plugin imports (its relocations) is redirected to the wrappers of calls.cc;
// so the calls of the plugin pass through them and those of nobody else. liburing, which is linked into the
// plugin, makes system calls of its own: own_calls.cc has them trapped by their place in memory (seccomp).
//
// A program without kPlanVariable in its environment, or that loads no amdgpu_plugin.so, runs as if the
// library were not there. Beneath the plugin's calls lies what lies there without it: the virtual amdgpu,
// too.
#pragma once

#include "plan.h"

namespace sluice::seam {

// Counts a call that the plugin is about to make, of which `kinds` can happen, and says what shall: kPass,
// kError or kShort. Does not return where the process is to die by SIGKILL, or the call to hang. Any thread,
// signal handlers too.
Kind at_point(const char* call, std::uint32_t kinds);
// The same of what is only asked for, and ends later: returns where that hangs, too, with kHang.
Kind at_request(const char* call, std::uint32_t kinds);

// The calling thread holds SIGTERM back from now on, or no longer. Where another thread than the main one
// hangs, SIGTERM comes while the main thread does: at any other time it would simply end the process.
void signals_are_held(bool held);

// The plugin asks the kernel for what is neither a point nor known to need none: says so, by its number, and
// ends the process. What nobody has thought of would look like what cannot fail. Any thread, signal handlers
// too.
[[noreturn]] void give_up_unlisted(const char* what, long number);

// One import of the plugin: what it finds instead, and where the real one is kept.
struct Import {
  const char* name;
  void* wrapper;
  void** real;
};
struct Imports {
  const Import* first;
  std::size_t count;
};
Imports imports();

// From now on the system calls made by instructions in [begin, end) are points. Aborts where that cannot be
// had: a test that sees less than it says is worse than none.
void trap_calls_between(std::uintptr_t begin, std::uintptr_t end);

}  // namespace sluice::seam
