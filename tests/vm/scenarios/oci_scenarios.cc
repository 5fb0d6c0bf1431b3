// SPDX-License-Identifier: MIT
// Containers that a real OCI runtime runs, checkpoints and restores.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>

#include "oci_container.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

class OciRuntime : public Scenario, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!has_runtime(GetParam())) GTEST_SKIP() << "this suite's guest has no " << GetParam();
  }

  OciBundle bundle(const std::string& id, std::vector<unsigned> render_minors, const Strings& subject) const {
    OciBundle made;
    made.runtime = GetParam();
    made.id = id;
    made.directory = images(id);
    made.render_minors = std::move(render_minors);
    made.subject = with_common_options(subject);
    return made;
  }

  static void expect_container_whole(OciContainer& container) {
    for (const char* command : {"check", "queue-progress", "work", "check"}) {
      const std::string answer = container.subject().ask(command);
      ASSERT_EQ(answer.rfind(std::string("ok ") + command, 0), 0U) << answer;
    }
  }
};

TEST_P(OciRuntime, ContainerComesBackWhole) {
  load();
  OciContainer container(
      bundle("whole", {128, 129}, {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"}),
      criu_->logs());
  const std::string ready = container.run();
  ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  ASSERT_NO_FATAL_FAILURE(expect_container_whole(container));
  CriuRun run = container.checkpoint(images());
  ASSERT_TRUE(run.good()) << GetParam() << " checkpoint ended with " << run.status.value_or(-1);
  container.start_restore(images());
  run = container.finish_restore();
  ASSERT_TRUE(run.good()) << GetParam() << " restore ended with " << run.status.value_or(-1);
  ASSERT_NO_FATAL_FAILURE(expect_container_whole(container));
  EXPECT_EQ(container.subject().quit(), 0);
}

INSTANTIATE_TEST_SUITE_P(By, OciRuntime, testing::Values("runc", "crun"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace sluice::vm_test
