// SPDX-License-Identifier: MIT
#include "lookalike/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace sluice::lookalike {
namespace {

// Asked at the start: in a mount namespace that a test makes later the link may lead nowhere.
const std::filesystem::path kProgram = [] {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}();

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers(const Strings& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::string read_line(int fd) {
  std::string line;
  for (;;) {
    char letter = 0;
    const ssize_t got = ::read(fd, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};  // an unfinished line is none
    if (letter == '\n') return line;
    line += letter;
  }
}

// Of signals, in /proc/PID/status.
bool is_in_mask(pid_t pid, const std::string& mask, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(mask))
      return (std::stoull(line.substr(mask.size()), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

// In /proc; empty: there is none.
std::filesystem::path thread_named(pid_t pid, const std::string& name) {
  std::error_code error;
  std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid) + "/task", error);
  for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
    if (read_file(threads->path() / "comm") == name + "\n") return threads->path();
  }
  return {};
}

}  // namespace

Program::Program(const Strings& arguments, const Strings& environment, bool control) {
  auto [child_input, our_input] = make_pipe();
  auto [our_output, child_output] = make_pipe();
  UniqueFd child_control;
  if (control) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
    control_.reset(ends[0]);
    child_control.reset(ends[1]);
  }
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    (void)::dup2(child_input.get(), STDIN_FILENO);
    (void)::dup2(child_output.get(), STDOUT_FILENO);
    if (control && child_control.get() == kControlFd) (void)::fcntl(kControlFd, F_SETFD, 0);
    if (control) (void)::dup2(child_control.get(), kControlFd);
    (void)::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  input_ = std::move(our_input);
  output_ = std::move(our_output);
}

Program& Program::operator=(Program&& other) noexcept {
  if (this == &other) return *this;
  kill();
  pid_ = std::exchange(other.pid_, 0);
  input_ = std::move(other.input_);
  output_ = std::move(other.output_);
  control_ = std::move(other.control_);
  return *this;
}

Program::~Program() {
  kill();
}

void Program::say(const std::string& line) {
  const std::string text = line + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(input_.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // it is gone: hear() says so
    done += static_cast<std::size_t>(wrote);
  }
}

std::string Program::hear() {
  return read_line(output_.get());
}

std::string Program::ask(const std::string& line) {
  say(line);
  return hear();
}

bool Program::output_has_ended() const {
  pollfd output{output_.get(), 0, 0};
  return ::poll(&output, 1, 0) > 0 && (output.revents & POLLHUP) != 0;
}

bool Program::has_ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

bool Program::blocks(int signal) const {
  return is_in_mask(pid_, "SigBlk:", signal);
}

bool Program::has_pending(int signal) const {
  return is_in_mask(pid_, "ShdPnd:", signal);
}

bool Program::has_thread(const std::string& name) const {
  return !thread_named(pid_, name).empty();
}

bool Program::thread_sleeps(const std::string& name) const {
  const std::filesystem::path thread = thread_named(pid_, name);
  return !thread.empty() && read_file(thread / "status").find("State:\tS") != std::string::npos;
}

std::string Program::hear_control() {
  return read_line(control_.get());
}

void Program::release_control() {
  (void)!::write(control_.get(), "g", 1);
}

int Program::wait() {
  int status = 0;
  pid_t waited = 0;
  do {
    waited = ::waitpid(pid_, &status, 0);
  } while (waited < 0 && errno == EINTR);
  pid_ = 0;
  if (waited < 0) fail("waitpid");
  return vamdgpu::shell_status(status);
}

void Program::kill() {
  if (pid_ <= 0) return;
  (void)::kill(pid_, SIGKILL);
  (void)wait();
}

std::filesystem::path program_directory() {
  return kProgram.parent_path();
}

std::filesystem::path shipped_plugin_directory() {
  if (const char* installed = std::getenv("SLUICE_TEST_PLUGIN_DIR")) return installed;
  return (program_directory() / "../../src/plugin").lexically_normal();
}

std::filesystem::path probe_plugin_directory() {
  return (program_directory() / "../lookalike/probe").lexically_normal();
}

