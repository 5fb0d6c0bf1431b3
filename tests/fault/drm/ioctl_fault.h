// SPDX-License-Identifier: MIT
// Faults on the way into the DRM driver: ioctl(2) as this program and its libraries call it is ours (a
// program's own symbol comes before every library's) and passes on to the next one, the virtual machine's.
//
// One plan at a time, process-wide; thread-safe. A plan sees only ioctls of DRM files and sync_files, and
// none of the file it is told to spare.
#pragma once

#include <cstdint>
#include <functional>

namespace sluice::drm {

// Decides about one ioctl before it happens: 0 lets it pass, an errno fails it. `number` is its _IOC_NR,
// `type` its _IOC_TYPE ('d' for DRM, '>' for sync_files).
using BeforeIoctl = std::function<int(char type, unsigned number, void* args)>;
// Sees one ioctl that succeeded and may change what it answered.
using AfterIoctl = std::function<void(char type, unsigned number, void* args)>;

// Installs a plan for its life. `spared_fd`: the target's file, which the tests use themselves.
class IoctlPlan {
 public:
  IoctlPlan(int spared_fd, BeforeIoctl before, AfterIoctl after = nullptr);
  ~IoctlPlan();
  IoctlPlan(const IoctlPlan&) = delete;
  IoctlPlan& operator=(const IoctlPlan&) = delete;
};

// _IOC_NR of what the copy stage's device calls.
inline constexpr unsigned kVersion = 0x00;
inline constexpr unsigned kGemClose = 0x09;
inline constexpr unsigned kGemCreate = 0x40;
inline constexpr unsigned kContext = 0x42;
inline constexpr unsigned kSubmit = 0x44;
inline constexpr unsigned kGemVa = 0x48;
inline constexpr unsigned kGemUserptr = 0x51;
inline constexpr unsigned kFenceToHandle = 0x54;
inline constexpr unsigned kFileInfo = 4;  // of type '>'

}  // namespace sluice::drm
