// SPDX-License-Identifier: MIT
// Messages of vfio-user on a Unix socket: a whole one in, a whole one out, with the descriptors that belong
// to it. What is not a message ends the connection, because nothing tells where the next one begins. One
// thread.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "bus/vfio_user.h"

namespace sluice::card {

// Listens at `path`, where nothing may be that is no socket. The name is there only once connections succeed.
Result<UniqueFd> listen_at(const std::string& path);

class Connection {
 public:
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Waits for the next request. Nothing: the other side has closed between two messages. EPROTO: what came
  // is no request, is too long, or ends half-way.
  Result<std::optional<VfioUserRequest>> receive();
  Result<void> send(const VfioUserReply& reply);

 private:
  UniqueFd socket_;
};

}  // namespace sluice::card
