// SPDX-License-Identifier: MIT
#include "test_streamer.h"

#include <cstdlib>

namespace sluice::host_test {
namespace {

std::string path_variable() {
  const char* const value = std::getenv("PATH");
  return std::string("PATH=") + (value != nullptr ? value : "/usr/bin:/bin");
}

std::string test_streamer() {
  return (program_directory() / "../streamer/test-streamer").lexically_normal().string();
}

}  // namespace

Streamer::Streamer(const std::filesystem::path& images, const std::string& what, const std::string& command) {
  std::filesystem::create_directories(images);
  const std::string streamer =
      test_streamer() + " " + what + " --images-dir " + images.string() + " --progress-fd 3";
  program_ = Program({"/bin/bash", "-c", "exec 3>&1; " + command}, {"STREAMER=" + streamer, path_variable()});
  program_.close_input();
  ready_ = program_.hear() == "socket-init";
}

int extract_image(const std::filesystem::path& image, const std::filesystem::path& place) {
  std::filesystem::create_directories(place);
  return Program({test_streamer(), "extract", "--images-dir", place.string(), image.string()}, {}).wait();
}

}  // namespace sluice::host_test
