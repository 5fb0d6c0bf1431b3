// SPDX-License-Identifier: MIT
// The shell's words for a streamer, the tests' stand-in or criu-image-streamer itself: they take the same.
#pragma once

#include <string>

namespace sluice::streamer {

// Runs `program` for `operation`: capture, serve or extract.
inline std::string command(const std::string& program, const std::string& directory, int progress,
                           const std::string& operation) {
  return program + " --images-dir " + directory + " --progress-fd " + std::to_string(progress) + " " +
         operation;
}

// The same, dying with the shell.
inline std::string mortal(const std::string& command) {
  return "setpriv --pdeathsig SIGKILL " + command;
}

// `command` for `operation`, the image being a file: its own end of that must be a pipe.
inline std::string with_file(const std::string& command, const std::string& operation,
                             const std::string& image) {
  return operation == "capture" ? command + " | cat > " + image : "cat " + image + " | " + command;
}

}  // namespace sluice::streamer
