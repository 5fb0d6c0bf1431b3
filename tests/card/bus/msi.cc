// SPDX-License-Identifier: MIT
#include "bus/msi.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sluice::card {

void Msi::raise() {
  if (!trigger_) return;
  const std::uint64_t one = 1;
  ssize_t written = 0;
  do {
    written = ::write(trigger_.get(), &one, sizeof one);
  } while (written < 0 && errno == EINTR);
  if (written == sizeof one) {
    ++raised_;
    return;
  }
  // EAGAIN: as many interrupts are waiting as can be counted, so that QEMU will see one.
  if (errno != EAGAIN) std::fprintf(stderr, "an interrupt did not reach QEMU: %s\n", std::strerror(errno));
}

}  // namespace sluice::card
