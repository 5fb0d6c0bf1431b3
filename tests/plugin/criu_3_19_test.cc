// SPDX-License-Identifier: MIT
// What CRIU 3.19 alone does: it has the hooks of 3.17, and takes the descriptors that a plugin gives it for
// maps, as newer ones do. Which they are tells whether the process keeps its own.
#include <string>

#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

class Criu319Test : public SceneTest {
 protected:
  void dump_and_restore_twice(const Strings& more) {
    ASSERT_NO_FATAL_FAILURE(start(more));
    for (int generation = 0; generation < 2; ++generation) {
      ASSERT_NO_FATAL_FAILURE(dump_with(kCriu319.name));
      ASSERT_NO_FATAL_FAILURE(restore_and_check_with(kCriu319.name));
    }
  }
};

TEST_F(Criu319Test, AProcessKeepsTheFilesThatItHasMapped) {
  dump_and_restore_twice({});
}

TEST_F(Criu319Test, AProcessKeepsTheFilesOfRenderNodesThatItHasMapped) {
  dump_and_restore_twice({"--gem-handles", "1,3,70"});
}

// Which 3.17 cannot bring back.
TEST_F(Criu319Test, MapsThroughSeveralFilesOfOneGpuComeBack) {
  dump_and_restore_twice({"--second-render", "--gem-handles", "2,5"});
}

TEST_F(Criu319Test, ImagesGoToOtherHostsAndComeFromThem) {
  for (const auto& [from, to] :
       {std::pair("3.17.1", kCriu319.name), {kCriu319.name, "3.17.1"}, {"4.2", kCriu319.name}}) {
    SCOPED_TRACE(std::string(from) + " to " + to);
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_NO_FATAL_FAILURE(dump_with(from));
    ASSERT_NO_FATAL_FAILURE(restore_and_check_with(to));
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

}  // namespace
}  // namespace sluice::plugin_test
