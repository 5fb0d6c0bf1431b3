// SPDX-License-Identifier: MIT
// Opening device nodes by name. A task is restored with root's rights in the mount namespace of a container,
// and what has a node's name there is what the container has put there: a link to one of the host's files,
// perhaps, by way of a descriptor of criu's in /proc.
//
// A function without state; any thread.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice {

// `path` for reading and writing, close-on-exec: the character device `number`, whichever links lead to it,
// or nothing. Nothing else is opened on the way but for a look, which does nothing to it. Errors: open(2)'s;
// ENODEV for what is no such device.
Result<UniqueFd> open_device_node(const std::string& path, dev_t number);

}  // namespace sluice
