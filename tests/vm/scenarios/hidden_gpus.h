// SPDX-License-Identifier: MIT
// GPUs that the guest has and nobody sees: the root of the device cgroups (version 1) denies their render
// nodes. KFD makes nothing for a GPU whose render node a process may not open, and its node in sysfs cannot
// be read (kfd_devcgroup_check_permission in kfd_priv.h). Failures throw std::runtime_error.
#pragma once

#include <set>

namespace sluice::vm_test {

// Of `all` render minors, processes can open only `shown` from now on.
void show_gpus(const std::set<unsigned>& all, const std::set<unsigned>& shown);

}  // namespace sluice::vm_test
