// SPDX-License-Identifier: MIT
#include "streamer.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "pipeline/unique_fd.h"
#include "process.h"
#include "settings.h"

namespace sluice::vm_test {

std::string Streamer::begin(const std::string& command) {
  kill();
  std::filesystem::create_directories(images_);
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const UniqueFd progress(ends[0]);
  UniqueFd told(ends[1]);
  Launch launch;
  launch.arguments = {(settings().programs / "test-streamer").string(),
                      command,
                      "--images-dir",
                      images_.string(),
                      "--progress-fd",
                      std::to_string(told.get()),
                      image_.string()};
  launch.output = image_.parent_path() / ("streamer-" + command + ".log");
  pid_ = start(launch);
  told.reset();
  char byte = 0;
  while (::read(progress.get(), &byte, 1) == 1 && byte != '\n') {
  }
  return byte == '\n' ? "" : "the streamer has ended: " + read_file(launch.output);
}

bool Streamer::ended() {
  const auto gone = [this] {
    (void)living_children();  // reaps it
    return ::kill(pid_, 0) != 0;
  };
  if (!eventually(gone)) return false;
  pid_ = 0;
  return true;
}

void Streamer::kill() {
  if (const pid_t pid = std::exchange(pid_, 0); pid > 0) kill_and_reap(pid);
}

}  // namespace sluice::vm_test
