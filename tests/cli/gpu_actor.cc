// SPDX-License-Identifier: MIT
// Processes that the tests of `sluice unpause` need besides the subject:
//
//   gpu-actor pause PID TIMES   traces process PID, calls PROCESS_INFO through its /dev/kfd TIMES times, says
//                               "paused" and waits to be killed: a dump up to the moment of its death
//   gpu-actor inherit           opens /dev/kfd, says "child PID" of a child that has inherited it, and both
//                               wait until standard input ends
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kfd/device.h"
#include "kfd/ioctl_call.h"
#include "kfd/uapi.h"
#include "proc/processes.h"

namespace {

int complain(const std::string& what) {
  std::fprintf(stderr, "gpu-actor: %s\n", what.c_str());
  return 1;
}

void wait_for_end_of_input() {
  char letter = 0;
  while (::read(STDIN_FILENO, &letter, 1) > 0) {
  }
}

int pause_process(pid_t pid, int times) {
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) return complain("cannot trace");
  const auto device = sluice::kfd::kfd_device_number();
  if (!device) return complain(device.error().what);
  const auto descriptors = sluice::proc::device_descriptors(pid, *device);
  if (!descriptors || descriptors->empty()) return complain("no /dev/kfd");
  const auto file = sluice::proc::take_descriptor({pid, descriptors->front()});
  if (!file) return complain(file.error().what);
  // By hand, as upstream's plugin does: a CriuSession never lets two pauses pile up.
  for (int i = 0; i < times; i++) {
    sluice::kfd::CriuArgs args{};
    args.op = sluice::kfd::CriuOp::ProcessInfo;
    const int err =
        sluice::kfd::call_ioctl(sluice::kfd::system_ioctl, file->get(), sluice::kfd::kIocCriuOp, &args);
    if (err != 0) return complain("PROCESS_INFO: errno " + std::to_string(err));
  }
  std::puts("paused");
  (void)std::fflush(stdout);
  wait_for_end_of_input();
  return 0;
}

int inherit() {
  const auto number = sluice::kfd::kfd_device_number();
  if (!number) return complain(number.error().what);
  const auto kfd = sluice::kfd::KfdDevice::open(*number);
  if (!kfd) return complain(kfd.error().what);
  const pid_t child = ::fork();
  if (child == 0) {
    wait_for_end_of_input();
    ::_exit(0);
  }
  std::printf("child %d\n", child);
  (void)std::fflush(stdout);
  wait_for_end_of_input();
  return ::waitpid(child, nullptr, 0) == child ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "pause") {
    return pause_process(std::atoi(argv[2]), std::atoi(argv[3]));
  }
  if (arguments.size() == 1 && arguments[0] == "inherit") return inherit();
  return complain("pause PID TIMES, or inherit");
}
