// SPDX-License-Identifier: MIT
// Loads plugins and calls their hooks as CRIU does (criu/plugin.c of v3.17.1 to criu-dev, its rules in our
// words).
//
// Main thread only. A directory that cannot be opened, or one plugin that cannot be loaded, verified or
// initialised, fails the whole operation; a directory that was not asked for and does not exist means no
// plugins.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lookalike/plugin_abi.h"

namespace sluice::lookalike {

// Loads every *.so of `directory`, in readdir order; init(stage) each. 0, or -1 with the reason logged; then
// exit(stage, -1) has been called for those that were loaded before.
int plugins_init(const std::string& directory, Stage stage);
// exit(stage, ret) of every plugin.
void plugins_fini(Stage stage, int ret);
// Whether init() of a plugin succeeded and nothing has called exit() since.
bool plugins_loaded();

// Each runs the hook's chain: the first plugin whose answer is not -ENOTSUP decides; -95 when there is none.
// Hooks that this version does not know answer -95 without a call.
int run_dump_ext_file(int fd, int id);
int run_restore_ext_file(int id, bool* retry_needed);
int run_handle_device_vma(int fd, const struct stat* status);
int run_update_vma_map(const char* path, std::uint64_t address, std::uint64_t old_pgoff,
                       std::uint64_t* new_pgoff, int* plugin_fd);
int run_pid_hook(Hook hook, int pid);  // PAUSE, CHECKPOINT, RESUME_DEVICES_LATE, DUMP_DEVICES_LATE
int run_void_hook(Hook hook);          // POST_FORKING, RESTORE_INIT

// The inventory's plugin list. On dump: what plugins added, in order, doubles included. On restore: what the
// image says
// (`present` false: an image without the field, of an older host).
const std::vector<std::string>& inventory_added();
void inventory_free();
void inventory_load(bool present, std::vector<std::string> names);

// For the exported symbols.
int inventory_add(const char* name);
bool inventory_check_and_remove(const char* name, unsigned long length);
int inventory_check_left();  // -1 and "Missing required plugin" when a name is left

}  // namespace sluice::lookalike
