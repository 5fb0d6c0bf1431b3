// SPDX-License-Identifier: MIT
// A device cgroup (version 1) that this program is in, and with it all that it starts: the GPUs whose render
// nodes it denies are not there for them. KFD makes nothing for a GPU whose render node a process may not
// open, and its node in sysfs cannot be read (kfd_devcgroup_check_permission in kfd_priv.h). Failures throw
// std::runtime_error.
#pragma once

#include <filesystem>
#include <set>

namespace sluice::vm_test {

// Of `all` render minors, only `shown` can be opened from now on.
void show_gpus(const std::set<unsigned>& all, const std::set<unsigned>& shown);

// All can be, whatever was said before.
void show_all_gpus();

// The cgroup of the devices controller that this process is in: "/" where nothing was ever hidden.
std::filesystem::path own_device_group();

}  // namespace sluice::vm_test
