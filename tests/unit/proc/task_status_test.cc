// SPDX-License-Identifier: MIT
// /proc/PID/status, the kernel's and made-up ones.
#include "proc/task_status.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace sluice::proc {
namespace {

TEST(TaskStatus, OfOneself) {
  const auto status = read_task_status("/proc/self");
  ASSERT_TRUE(status.ok()) << status.error().what;
  EXPECT_EQ(status->tgid, ::getpid());
  EXPECT_EQ(status->parent, ::getppid());
  EXPECT_EQ(status->state, 'R');
}

TEST(TaskStatus, ANameCannotMakeUpLinesNorControlTheTerminal) {
  char old_name[16] = {};
  ASSERT_EQ(::prctl(PR_GET_NAME, old_name), 0);
  ASSERT_EQ(::prctl(PR_SET_NAME, "a\nTgid:\t1\x1b\xff"), 0);
  const auto status = read_task_status("/proc/thread-self");
  ASSERT_EQ(::prctl(PR_SET_NAME, old_name), 0);
  ASSERT_TRUE(status.ok()) << status.error().what;
  EXPECT_EQ(status->tgid, ::getpid());
  for (const char letter : status->name) EXPECT_TRUE(letter >= ' ' && letter <= '~') << status->name;
}

TEST(TaskStatus, OfNobody) {
  EXPECT_TRUE(no_such_task(read_task_status("/proc/0").error()));
}

TEST(TaskStatus, WhatCannotBeReadIsNotGone) {
  const auto status = read_task_status("/proc/version");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().err, ENOTDIR);
  EXPECT_FALSE(no_such_task(status.error()));
}

}  // namespace
}  // namespace sluice::proc
