// SPDX-License-Identifier: MIT
// The only way sluice::kfd calls ioctl(2), and the seam for a test's fake KFD.
//
// An IoctlFunction behaves like ioctl(2): -1 and errno on failure. It is called through call_ioctl, which
// repeats interrupted calls. Reentrant; a fake must be as thread-safe as its test needs.
#pragma once

#include <functional>

namespace sluice::kfd {

using IoctlFunction = std::function<int(int fd, unsigned long request, void* argument)>;

// ioctl(2) itself.
int system_ioctl(int fd, unsigned long request, void* argument);

enum class OnInterrupt {
  Retry,
  Fail,  // for the call that leaves half of its work behind: a repetition would hide why it failed
};

// Returns 0, or the errno of the failed call.
int call_ioctl(const IoctlFunction& ioctl_function, int fd, unsigned long request, void* argument,
               OnInterrupt on_interrupt = OnInterrupt::Retry);

}  // namespace sluice::kfd
