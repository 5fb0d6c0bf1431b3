// SPDX-License-Identifier: MIT
// Makes, runs and removes virtual machines. See machine_directory.h. Nothing here is on any measured path.
#include "machine_directory.h"

#include <link.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "control.h"

namespace vamdgpu {
namespace {

// Asked at the start: in a mount namespace that the program makes later the link may lead nowhere.
const std::filesystem::path kProgram = [] {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}();

namespace fs = std::filesystem;

constexpr const char* kLibraryName = "libvamdgpu.so";

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

fs::path new_directory() {
  const char* temporary = std::getenv("TMPDIR");
  for (const fs::path& parent : {fs::path("/dev/shm"), fs::path(temporary != nullptr ? temporary : "/tmp")}) {
    std::string name = parent / "vamdgpu-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) return name;
  }
  fail(errno, "mkdtemp vamdgpu-XXXXXX");
}

// The sanitizer runtimes of this process, as the paths they were loaded from.
std::vector<std::string> sanitizer_runtimes() {
  std::vector<std::string> found;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const auto visit = [](dl_phdr_info* info, size_t, void* argument) {
    const std::string name = fs::path(info->dlpi_name).filename();
    if (name.rfind("libasan.so", 0) == 0 || name.rfind("libtsan.so", 0) == 0)
      static_cast<std::vector<std::string>*>(argument)->push_back(info->dlpi_name);
    return 0;
  };
  ::dl_iterate_phdr(visit, &found);
#endif
  return found;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Machine Machine::create(const MachineOptions& options, const fs::path& directory) {
  MachineDescription description = describe(options);
  if (!directory.empty()) {
    fs::create_directories(directory);
    if (!fs::is_empty(directory)) fail(ENOTEMPTY, directory.string());
  }
  Machine machine(directory.empty() ? new_directory() : fs::absolute(directory).lexically_normal(), true);
  machine.description_ = std::move(description);
  write_system_tree(machine.directory_ / "sysfs", machine.description_.tree);
  write_hidden_list(machine.directory_ / "hidden", machine.description_.tree);
  const int error = create_state(machine.directory_.c_str(), machine.description_.config);
  if (error != 0) fail(-error, "state of the virtual machine in " + machine.directory_.string());
  return machine;
}

Machine Machine::attach(const fs::path& directory) {
  if (!exists(directory)) fail(ENOENT, "no virtual machine in " + directory.string());
  return Machine(fs::absolute(directory).lexically_normal(), false);
}

bool Machine::exists(const fs::path& directory) {
  return fs::exists(directory / "sysfs/sys/class/kfd/kfd/topology/generation_id");
}

Machine::Machine(Machine&& other) noexcept {
  *this = std::move(other);
}

Machine& Machine::operator=(Machine&& other) noexcept {
  if (this != &other) {
    remove();
    directory_ = std::move(other.directory_);
    description_ = std::move(other.description_);
    owned_ = std::exchange(other.owned_, false);
  }
  return *this;
}

Machine::~Machine() {
  remove();
}

void Machine::remove() noexcept {
  if (!owned_) return;
  owned_ = false;
  std::error_code ignored;  // a directory that stays is all that can be said, and nobody is left to hear it
  fs::remove_all(directory_, ignored);
}

fs::path Machine::topology() const {
  return directory_ / "sysfs/sys/devices/virtual/kfd/kfd/topology";
}

std::vector<std::string> Machine::environment() const {
  const std::string library = find_preload_library();
  std::string preload;
  for (const std::string& runtime : sanitizer_runtimes()) preload += runtime + ":";
  preload += library;
  const char* present = std::getenv("LD_PRELOAD");
  if (present != nullptr && *present != '\0' && std::strstr(present, kLibraryName) == nullptr)
    preload += std::string(":") + present;
  return {"VAMDGPU_DIR=" + directory_.string(), "LD_PRELOAD=" + preload};
}

std::vector<std::string> Machine::process_environment() const {
  std::vector<std::string> result = environment();
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (std::strncmp(*variable, "VAMDGPU_DIR=", 12) != 0 && std::strncmp(*variable, "LD_PRELOAD=", 11) != 0)
      result.emplace_back(*variable);
  return result;
}

pid_t Machine::start(const std::vector<std::string>& arguments) const {
  std::vector<std::string> variables = process_environment();
  std::vector<std::string> copies = arguments;
  const std::vector<char*> environment_pointers = pointers(variables);
  const std::vector<char*> argument_pointers = pointers(copies);
  const pid_t pid = ::fork();
  if (pid < 0) fail(errno, "fork");
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvpe(argument_pointers[0], argument_pointers.data(), environment_pointers.data());
    const int error = errno;
    ::dprintf(STDERR_FILENO, "%s: %s\n", argument_pointers[0], std::strerror(error));
    ::_exit(error == ENOENT ? 127 : 126);
  }
  return pid;
}

int Machine::run(const std::vector<std::string>& arguments) const {
  const pid_t pid = start(arguments);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) fail(errno, "waitpid");
  return shell_status(status);
}

fs::path find_preload_library() {
  const char* named = std::getenv("VAMDGPU_LIBRARY");
  if (named != nullptr && *named != '\0') return named;
  const fs::path& program = kProgram;
  fs::path directory = program.parent_path();
  while (true) {
    for (const fs::path& place : {directory / kLibraryName, directory / "tests/vamdgpu" / kLibraryName,
                                  directory / "vamdgpu" / kLibraryName})
      if (fs::is_regular_file(place)) return place;
    if (directory == directory.root_path())
      fail(ENOENT, std::string(kLibraryName) + " for " + program.string());
    directory = directory.parent_path();
  }
}

int shell_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace vamdgpu
