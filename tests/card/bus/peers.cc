// SPDX-License-Identifier: MIT
#include "bus/peers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/result.h"

namespace sluice::card {

void Peers::place(const DmaMaps::Range& range, int vram) {
  if (directory_.empty()) return;
  const std::string link = link_of(range);
  if (link == placed_) return;
  withdraw();
  (void)::unlink(link.c_str());  // of a card that was killed
  const std::string target = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(vram);
  if (::symlink(target.c_str(), link.c_str()) != 0) {
    std::fprintf(stderr, "other cards cannot reach this one: make %s: %s\n", link.c_str(),
                 std::strerror(errno));
    return;
  }
  placed_ = link;
}

void Peers::withdraw() {
  if (!placed_.empty()) (void)::unlink(placed_.c_str());
  placed_.clear();
}

UniqueFd Peers::find(const DmaMaps::Range& range) const {
  if (directory_.empty()) return {};
  UniqueFd file(::open(link_of(range).c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  // A link may be older than its card, and the process may be another one by now.
  if (!file || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != range.bytes) {
    return {};
  }
  return file;
}

std::string Peers::link_of(const DmaMaps::Range& range) const {
  return directory_ + "/vram-" + hex(range.address) + "-" + hex(range.bytes);
}

}  // namespace sluice::card
