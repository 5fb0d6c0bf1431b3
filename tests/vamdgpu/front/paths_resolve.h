// SPDX-License-Identifier: MIT
// What a path means on the virtual machine. A name below one of the machine's own places (KFD's topology, the
// GPUs' PCI and DRM directories, /dev/kfd, /dev/dri) stands for the same name below STATE/sysfs; every other
// path is left as the caller gave it. No function here allocates; all are async-signal-safe and thread-safe.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "front.h"

#define VAMDGPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace vamdgpu::paths {

constexpr std::size_t kPathBytes = 4096;  // the kernel's PATH_MAX, NUL included

enum class Meaning {
  Untouched,  // not ours: use the caller's directory fd and path
  Virtual,    // use Target::path, absolute
  Refused,    // as Virtual, but the device cgroup refuses to read it: EPERM
  Device,     // a device node: Target::node, or a card node; Target::path is what stands for it
  OpenFile,  // /proc/PID/fd/N or /dev/fd/N: may be a device file that somebody has open; path as the caller's
};

struct Target {
  Meaning meaning = Meaning::Untouched;
  Node node;                     // Device; NodeKind::None for a card node
  std::uint32_t card_minor = 0;  // Device with NodeKind::None
  bool refused = false;          // Device: the device cgroup refuses open(2)
  char path[kPathBytes];         // Virtual, Refused, Device
};

// Whether the last component is followed if it is a symbolic link (/dev/char/226:128 is a link to the node).
enum class Last { Follow, NoFollow };

// Finds out what `path`, relative to `directory` (an fd or AT_FDCWD), means. Keeps errno. A null or empty
// path is Untouched. One readlink is made for a relative path that may be ours; none for an absolute one.
void resolve(int directory, const char* path, Last last, Target* target);

// The device behind an st_rdev, None if it is not the machine's.
Node node_of_device(dev_t device);

// Whether /proc/PID/fd/N, `link`, is a device node that was opened with O_PATH: `status` is what the kernel
// says of it, which is what stands for the node. Fills target. Keeps errno.
bool is_path_descriptor(int directory, const char* link, const struct stat& status, Target* target);

// The device number of a Device target.
dev_t device_of(const Target& target);

// The node's name ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card0"). `name` has room for 32 bytes.
void device_name(const Target& target, char* name);

// Takes STATE/sysfs away from the start of text[0..length-1] if it is there: a path below the state directory
// becomes the machine's. Returns the new length; not NUL-terminated.
std::size_t to_machine_name(char* text, std::size_t length);

}  // namespace vamdgpu::paths
