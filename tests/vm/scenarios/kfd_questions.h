// SPDX-License-Identifier: MIT
// Questions to /dev/kfd that a driver answers without any GPU: versions, which ioctls there are, and what is
// refused with which errno. Debian's own amdgpu.ko makes a real /dev/kfd on a machine without a GPU
// (Linux 6.12), so that the virtual one can be held against the true one.
#pragma once

#include <string>
#include <vector>

namespace sluice::vm_test {

struct KfdAnswer {
  std::string question;
  std::string answer;  // "ok", the values that came back, or the errno's name
};

// Opens /dev/kfd in a process of its own (a KFD process lives as long as an address space) and asks. Empty
// when there is no /dev/kfd or it cannot be opened; throws std::system_error when no process can be made.
std::vector<KfdAnswer> ask_kfd();

}  // namespace sluice::vm_test
