// SPDX-License-Identifier: MIT
#include "lookalike/test_streamer.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/unique_fd.h"
#include "streamer/command.h"
#include "streamer/wire.h"

namespace sluice::lookalike {
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

bool capture_directory(const std::filesystem::path& place, const std::filesystem::path& image) {
  const ScratchDirectory sockets;
  Streamer streamer(sockets.path(), "capture", capture_to(image));
  if (!streamer.ready()) return false;
  UniqueFd socket = streamer::connect_to(sockets.path().string(), streamer::kCaptureSocket);
  if (!socket) return false;
  for (const auto& entry : std::filesystem::directory_iterator(place)) {
    const UniqueFd pipe(streamer::open_stream(socket.get(), entry.path().filename().string(), true));
    if (!pipe) return false;
    const std::string bytes = read_file(entry.path());
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t done = TEMP_FAILURE_RETRY(::write(pipe.get(), &bytes[at], bytes.size() - at));
      if (done <= 0) return false;
      at += static_cast<std::size_t>(done);
    }
  }
  socket.reset();
  return streamer.wait() == 0;
}

}  // namespace sluice::lookalike
