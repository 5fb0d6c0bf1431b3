// SPDX-License-Identifier: MIT
// `sluice check --pid` of processes that CRIU refuses for what they are: sessions, namespaces, limits,
// filters.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "checked_dump.h"
#include "support/refuse_system_call.h"

namespace sluice::vm_test {
namespace {

class CheckProcesses : public CheckedDump {
 protected:
  static pid_t child_of(pid_t pid) {
    const std::string id = std::to_string(pid);
    return static_cast<pid_t>(std::atoi(read_file("/proc/" + id + "/task/" + id + "/children").c_str()));
  }
  static Launch session() {
    Launch launch;
    launch.own_session = true;
    return launch;
  }
};

TEST_F(CheckProcesses, AJobOfAnotherSessionNeedsAnOption) {
  ASSERT_TRUE(start("nothing"));
  expect_each_option_needed({"session"});
}

TEST_F(CheckProcesses, ASessionOutsideOfItsPidNamespaceIsRefused) {
  Launch launch;
  launch.namespaces = CLONE_NEWPID;
  expect_refused_with("nothing", "session-outside", launch);
}

TEST_F(CheckProcesses, AProcessWithinAPidNamespaceIsRefusedAndItsFirstIsNot) {
  Launch launch = session();
  launch.namespaces = CLONE_NEWPID;
  ASSERT_TRUE(start("child", launch));
  const nlohmann::json inner = check(child_of(subject_->pid()));
  const Strings codes = codes_of(inner);
  EXPECT_NE(std::find(codes.begin(), codes.end(), "no-init"), codes.end()) << inner.dump(1);
  EXPECT_EQ(inner["result"], "refused");
  EXPECT_FALSE(criu_->dump(child_of(subject_->pid()), images("inner"), {"--shell-job"}).good());
  expect_dumped({});
}

TEST_F(CheckProcesses, WhatATreeMayNotHaveIsRefused) {
  expect_refused_with("nested-namespace", "nested-namespace", session());
  expect_refused_with("dead-leader", "dead-leader", session());
  Launch stranger = session();
  stranger.prepare = [] {
    if (::unshare(CLONE_NEWUSER) != 0) throw std::runtime_error("unshare");
  };
  expect_refused_with("nothing", "user-namespace", stranger);
}

TEST_F(CheckProcesses, NamespacesThatCriuTakesWithTheTreeAreNone) {
  Launch launch = session();
  launch.namespaces = CLONE_NEWUSER;  // with its user and group 0
  expect_dumped_with("nothing", {}, launch);
  launch.namespaces = CLONE_NEWIPC;
  expect_dumped_with("sysv-shm", {}, launch);
}

TEST_F(CheckProcesses, AProcessThatHasEndedIsRefused) {
  ASSERT_TRUE(start("zombie", session()));
  const pid_t zombie = child_of(subject_->pid());
  const nlohmann::json checked = check(zombie);
  EXPECT_EQ(codes_of(checked), Strings{"zombie"}) << checked.dump(1);
  EXPECT_FALSE(criu_->dump(zombie, images()).good());
  end_subject();
}

TEST_F(CheckProcesses, LimitsThatLeaveCriuNoRoomAreRefused) {
  expect_refused_with("descriptor-limit", "descriptor-limit", session());
  expect_refused_with("address-space-limit", "address-space-limit", session());
  expect_dumped_with("enough-address-space,enough-descriptors", {}, session());
}

// Root without a filter of its own reads those of others.
TEST_F(CheckProcesses, AFilterIsReadByRootWithoutOne) {
  expect_dumped_with("seccomp", {}, session());
  criu_->prepare = [] {
    if (!test::refuse_system_call(SYS_acct, EPERM)) ::_exit(125);
  };
  expect_refused_with("seccomp", "seccomp", session());
}

}  // namespace
}  // namespace sluice::vm_test
