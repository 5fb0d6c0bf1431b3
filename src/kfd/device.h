// SPDX-License-Identifier: MIT
// Our own /dev/kfd, the gate that its version must pass, and how files of the KFD, of render nodes and
// dma-bufs are told apart.
//
// A KfdDevice owns one open file. Opening creates the *caller's* KFD process (one per address space), with
// one entry per GPU that the caller's device cgroup shows. GET_VERSION works on one's own file only, so a
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

// Accepts 1.8 and later 1.x. Error: EPROTONOSUPPORT, the text says what was found and what is needed.
Result<void> check_version(KfdVersion version);

// The version alone, asked through a file that is opened for reading and closed again. Not checked. Errors:
// those of KfdDevice::open but the last.
Result<KfdVersion> read_version(const char* path = kDevicePath);

class KfdDevice {
 public:
  // Opens and checks the version. `number`: kfd_device_number()'s, asked for where the node is the machine's
  // own, and not in a restored task: what has its path there may be anything. Errors: ENOENT, ENXIO when the
  // machine has no KFD; ENODEV for another device or none at that path; EINVAL when the caller sees no GPU or
  // the driver is resetting one; EACCES, EPERM; EPROTONOSUPPORT.
  static Result<KfdDevice> open(dev_t number, const char* path = kDevicePath,
                                IoctlFunction ioctl_function = system_ioctl);

  int fd() const { return fd_.get(); }
  KfdVersion version() const { return version_; }
  const IoctlFunction& ioctl_function() const { return ioctl_; }

  // Gives the open file up: a restored task keeps it as its own.
  UniqueFd take_fd() && { return std::move(fd_); }

 private:
  KfdDevice(UniqueFd fd, KfdVersion version, IoctlFunction ioctl_function)
      : fd_(std::move(fd)), version_(version), ioctl_(std::move(ioctl_function)) {}

  UniqueFd fd_;
  KfdVersion version_;
  IoctlFunction ioctl_;
};

// Device number of the KFD: its major is given out at load time. From the device node, else (a container may
// have no node at that path) from sysfs. Error: ENOENT when neither exists.
Result<dev_t> kfd_device_number(const char* path = kDevicePath,
                                const char* sysfs_dev = "/sys/class/kfd/kfd/dev");

enum class FileKind { Kfd, RenderNode, DmaBuf, Other };

struct FileClass {
  FileKind kind = FileKind::Other;
  std::uint32_t render_minor =
      0;  // of a RenderNode, 128 and up. Of whichever driver: ask the topology whose it is.
};

// Says what a device number belongs to. `kfd` is what kfd_device_number gave, 0 for a machine without a KFD.
FileClass classify_device(mode_t mode, dev_t device, dev_t kfd);

// What a descriptor of this process is to a GPU's user where no plugin can bring it back: "a fence
// (sync_file)", "a syncobj", "a stream of KFD events". Of whichever driver; by the name that the kernel gives
// it, `link`, as /proc/self/fd shows it. Empty: none of these.
std::string_view describe_unrestorable_file(std::string_view link);

// Says what a descriptor of this process is. Looks only, never opens. Errors: those of fstat (EBADF).
Result<FileClass> classify_fd(int fd, dev_t kfd);

}  // namespace sluice::kfd
