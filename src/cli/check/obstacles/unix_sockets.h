// SPDX-License-Identifier: MIT
// The unix sockets of a network namespace with their peers, from the kernel (sock_diag(7),
// linux/unix_diag.h). /proc/net/unix does not have the peers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

struct UnixSocket {
  int type = 0;            // SOCK_*
  int state = 0;           // of linux/tcp_states: 1 connected, 7 not, 10 listening
  std::uint32_t peer = 0;  // inode; 0: none
  bool named = false;
  std::uint8_t shutdown = 0;     // 1: no more reading, 2: no more writing
  std::uint32_t to_be_sent = 0;  // bytes
  std::vector<std::uint32_t>
      in_flight;  // for a listening one: inodes of connections not accepted yet; 0: one that is gone
};
using UnixSockets = std::map<std::uint32_t, UnixSocket>;  // by inode

// Queries the namespace of `process` ("/proc/17"), which a separate thread enters; `enter` false: the
// caller's. The kernel may load its module unix_diag, as for criu and ss. Errors: EPERM on entering; those of
// the sockets.
Result<UnixSockets> unix_sockets(const std::string& process, bool enter);

}  // namespace sluice::cli
