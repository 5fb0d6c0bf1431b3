// SPDX-License-Identifier: MIT
// `sluice check --pid` of processes with sockets that CRIU refuses or wants an option for.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "base/unique_fd.h"
#include "checked_dump.h"

namespace sluice::vm_test {
namespace {

class CheckSockets : public CheckedDump {
 protected:
  // One end of a pair stays here, the other is the subject's.
  Launch with_socket(int type) {
    int ends[2];
    if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    ours_.reset(ends[0]);
    theirs_.reset(ends[1]);
    Launch launch;
    launch.own_session = true;
    launch.prepare = [fd = ends[1]] {
      if (::dup2(fd, 9) < 0) throw std::runtime_error("dup2");
    };
    return launch;
  }

  UniqueFd ours_, theirs_;
};

TEST_F(CheckSockets, WhatCriuDoesNotKnowIsRefused) {
  Launch launch;
  launch.own_session = true;
  expect_refused_with("xdp", "socket-family", launch);
  expect_refused_with("mptcp", "mptcp", launch);
  expect_refused_with("netlink-data", "netlink-data", launch);
  if (criu_version() < CriuVersion{3, 18, 0}) {
    expect_dumped_with("unix-in-flight", {"unix-in-flight-lost"}, launch);
  } else {
    expect_refused_with("unix-in-flight", "unix-in-flight", launch);
  }
  expect_refused_with("unix-other-namespace", "unix-unreachable", launch);
}

TEST_F(CheckSockets, ConnectionsNeedAnOption) {
  Launch launch;
  launch.own_session = true;
  ASSERT_TRUE(start("tcp-established,tcp-in-flight", launch));
  expect_each_option_needed({"tcp-established", "tcp-in-flight"});
}

TEST_F(CheckSockets, ASocketWithItsOtherEndOutsideNeedsAnOption) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const Launch launch = with_socket(type);
    ASSERT_TRUE(start("nothing", launch));
    theirs_.reset();
    expect_each_option_needed({"unix-nameless"});
  }
}

// As of a program that talks to syslog.
TEST_F(CheckSockets, ADatagramSocketOfANameOutsideNeedsAnother) {
  std::filesystem::create_directories(scratch() / "subject");
  Launch launch;
  launch.own_session = true;
  const UniqueFd server(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  launch.prepare = [&] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = subject_->directory() / "server";
    std::memcpy(address.sun_path, path.c_str(), path.size());
    if (::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("bind");
  };
  ASSERT_TRUE(start("unix-external", launch));
  expect_each_option_needed({"unix-external"});
}

}  // namespace
}  // namespace sluice::vm_test
