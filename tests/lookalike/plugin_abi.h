// SPDX-License-Identifier: MIT
// What CRIU and a plugin agree on in memory. Facts of criu/include/criu-plugin.h (v3.17.1 to criu-dev), in
// our own words: hook numbers, the descriptor's layout, stages, the rules of verification.
#pragma once

namespace sluice::lookalike {

enum Hook : unsigned {
  kDumpUnixSk = 0,
  kRestoreUnixSk,
  kDumpExtFile,
  kRestoreExtFile,
  kDumpExtMount,
  kRestoreExtMount,
  kDumpExtLink,
  kHandleDeviceVma,
  kUpdateVmaMap,
  kResumeDevicesLate,
  kPauseDevices,  // from here: CRIU 4.0
  kCheckpointDevices,
  kPostForking,  // from here: CRIU 4.2
  kRestoreInit,  // from here: after 4.2
  kDumpDevicesLate,
  kMostHooks,
};

enum Stage : int { kDump = 0, kPreDump = 1, kRestore = 2 };

// A host reads hooks[0 .. max_hooks-1]; a plugin may declare fewer or, wrongly, more than the host knows.
struct PluginDescriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int ret);
  unsigned int version;
  unsigned int max_hooks;
  void* hooks[kMostHooks];  // as many as max_hooks says
};

inline constexpr unsigned kPluginVersion = 0x000200;  // 0.2.0 in every host
inline constexpr unsigned kOldPluginVersion =
    0x000100;  // such a host frees the descriptor: nobody may say it

// What run_plugins answers when no plugin took the call, and what a plugin answers to pass it on.
inline constexpr int kNotSupported = -95;

}  // namespace sluice::lookalike
