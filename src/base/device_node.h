// SPDX-License-Identifier: MIT
// Opening device nodes by name. A task is restored with root's rights in a container's mount namespace. The
// container decides what bears a node's name there: perhaps a link to a host file by way of one of criu's
// descriptors in /proc.
//
// A function without state; any thread.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice {

// Opens the character device `number` at `path` for reading and writing, close-on-exec; links are followed.
// Anything else is only looked at (O_PATH), which does nothing to it. A relative path begins at `directory`,
// borrowed. Errors: open(2)'s; ENODEV for anything else than that device.
Result<UniqueFd> open_device_node(const std::string& path, dev_t number, int directory = AT_FDCWD);

}  // namespace sluice
