// SPDX-License-Identifier: MIT
// Refuses a system call, as a container's seccomp profile does.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace sluice::test {

// The lower half of a system call's argument has one of `bits` set.
struct ArgumentBits {
  unsigned argument = 0;
  std::uint32_t bits = 0;
};

// For the calling thread, its new threads, and whatever they execute, for ever. `number`: __NR_*; `err`: a
// positive errno; `arguments`: only calls for which all of these hold. False, with errno: the filter was
// refused.
inline bool refuse_system_call(unsigned number, unsigned err,
                               std::initializer_list<ArgumentBits> arguments = {}) {
  constexpr std::size_t kMostArguments = 6;
  std::array<sock_filter, 4 + 2 * kMostArguments> program{};
  if (arguments.size() > kMostArguments) {
    errno = EINVAL;
    return false;
  }
  std::size_t length = 0;
  std::size_t left = 2 * arguments.size() + 1;  // instructions up to the one that allows the call
  program[length++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  program[length++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, static_cast<std::uint8_t>(left));
  for (const ArgumentBits& each : arguments) {
    left -= 2;
    const std::size_t place = offsetof(seccomp_data, args) + each.argument * sizeof(std::uint64_t);
    program[length++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(place));
    program[length++] = BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, each.bits, 0, static_cast<std::uint8_t>(left));
  }
  program[length++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err);
  program[length++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog filter{static_cast<unsigned short>(length), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Refuses to make threads and processes.
inline bool refuse_threads(unsigned err) {
  return refuse_system_call(SYS_clone, err) && refuse_system_call(SYS_clone3, err);
}

}  // namespace sluice::test
