// SPDX-License-Identifier: MIT
// What a failure means for images, and what helps.
#include "images/files/cause.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

struct Errors {
  Cause cause;
  std::string word;
  std::vector<int> errors;
};

TEST(Cause, FollowsFromTheError) {
  const std::vector<Errors> all = {
      {Cause::Damaged, "damaged", {EBADMSG, EINVAL, EFBIG, E2BIG, EOVERFLOW, ENODATA, EKEYREJECTED}},
      {Cause::Missing, "missing", {ENOENT, ENOTDIR}},
      {Cause::NotAllowed, "not-allowed", {EACCES, EPERM, ENOKEY}},
      {Cause::Unsigned, "unsigned", {kUnsigned}},
      {Cause::Unsupported, "unsupported", {ENOSYS}},
      {Cause::Unreadable, "unreadable", {EIO, ENOMEM, EMFILE, ESTALE, ELOOP}},
  };
  for (const Errors& each : all) {
    EXPECT_EQ(word_of(each.cause), each.word);
    for (const int err : each.errors) EXPECT_EQ(cause_of(err), each.cause) << err;
  }
}

// The same for all of a group, and of no other group.
TEST(Cause, TheRemedyIsThatOfItsGroup) {
  const std::vector<std::vector<int>> groups = {
      {ENOKEY, EKEYREJECTED, kUnsigned},
      {EACCES, EPERM},
      {EMFILE},
      {ENFILE},
      {ENOMEM},
      {ELOOP},
      {ESTALE, ENOTCONN, ETIMEDOUT, EHOSTDOWN},
      {EBADMSG, EINVAL, EFBIG, E2BIG, EOVERFLOW, ENODATA},
      {ENOENT, ENOTDIR},
      {ENOSYS},
      {EIO, ENXIO, EBUSY},
  };
  std::set<std::string> remedies;
  for (const std::vector<int>& group : groups) {
    const std::string remedy = remedy_of(group.front());
    EXPECT_TRUE(remedies.insert(remedy).second) << group.front();
    for (const int err : group) EXPECT_EQ(remedy_of(err), remedy) << err;
  }
  EXPECT_EQ(remedy_of(ENOKEY), "") << "the message says it";
}

// Capabilities are a thread's own.
TEST(Cause, WhoMayReadEverythingIsNotSentToRoot) {
  const auto remedy_with = [](bool may_read_everything) {
    std::string remedy;
    std::thread([&] {
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
      constexpr std::uint32_t kReads = 1U << CAP_DAC_READ_SEARCH;
      if (::syscall(SYS_capget, &header, sets.data()) != 0) return;
      sets[0].effective = may_read_everything ? sets[0].effective | kReads : sets[0].effective & ~kReads;
      if (::syscall(SYS_capset, &header, sets.data()) != 0) return;
      remedy = remedy_of(EACCES);
    }).join();
    return remedy;
  };
  const std::string without = remedy_with(false);
  EXPECT_NE(without, "");
  const std::string with = remedy_with(true);
  if (with.empty()) GTEST_SKIP() << "this process has no such capability to use";
  EXPECT_NE(with, without);
}

}  // namespace
}  // namespace sluice
