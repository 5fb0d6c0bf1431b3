// SPDX-License-Identifier: MIT
#include "guest_subject.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "settings.h"

namespace sluice::vm_test {
namespace {

using Clock = std::chrono::steady_clock;

UniqueFd make_fifo(const std::filesystem::path& path) {
  if (::mkfifo(path.c_str(), 0600) != 0)
    throw std::system_error(errno, std::generic_category(), "mkfifo " + path.string());
  // Both ends: neither side ever sees an end of file while the other is being restored.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) throw std::system_error(errno, std::generic_category(), "open " + path.string());
  return fd;
}

}  // namespace

GuestSubject::GuestSubject(std::filesystem::path directory, std::filesystem::path inside)
    : directory_(std::move(directory)),
      inside_(inside.empty() ? directory_ : std::move(inside)),
      program_(settings().programs / "gpu-subject") {
  std::filesystem::remove_all(directory_);
  std::filesystem::create_directories(directory_);
  to_ = make_fifo(directory_ / "in");
  from_ = make_fifo(directory_ / "out");
}

GuestSubject::~GuestSubject() {
  kill();
}

std::string GuestSubject::start(const Strings& options, Launch launch) {
  const bool wrapped = !launch.arguments.empty();
  launch.arguments.insert(launch.arguments.end(), {program_.string(), "--control", inside_.string()});
  launch.arguments.insert(launch.arguments.end(), options.begin(), options.end());
  std::string ready = start_program(std::move(launch));
  if (!wrapped) root_ = pid_;
  return ready;
}

std::string GuestSubject::start_program(Launch launch) {
  launch.own_session = true;
  if (launch.output.empty()) launch.output = "/dev/console";
  pid_ = root_ = vm_test::start(launch);
  const std::string ready = hear();
  // The one to dump may be a child of what was started. In a pid namespace of its own it does not know how it
  // is called here.
  if (const long pid = number_in(ready, "pid"); pid > 0 && launch.namespaces == 0)
    pid_ = static_cast<pid_t>(pid);
  return ready;
}

std::string GuestSubject::meet() {
  std::string ready = hear();
  if (const long pid = number_in(ready, "pid"); pid > 0) pid_ = static_cast<pid_t>(pid);
  return ready;
}

std::string GuestSubject::ask(const std::string& command) {
  say(command);
  return hear();
}

void GuestSubject::say(const std::string& command) {
  const std::string line = command + "\n";
  (void)!::write(to_.get(), line.data(), line.size());
}

std::string GuestSubject::hear() {
  const Clock::time_point end = Clock::now() + kPatience;
  for (;;) {
    if (const std::size_t newline = pending_.find('\n'); newline != std::string::npos) {
      std::string line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return line;
    }
    pollfd wait{from_.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, 200);
    if (ready > 0) {
      std::array<char, 512> text{};
      const ssize_t got = ::read(from_.get(), text.data(), text.size());
      if (got > 0) pending_.append(text.data(), static_cast<std::size_t>(got));
    } else if (Clock::now() > end ||
               (ready == 0 && pid_ > 0 && !is_alive(pid_) && living_children().empty())) {
      return {};
    }
  }
}

bool GuestSubject::has_spoken() {
  pollfd wait{from_.get(), POLLIN, 0};
  return !pending_.empty() || ::poll(&wait, 1, 0) > 0;
}

void GuestSubject::kill() {
  for (const pid_t pid : {pid_, root_}) {
    if (pid > 0) kill_and_reap(pid);
  }
  pid_ = root_ = 0;
}

bool GuestSubject::reap_dumped() {
  // Its children come to this process when it dies, and are to be reaped, too.
  return wait_for(root_).has_value() && eventually([] { return living_children().empty(); });
}

std::optional<int> GuestSubject::quit() {
  if (ask("quit") != "ok quit") return std::nullopt;
  const std::optional<int> status = wait_for(root_);
  if (status) pid_ = root_ = 0;
  return status;
}

long number_in(const std::string& answer, const std::string& key) {
  const std::size_t at = (" " + answer).find(" " + key + "=");
  return at == std::string::npos ? -1 : std::atol(answer.c_str() + at + key.size() + 1);
}

}  // namespace sluice::vm_test
