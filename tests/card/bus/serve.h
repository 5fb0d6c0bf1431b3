// SPDX-License-Identifier: MIT
// One card for one QEMU: waits for it, answers it, lets the engines work in between, and comes back when QEMU
// has gone. While no engine waits for anything, it sleeps in poll(2). One thread.
#pragma once

#include <string>

#include "bus/connection.h"
#include "bus/vfio_user.h"
#include "control/control.h"

namespace sluice::card {

struct Service {
  UniqueFd socket;    // listens (listen_at): QEMU connects, once
  UniqueFd commands;  // likewise, for lines of control.h; may be none
};

// Until QEMU closes its end. An error: what it sent is not the protocol, or a socket failed.
Result<void> serve(Service service, VfioUser& session, Device& device, Control& control);

}  // namespace sluice::card
