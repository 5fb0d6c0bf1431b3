// SPDX-License-Identifier: MIT
// A program that serves on a Unix socket: it runs from when it answers to the end of the object.
//
// Thread-bound; system errors throw std::system_error, one that does not come up std::runtime_error.
#pragma once

#include <filesystem>

#include "process.h"

namespace sluice::vm_test {

class Daemon {
 public:
  Daemon(const Launch& launch, std::filesystem::path socket);
  ~Daemon();  // SIGTERM; what does not go is killed
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  const std::filesystem::path& socket() const { return socket_; }

 private:
  std::filesystem::path socket_;
  pid_t pid_ = 0;
};

}  // namespace sluice::vm_test
