// SPDX-License-Identifier: MIT
// vamdgpu-load: makes this machine one with virtual AMD GPUs, by loading the kernel module with a description
// of them, and unloads it again. One thread. Needs CAP_SYS_MODULE; links nothing that a guest may lack but
// libc.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "kernel/description_file.h"
#include "machine_options.h"

namespace {

constexpr int kUsageError = 2;
constexpr int kModuleError = 1;
constexpr const char* kModuleFile = "vamdgpu.ko";
constexpr const char* kModuleName = "amdgpu";  // what it is called once loaded: /sys/module/amdgpu

constexpr const char* kHelp =
    "usage: vamdgpu-load [OPTION...]\n"
    "       vamdgpu-load --unload\n"
    "\n"
    "Loads the virtual amdgpu into this kernel: /dev/kfd, /dev/dri and the GPUs' sysfs are there when it "
    "has\n"
    "ended. Meant for a guest that is thrown away.\n"
    "\n"
    "%s (this kernel's)\n"
    "  --module FILE      the module (vamdgpu.ko beside this program)\n"
    "  --unload           remove the module; fails while anybody uses a GPU\n"
    "  --help             this text\n"
    "\n"
    "Exit status: 0; 1 when the kernel refuses (its log says more); 2 for a wrong option.\n";

struct Request {
  vamdgpu::MachineOptions options;
  std::string module;
  bool unload = false;
  bool help = false;
};

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// False, after a line on stderr, when the arguments make no request.
bool parse(int argc, char** argv, Request* request) {
  request->options.kfd_minor_version = vamdgpu::running_kfd_minor_version();
  request->options.pci_domain = 1;  // this machine's own devices are in domain 0
  const int rest =
      vamdgpu::parse_options(argc, argv,
                             {{"module", true, [&](const char* file) { request->module = file; }},
                              {"unload", false, [&](const char*) { request->unload = true; }},
                              {"help", false, [&](const char*) { request->help = true; }}},
                             &request->options);
  if (rest == 0) return false;
  if (rest != argc) std::fprintf(stderr, "vamdgpu-load: what is %s? See --help\n", argv[rest]);
  return rest == argc;
}

// A file that is removed when this object goes.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    const char* directory = std::getenv("TMPDIR");
    path_ = std::string(directory != nullptr ? directory : "/tmp") + "/vamdgpu-XXXXXX";
    const int fd = ::mkostemp(path_.data(), O_CLOEXEC);
    if (fd < 0) fail(path_);
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    const int error = written < 0 ? errno : ENOSPC;
    ::close(fd);  // the kernel reads no file that somebody may still write
    if (written == static_cast<ssize_t>(bytes.size())) return;
    ::unlink(path_.c_str());
    errno = error;
    fail(path_);
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string module_beside_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / kModuleFile;
}

void load(const Request& request) {
  const std::string module = request.module.empty() ? module_beside_program() : request.module;
  const int fd = ::open(module.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(module);
  const TemporaryFile description(vamdgpu::description_bytes(vamdgpu::describe(request.options)));
  const std::string parameters = "description=" + description.path();
  const long result = ::syscall(SYS_finit_module, fd, parameters.c_str(), 0);
  const int error = errno;
  ::close(fd);
  errno = error;
  if (result != 0) fail("loading " + module);
}

void unload() {
  if (::syscall(SYS_delete_module, kModuleName, O_NONBLOCK) != 0)
    fail(std::string("unloading ") + kModuleName);
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  if (!parse(argc, argv, &request)) return kUsageError;
  if (request.help) {
    std::printf(kHelp, vamdgpu::kMachineOptionsHelp);
    return 0;
  }
  try {
    if (request.unload)
      unload();
    else
      load(request);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "vamdgpu-load: %s\n", error.what());
    return kUsageError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vamdgpu-load: %s\n", error.what());
    return kModuleError;
  }
}
