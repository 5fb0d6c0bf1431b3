// SPDX-License-Identifier: MIT
// Result and UniqueFd: a value or an error, and an owner.
#include "base/result.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

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
