// SPDX-License-Identifier: MIT
// The plugin's files of an image directory, in memory, to be put back after they were damaged. Holes stay
// holes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/serial_writer.h"

namespace sluice::corruption_test {

struct FileCopy {
  test::Bytes bytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> data;  // [begin, end) of what is no hole
};

class DirectoryCopy {
 public:
  explicit DirectoryCopy(int dir_fd);

  // By name: amdgpu-*.img, all that a restore may read.
  const std::map<std::string, FileCopy>& files() const { return files_; }

  // Makes one file of the directory what it was; one that was not there goes.
  void put_back(int dir_fd, const std::string& name) const;

 private:
  std::map<std::string, FileCopy> files_;
};

}  // namespace sluice::corruption_test
