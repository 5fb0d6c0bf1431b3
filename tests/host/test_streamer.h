// SPDX-License-Identifier: MIT
// The test streamer (tests/streamer), started by a shell command as a user would write it.
#pragma once

#include <filesystem>
#include <string>

#include "harness.h"

namespace sluice::host_test {

// A shell command with the streamer in it, which has told that it is ready. Whatever is left of it is killed
// with the object.
class Streamer {
 public:
  // `what`: capture or serve. `command`: with $STREAMER where "test-streamer WHAT --images-dir IMAGES
  // --progress-fd 3" is meant, which takes the image's file as its argument, or standard input and output.
  Streamer(const std::filesystem::path& images, const std::string& what, const std::string& command);

  bool ready() const { return ready_; }
  int wait() { return program_.wait(); }
  void kill() { program_.kill(); }

 private:
  Program program_;
  bool ready_ = false;
};

// The files of a streamed image, into `place`, which is made. The streamer's exit status.
int extract_image(const std::filesystem::path& image, const std::filesystem::path& place);

}  // namespace sluice::host_test
