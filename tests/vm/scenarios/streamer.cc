// SPDX-License-Identifier: MIT
#include "streamer.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/unique_fd.h"
#include "process.h"
#include "settings.h"
#include "streamer/command.h"

namespace sluice::vm_test {

std::string Streamer::begin(const std::string& operation) {
  kill();
  std::filesystem::create_directories(images_);
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const UniqueFd progress(ends[0]);
  UniqueFd told(ends[1]);
  Launch launch;
  const std::string command = streamer::command((settings().programs / "test-streamer").string(),
                                                images_.string(), told.get(), operation);
  launch.own_session = true;
  launch.arguments = {"sh", "-c", streamer::with_file(command, operation, image_.string())};
  launch.output = image_.parent_path() / ("streamer-" + operation + ".log");
  pid_ = start(launch);
  told.reset();
  return streamer::wait_until_ready(progress.get()) ? ""
                                                    : "the streamer has ended: " + read_file(launch.output);
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
  if (pid_ > 0) (void)::kill(-pid_, SIGKILL);  // the shell's session: it and all that it runs
  if (const pid_t pid = std::exchange(pid_, 0); pid > 0) kill_and_reap(pid);
}

}  // namespace sluice::vm_test
