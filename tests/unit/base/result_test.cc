// SPDX-License-Identifier: MIT
// Result, formatted() and UniqueFd: a value or an error, its text, and an owner.
#include "base/result.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/format.h"
#include "base/unique_fd.h"

namespace sluice {
namespace {

Result<std::unique_ptr<int>> make_it(bool fails) {
  if (fails) return make_error(ENOSPC, "make it");
  return std::make_unique<int>(7);
}

Result<int> use_it(bool fails) {
  SLUICE_TRY_ASSIGN(const auto it, make_it(fails));
  return *it;
}

Result<void> check_it(bool fails) {
  SLUICE_TRY(make_it(fails));
  return {};
}

TEST(Result, CarriesAValueThatCannotBeCopied) {
  const Result<int> result = use_it(false);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, 7);
  EXPECT_TRUE(check_it(false).ok());
}

TEST(Result, HandsTheFirstErrorUp) {
  const Result<int> result = use_it(true);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().err, ENOSPC);
  EXPECT_EQ(result.error().what, "make it: No space left on device");
  EXPECT_EQ(check_it(true).error().err, ENOSPC);
}

TEST(Result, AnErrnoWithoutANameStillHasWords) {
  EXPECT_EQ(make_error(99999, "x").what, "x: unknown error");
}

TEST(Result, AnIdStaysAtTheEndOfItsMessage) {
  EXPECT_EQ(make_error(ENOSPC, "write x; free space [SL-D14]").what,
            "write x; free space: No space left on device [SL-D14]");
  EXPECT_EQ(with_remedy(make_error(ENOSPC, "write x"), "; free space [SL-D14]").what,
            "write x: No space left on device; free space [SL-D14]");
  EXPECT_EQ(explain("y", Error{EIO, "x [SL-D14]"}).what, "y: x [SL-D14]");
}

TEST(Result, AMessageWithAnIdGetsNoOtherRemedy) {
  EXPECT_EQ(with_remedy(Error{EIO, "x; do this [SL-D14]"}, "; do that [SL-D15]").what, "x; do this [SL-D14]");
  EXPECT_EQ(with_remedy(Error{EIO, "x"}, "").what, "x");
}

TEST(Result, OnlyTheEndOfAMessageIsAnId) {
  EXPECT_TRUE(has_id("x [SL-D14]"));
  EXPECT_TRUE(has_id("x: y [SL-G01] [SL-D14]"));
  EXPECT_EQ(id_begin("x: y [SL-G01] [SL-D14]"), std::strlen("x: y [SL-G01]"));
  for (const char* const none : {"", "x", "x]", "[SL-D14]", "x [SL-D14] y", "x [SL-D14", "x [SL-D14]]"})
    EXPECT_FALSE(has_id(none)) << none;
}

TEST(Format, PutsValuesIntoAConstant) {
  EXPECT_EQ(formatted("{} of {} at {:#x}{}", 3, std::string("x"), 0x7f00U, ""), "3 of x at 0x7f00");
}

TEST(UniqueFd, ClosesWhatItOwnsOnce) {
  int raw = -1;
  {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd);
    raw = fd.get();
    UniqueFd other(std::move(fd));
    EXPECT_EQ(other.get(), raw);
    EXPECT_NE(::fcntl(raw, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
}

TEST(UniqueFd, ReleaseGivesUp) {
  UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int raw = fd.release();
  fd.reset();
  EXPECT_NE(::fcntl(raw, F_GETFD), -1);
  EXPECT_EQ(::close(raw), 0);
}

}  // namespace
}  // namespace sluice
