// SPDX-License-Identifier: MIT
// Which files a process maps, as far as a dump has to know: devices, told by their number, and dma-bufs, told
// by the name the kernel gives them. Looked at by stat of /proc/PID/map_files, never opened: opening a device
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

namespace sluice::kfd {

// A mapped file. One entry for each, however often it is mapped.
struct MappedFile {
  std::uint64_t address = 0;    // of its first map
  std::string name;             // as /proc/PID/maps shows it
  std::optional<dev_t> device;  // the number, when it is a character device

  bool is_dma_buf() const { return name.starts_with("/dmabuf:"); }
};

// Every file that process `pid` maps, by address. A process that has ended maps none. Devices are not
// recognised as such without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. Errors: EACCES (not allowed to look);
// stat(2)'s, of a file that by its name is a device.
Result<std::vector<MappedFile>> mapped_files(pid_t pid, const char* proc = kProcPath);

// One map of a character device.
struct DeviceMap {
  std::uint64_t address = 0;
  std::uint64_t offset = 0;  // in the device, bytes
  dev_t device = 0;
};

// Every map of a character device in process `pid`, by address. Needs and errors as above.
Result<std::vector<DeviceMap>> device_maps(pid_t pid, const char* proc = kProcPath);

}  // namespace sluice::kfd
