// SPDX-License-Identifier: MIT
// How the six CRIU versions differ, as data. Each executable is built with one of them (HOST_VERSION).
#pragma once

#include <cstdint>

#include "lookalike/plugin_abi.h"

namespace sluice::lookalike {

struct HostVersion {
  const char* name;
  unsigned hooks;               // CR_PLUGIN_HOOK__MAX
  bool init_before_inventory;   // restore: init(2) runs before the inventory is read, and there is no plugin
                                // list in it
  bool inventory_plugins;       // add_inventory_plugin and its kin exist
  bool fdstore_in_init;         // the fdstore exists when init(2) runs
  bool dups_vma_fd;             // UPDATE_VMA_MAP's fd stays the plugin's; else the host takes it
  bool retry;                   // RESTORE_EXT_FILE has a second argument
  int last_service_fd;          // FDSTORE: the highest number of enum sfd_type
  bool checkpoint_in_freezing;  // CHECKPOINT_DEVICES ends the freezing of tasks: under the alarm that bounds
                                // it, and in a pre-dump, too

  bool has(Hook hook) const { return hook < hooks; }
};

// Of this executable (host_symbols.cc).
extern const HostVersion kHostVersion;

}  // namespace sluice::lookalike
