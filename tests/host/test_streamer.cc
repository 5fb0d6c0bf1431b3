// SPDX-License-Identifier: MIT
#include "test_streamer.h"

#include <cstdlib>

#include "streamer/command.h"

namespace sluice::host_test {
namespace {

std::string path_variable() {
  const char* const value = std::getenv("PATH");
  return std::string("PATH=") + (value != nullptr ? value : "/usr/bin:/bin");
}

std::string streamer_program() {
  const char* const chosen = std::getenv("SLUICE_TEST_STREAMER");
  if (chosen != nullptr) return chosen;
  return (program_directory() / "../streamer/test-streamer").lexically_normal().string();
}

constexpr int kProgressFd = 3;

std::string command(const std::filesystem::path& images, const std::string& operation) {
  return streamer::command(streamer_program(), images, kProgressFd, operation);
}

// What goes to kProgressFd is heard.
Program shell(const std::string& words, const Strings& environment) {
  return Program(
      {"/bin/bash", "-o", "pipefail", "-c", "exec " + std::to_string(kProgressFd) + ">&1; " + words},
      environment);
}

}  // namespace

std::string capture_to(const std::filesystem::path& image) {
  return streamer::with_file("$STREAMER", "capture", image);
}

std::string serve_from(const std::filesystem::path& image) {
  return streamer::with_file("$STREAMER", "serve", image);
}

Streamer::Streamer(const std::filesystem::path& images, const std::string& operation,
                   const std::string& words) {
  std::filesystem::create_directories(images);
  program_ =
      shell(words, {"STREAMER=" + streamer::dying_with_shell(command(images, operation)), path_variable()});
  program_.close_input();
  std::string line = program_.hear();
  while (!line.empty() && line != streamer::kReady) line = program_.hear();
  ready_ = !line.empty();
}

int extract_image(const std::filesystem::path& image, const std::filesystem::path& place) {
  std::filesystem::create_directories(place);
  return shell(streamer::with_file(command(place, "extract"), "extract", image), {path_variable()}).wait();
}

}  // namespace sluice::host_test
