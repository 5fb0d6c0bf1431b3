// SPDX-License-Identifier: MIT
// How a program ended is told.
#include "measure/program.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace sluice::bench {
namespace {

TEST(Program, IsRunAndItsEndIsTold) {
  EXPECT_EQ(run_program({"sh", "-c", "exit 7"}).value(), 7);
  EXPECT_EQ(run_program({"sh", "-c", "kill -TERM $$"}).value(), 128 + 15);
  EXPECT_EQ(run_program({"no-such-program-anywhere"}).error().err, ENOENT);
}

TEST(Program, WritesNothingToStdout) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_program({"echo", "words"}).value(), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace sluice::bench
