// SPDX-License-Identifier: MIT
// Our own /dev/kfd, the check of its version, and how files of the KFD, of render nodes and dma-bufs are
// recognised.
//
// A KfdDevice owns one open file. Opening it creates the *caller's* KFD process (one per address space), with
// one entry per GPU that the caller's device cgroup shows. GET_VERSION works only on one's own file, so a
// dumper opens one beside the target's. Thread-compatible.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "kfd/ioctl_call.h"

namespace sluice::kfd {

inline constexpr char kDevicePath[] = "/dev/kfd";

// Device number of /dev/dri/renderD<minor>.
dev_t render_node_device(std::uint32_t minor);

struct KfdVersion {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
};

// Accepts 1.8 and later 1.x. Error: EPROTONOSUPPORT; the text has the version found and the one needed.
Result<void> check_version(KfdVersion version);

// Only the version, read through a file that is opened for reading and closed again. Not checked. Errors:
// those of KfdDevice::open except the last.
Result<KfdVersion> read_version(const char* path = kDevicePath);

class KfdDevice {
 public:
  // Opens and checks the version. `number`: kfd_device_number()'s, obtained where the node is the machine's
  // own, not in a restored task, whose path may name anything. Errors: ENOENT, ENXIO if the machine has no
  // KFD; ENODEV for another device or none at that path; EINVAL if the caller sees no GPU or the driver is
  // resetting one; EACCES, EPERM; EPROTONOSUPPORT.
  static Result<KfdDevice> open(dev_t number, const char* path = kDevicePath,
                                IoctlFunction ioctl_function = system_ioctl);

  int fd() const { return fd_.get(); }
  KfdVersion version() const { return version_; }
  const IoctlFunction& ioctl_function() const { return ioctl_; }

  // Transfers the open file: a restored task keeps it as its own.
  UniqueFd take_fd() && { return std::move(fd_); }

 private:
  KfdDevice(UniqueFd fd, KfdVersion version, IoctlFunction ioctl_function)
      : fd_(std::move(fd)), version_(version), ioctl_(std::move(ioctl_function)) {}

  UniqueFd fd_;
  KfdVersion version_;
  IoctlFunction ioctl_;
};

// Device number of the KFD; its major is assigned at load time. From the device node, else (a container may
// lack it) from sysfs. Error: ENOENT if neither exists.
Result<dev_t> kfd_device_number(const char* path = kDevicePath,
                                const char* sysfs_dev = "/sys/class/kfd/kfd/dev");

enum class FileKind { Kfd, RenderNode, DmaBuf, Other };

struct FileClass {
  FileKind kind = FileKind::Other;
  std::uint32_t render_minor =
      0;  // of a RenderNode, 128 and up. Of any driver: the topology tells whose it is.
};

// Classifies a device number. `kfd` is kfd_device_number()'s result, 0 for a machine without a KFD.
FileClass classify_device(mode_t mode, dev_t device, dev_t kfd);

// What a descriptor of this process is, in a GPU user's words, if no plugin can restore it: "a fence
// (sync_file)", "a syncobj", "a stream of KFD events". Of any driver; recognised by the kernel's name for it,
// `link`, as /proc/self/fd shows it. Empty: none of these.
std::string_view describe_unrestorable_file(std::string_view link);

// Classifies a descriptor of this process. Never opens anything. Errors: those of fstat (EBADF).
Result<FileClass> classify_fd(int fd, dev_t kfd);

}  // namespace sluice::kfd
