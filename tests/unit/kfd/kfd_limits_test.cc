// SPDX-License-Identifier: MIT
// What the kernel says of contexts and debuggers, and what is made of it.
#include "kfd/kfd_limits.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kfd/uapi.h"
#include "support/temp_dir.h"

namespace sluice::kfd {
namespace {

TEST(SecondaryContexts, AreFoundByTheirNames) {
  const test::TempDir dir;
  const std::filesystem::path sysfs(dir.path());
  EXPECT_FALSE(*has_secondary_contexts(4711, sysfs.c_str()));
  std::filesystem::create_directories(sysfs / "4711" / "queues");
  EXPECT_FALSE(*has_secondary_contexts(4711, sysfs.c_str()));
  std::filesystem::create_directories(sysfs / "4711" / "context_1");
  EXPECT_TRUE(*has_secondary_contexts(4711, sysfs.c_str()));
  EXPECT_FALSE(*has_secondary_contexts(471, sysfs.c_str()));
}

TEST(SecondaryContexts, AListThatCannotBeReadIsAnError) {
  const test::TempDir dir;
  const std::filesystem::path sysfs(dir.path());
  std::filesystem::create_symlink("4711", sysfs / "4711");  // a loop
  EXPECT_EQ(has_secondary_contexts(4711, sysfs.c_str()).error().err, ELOOP);
}

// A KFD whose answer to DBG_TRAP is chosen.
Result<bool> asked(int answer, DebugTrapArgs& seen) {
  const auto own =
      KfdDevice::open(makedev(1, 3), "/dev/null", [&](int, unsigned long request, void* argument) {
        if (request == kIocGetVersion) {
          *static_cast<GetVersionArgs*>(argument) = {1, 23};
          return 0;
        }
        EXPECT_EQ(request, kIocDebugTrap);
        seen = *static_cast<DebugTrapArgs*>(argument);
        errno = answer;
        return answer == 0 ? 0 : -1;
      });
  return is_debugged(*own, 4711);
}

TEST(Debugged, IsToldByTheAnswerToAQuestionThatClearsNothing) {
  DebugTrapArgs seen{};
  EXPECT_TRUE(*asked(0, seen));
  EXPECT_TRUE(*asked(EAGAIN, seen));
  for (const int no : {EINVAL, ESRCH, ENOTTY}) EXPECT_FALSE(*asked(no, seen)) << no;
  EXPECT_EQ(seen.pid, 4711U);
  EXPECT_EQ(seen.op, kDebugTrapQueryEvent);
  EXPECT_EQ(seen.exception_mask, 0U);
}

TEST(Debugged, AnyOtherAnswerIsAnError) {
  DebugTrapArgs seen{};
  EXPECT_EQ(asked(EPERM, seen).error().err, EPERM);
  EXPECT_EQ(asked(ENOMEM, seen).error().err, EIO);
}

TEST(UnrestorableFiles, AreKnownByTheirNames) {
  EXPECT_EQ(describe_unrestorable_file("anon_inode:sync_file"), "a fence (sync_file)");
  EXPECT_EQ(describe_unrestorable_file("anon_inode:syncobj_file"), "a syncobj");
  EXPECT_EQ(describe_unrestorable_file("anon_inode:kfd_smi_ev"), "a stream of KFD events");
  EXPECT_EQ(describe_unrestorable_file("anon_inode:[eventfd]"), "");
}

}  // namespace
}  // namespace sluice::kfd
