// SPDX-License-Identifier: MIT
// A place for one test's images where files cannot share extents, whatever file system the tests run on: in
// memory, where there is one. A base, so that it is there before the scene takes it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "support/temp_dir.h"

namespace sluice::plugin_test {

class ImagesInMemory {
 protected:
  std::filesystem::path images_in_memory() const { return std::filesystem::path(memory_.path()) / "images"; }

 private:
  test::TempDir memory_{::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ""};
};

}  // namespace sluice::plugin_test
