// SPDX-License-Identifier: MIT
// The streamer, started by a shell command as a user would write it: the tests' stand-in (tests/streamer), or
// the program that SLUICE_TEST_STREAMER names, criu-image-streamer.
#pragma once

#include <filesystem>
#include <string>

#include "lookalike/harness.h"

namespace sluice::lookalike {

// `words` of a Streamer whose image is a file.
std::string capture_to(const std::filesystem::path& image);
std::string serve_from(const std::filesystem::path& image);

// A shell command with the streamer in it, which has told that it is ready. Whatever is left of it is killed
// with the object.
class Streamer {
 public:
  // `operation`: capture or serve. `words`: with $STREAMER where that of the streamer is meant; the image
  // goes through its standard output or input, a pipe.
  Streamer(const std::filesystem::path& images, const std::string& operation, const std::string& words);

  bool ready() const { return ready_; }
  int wait() { return program_.wait(); }
  void kill() { program_.kill(); }

 private:
  Program program_;
  bool ready_ = false;
};

// The files of a streamed image, into `place`, which is made. The streamer's exit status.
int extract_image(const std::filesystem::path& image, const std::filesystem::path& place);

// The other way round: an image of all files in `place`. False: it could not be made.
bool capture_directory(const std::filesystem::path& place, const std::filesystem::path& image);

}  // namespace sluice::lookalike
