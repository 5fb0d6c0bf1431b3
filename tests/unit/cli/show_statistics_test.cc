// SPDX-License-Identifier: MIT
// Statistics of a dump that cannot be looked for.
#include "cli/show/show_statistics.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "images/files/image_source.h"

namespace sluice::cli {
namespace {

TEST(ReadStatistics, AFolderThatCannotBeListedIsAFault) {
  std::vector<Error> faults;
  EXPECT_TRUE(read_statistics(DirectorySource(-1), faults).empty());
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].err, EBADF);
}

}  // namespace
}  // namespace sluice::cli
