// SPDX-License-Identifier: MIT
#include "scenario/place.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::bench {

Result<Place> Place::make(const std::filesystem::path& parent) {
  std::string name = parent / "sluice-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) return make_error(errno, name);
  UniqueFd fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return make_error(errno, name);
  return Place(name, std::move(fd));
}

Place::~Place() {
  std::error_code ignored;
  if (fd_) (void)std::filesystem::remove_all(path_, ignored);
}

void Place::settle() const {
  (void)::syncfs(fd_.get());
}

}  // namespace sluice::bench
