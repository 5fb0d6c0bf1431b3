// SPDX-License-Identifier: MIT
// The tests' stand-in for criu-image-streamer (tests/streamer), or that itself (scripts/vm --streamer), for a
// dump and for restores of what it captured.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace sluice::vm_test {

class Streamer {
 public:
  // `images`: the directory that criu is told. `image`: the file that it captures into and serves from.
  Streamer(std::filesystem::path images, std::filesystem::path image)
      : images_(std::move(images)), image_(std::move(image)) {}
  ~Streamer() { kill(); }
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;

  // Starts it with `operation`, capture or serve, and waits until criu may connect. Nothing, or why it ended.
  std::string begin(const std::string& operation);
  // Waits until it ends by itself; false if it does not. Its status tells nothing: it is 0 after an error,
  // too.
  bool ended();
  void kill();

 private:
  std::filesystem::path images_;
  std::filesystem::path image_;
  pid_t pid_ = 0;  // 0: none runs
};

}  // namespace sluice::vm_test
