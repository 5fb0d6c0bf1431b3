// SPDX-License-Identifier: MIT
// How tests start a streamer, their stand-in or criu-image-streamer itself: both take the same.
#pragma once

#include <unistd.h>

#include <string>

namespace sluice::streamer {

// The shell's words that run `program` for `operation`: capture, serve or extract.
inline std::string command(const std::string& program, const std::string& directory, int progress_fd,
                           const std::string& operation) {
  return program + " --images-dir " + directory + " --progress-fd " + std::to_string(progress_fd) + " " +
         operation;
}

// `command` that dies with the shell that runs it. Not in guests, whose setpriv is busybox's.
inline std::string dying_with_shell(const std::string& command) {
  return "setpriv --pdeathsig SIGKILL " + command;
}

// `command` for `operation`, the image being a file: its own end of that must be a pipe.
inline std::string with_file(const std::string& command, const std::string& operation,
                             const std::string& image) {
  return operation == "capture" ? command + " | cat > " + image : "cat " + image + " | " + command;
}

// What the streamer says when its socket can be connected to. On serve it says before what it has read.
inline constexpr const char* kReady = "socket-init";

// Reads what it says until it is ready; false: it has ended.
inline bool wait_until_ready(int progress_fd) {
  std::string line;
  for (char byte = 0; ::read(progress_fd, &byte, 1) == 1;) {
    if (byte != '\n') {
      line += byte;
    } else if (line == kReady) {
      return true;
    } else {
      line.clear();
    }
  }
  return false;
}

}  // namespace sluice::streamer
