// SPDX-License-Identifier: MIT
// The files a process maps that matter to a dump: devices, known by number, and dma-bufs, known by the name
// the kernel gives them. They are examined by stat of /proc/PID/map_files, never opened: opening a device
// there would make a new open file. Functions without state.
//
// Sources: Documentation/filesystems/proc.rst; dma-buf.c (names "/dmabuf:...").
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proc/processes.h"

namespace sluice::proc {

// A mapped file; one entry however often it is mapped.
struct MappedFile {
  std::uint64_t address = 0;    // of its first map
  std::string name;             // as /proc/PID/maps shows it
  std::optional<dev_t> device;  // its number, if it is a character device

  bool is_dma_buf() const { return name.starts_with("/dmabuf:"); }
};

// Every file that process `pid` maps, by address. A process that has ended maps none. Without CAP_SYS_ADMIN
// or CAP_CHECKPOINT_RESTORE no devices are recognised. Errors: EACCES (not allowed to look); stat(2)'s for a
// file named like a device.
Result<std::vector<MappedFile>> mapped_files(pid_t pid, const char* proc = kProcPath);

// One map of a character device.
struct DeviceMap {
  std::uint64_t address = 0;
  std::uint64_t offset = 0;  // in the device, bytes
  dev_t device = 0;
  std::uint64_t bytes = 0;
};

// Every map of a character device in process `pid`, by address. Needs and errors as above.
Result<std::vector<DeviceMap>> device_maps(pid_t pid, const char* proc = kProcPath);

}  // namespace sluice::proc
