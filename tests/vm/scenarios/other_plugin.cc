// SPDX-License-Identifier: MIT
// A plugin for CRIU that stands in for another vendor's next to ours: it dumps and restores open files of one
// device, /dev/cpu_dma_latency, and leaves all else to others. Built like a plugin of its time: hooks of CRIU
// 3.17, which every newer CRIU takes.
//
// Source of the ABI: criu-plugin.h of CRIU 3.17.1. Runs in CRIU's process, one thread.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace {

constexpr const char* kDevice = "/dev/cpu_dma_latency";
constexpr unsigned kHooks = 10, kDumpExtFile = 2, kRestoreExtFile = 3;

extern "C" int criu_get_image_dir() __attribute__((weak));

void image_name(char* name, std::size_t bytes, int id) {
  (void)std::snprintf(name, bytes, "other-%d.img", id);
}

int init(int) {
  return 0;
}

void finish(int, int) {}

int dump_ext_file(int fd, int id) {
  struct stat file {};
  struct stat device {};
  if (::fstat(fd, &file) != 0 || ::stat(kDevice, &device) != 0 || !S_ISCHR(file.st_mode) ||
      file.st_rdev != device.st_rdev) {
    return -ENOTSUP;
  }
  char name[32];
  image_name(name, sizeof name, id);
  const int image = ::openat(criu_get_image_dir(), name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (image < 0) return -errno;
  (void)::close(image);
  return 0;
}

int restore_ext_file(int id) {
  char name[32];
  image_name(name, sizeof name, id);
  if (::faccessat(criu_get_image_dir(), name, F_OK, 0) != 0) return -ENOTSUP;
  const int fd = ::open(kDevice, O_RDWR);
  return fd < 0 ? -errno : fd;
}

struct Descriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int ret);
  unsigned version;
  unsigned max_hooks;
  void* hooks[kHooks];
};

}  // namespace

extern "C" {
extern Descriptor CR_PLUGIN_DESC;
[[gnu::visibility("default")]] Descriptor CR_PLUGIN_DESC = {"other_plugin", init,   finish,
                                                            0x000200,       kHooks, {}};
}

namespace {

[[gnu::constructor]] void fill_hooks() {
  CR_PLUGIN_DESC.hooks[kDumpExtFile] = reinterpret_cast<void*>(dump_ext_file);
  CR_PLUGIN_DESC.hooks[kRestoreExtFile] = reinterpret_cast<void*>(restore_ext_file);
}

}  // namespace