ScratchDirectory::ScratchDirectory(const std::filesystem::path& parent) {
  std::string name =
      ((parent.empty() ? std::filesystem::temp_directory_path() : parent) / "sluice-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail("mkdtemp");
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Scene::Scene(const vamdgpu::MachineOptions& options, std::filesystem::path libdir,
             const std::filesystem::path& images)
    : scratch_(std::make_unique<ScratchDirectory>()),
      machine_(vamdgpu::Machine::create(options)),
      libdir_(std::move(libdir)),
      images_(images.empty() ? scratch_->path() / "images" : images),
      log_(scratch_->path() / "host.log"),
      control_(vamdgpu::Control::open(machine_.directory().string())) {
  if (!control_) fail("open the virtual machine");
  // A subject or host that dies must show as a failed check, not end the test program.
  (void)::signal(SIGPIPE, SIG_IGN);
}

void Scene::move_to(const vamdgpu::MachineOptions& options) {
  end_subject();
  control_.reset();
  machine_ = vamdgpu::Machine::create(options);
  control_ = vamdgpu::Control::open(machine_.directory().string());
  if (!control_) fail("open the virtual machine");
}

Strings Scene::environment() const {
  Strings result = machine_.process_environment();
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::string Scene::start_subject(const Strings& arguments) {
  end_subject();
  Strings command = {(program_directory() / "../subject/gpu-subject").string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  subject_ = start_program(command);
  subject_pid_ = subject_.pid();
  return subject_.hear();
}

Program Scene::start_host(const std::string& version, const std::string& command, const Strings& more) {
  Strings arguments = run_by;
  arguments.insert(arguments.end(),
                   {(program_directory() / ("../lookalike/criu-host-" + version)).string(), command,
                    "--images", images_.string(), "--libdir", libdir_.string(), "--log", log_.string(),
                    "--control-fd", std::to_string(Program::kControlFd)});
  if (command == "restore") {
    arguments.insert(arguments.end(), {"--detach", "--pidfile", pid_file().string()});
  } else if (subject_pid_ != 0) {
    arguments.insert(arguments.end(), {"--pid", std::to_string(subject_pid_)});
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Program(arguments, environment(), true);
}

int Scene::dump(const std::string& version, const Strings& more) {
  return start_host(version, "dump", more).wait();
}

int Scene::restore(const std::string& version, const Strings& more) {
  Program host = start_host(version, "restore", more);
  const int status = host.wait();
  if (status == 0) adopt(std::move(host));
  return status;
}

void Scene::adopt(Program host) {
  subject_ = std::move(host);
  subject_pid_ = std::atoi(read_file(pid_file()).c_str());
}

void Scene::end_subject() {
  if (subject_pid_ == 0) return;
  subject_.close_input();  // it ends at end of file
  wait_until_subject_is_gone();
  subject_ = Program();
  subject_pid_ = 0;
}

void Scene::wait_until_subject_is_gone() {
  while (!subject_.hear().empty()) {
  }
  // Its output has closed; what is left are a few more descriptors. There is one subject at a time.
  const auto open_files = [this] {
    const vamdgpu::Counts counts = control_->counts();
    return counts.kfd_files + counts.render_files + counts.processes;
  };
  while (open_files() > 0) (void)::sched_yield();
}

std::string Scene::log() {
  std::string text = read_file(log_);
  std::error_code ignored;
  std::filesystem::remove(log_, ignored);
  return text;
}

bool Scene::has_logged(const std::string& text) const {
  return read_file(log_).find(text) != std::string::npos;
}

FifoSubject::FifoSubject(const std::filesystem::path& directory) : directory_(directory) {
  std::filesystem::create_directories(directory);
  for (const char* name : {"in", "out"}) {
    if (::mkfifo((directory / name).c_str(), 0600) != 0) fail("mkfifo");
  }
  to_ = UniqueFd(::open((directory / "in").c_str(), O_RDWR | O_CLOEXEC));
  from_ = UniqueFd(::open((directory / "out").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!to_ || !from_) fail("open a FIFO");
}

std::string FifoSubject::start(Scene& scene, const Strings& arguments) {
  Strings command = {(program_directory() / "../subject/gpu-subject").string(), "--control",
                     directory_.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  program_ = scene.start_program(command);
  become(program_.pid());
  return hear();
}

void FifoSubject::become(pid_t pid) {
  pid_ = pid;
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd_) fail("pidfd_open");
}

void FifoSubject::say(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::write(to_.get(), text.data(), text.size());
}

std::string FifoSubject::hear() {
  for (;;) {
    if (const std::size_t end = heard_.find('\n'); end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    // Its end closes the FIFO, too; before it has opened that, only its pidfd tells.
    std::array<pollfd, 2> sources = {{{from_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}}};
    if (::poll(sources.data(), sources.size(), -1) < 0) {
      if (errno == EINTR) continue;
      fail("poll");
    }
    std::array<char, 256> text{};
    const ssize_t got = ::read(from_.get(), text.data(), text.size());
    if (got > 0) {
      heard_.append(text.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || sources[1].revents != 0) {
      return {};
    }
  }
}

std::string FifoSubject::ask(const std::string& line) {
  say(line);
  return hear();
}

bool FifoSubject::has_spoken() {
  pollfd wait{from_.get(), POLLIN, 0};
  return !heard_.empty() || (::poll(&wait, 1, 0) > 0 && (wait.revents & POLLIN) != 0);
}

void FifoSubject::forget() {
  heard_.clear();
  const UniqueFd said(::open((directory_ / "in").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  for (const int fifo : {said.get(), from_.get()}) {
    std::array<char, 256> text{};
    while (::read(fifo, text.data(), text.size()) > 0) {
    }
  }
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace sluice::lookalike
