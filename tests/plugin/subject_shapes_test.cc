// SPDX-License-Identifier: MIT
// The subject in its shapes: each builds, checks itself, works and ends well; the shapes that the look-alike
// can restore go through a dump. Queues get packets and are run by the test.
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <string>

#include "control.h"
#include "plugin_test.h"
#include "queue_runner.h"

namespace sluice::plugin_test {
namespace {

constexpr Version kNewest = {"dev", 15};

// ---- shapes by themselves
// ----------------------------------------------------------------------------------------------------------

struct Shape {
  const char* name;
  Strings options;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

std::string name_of_shape(const ::testing::TestParamInfo<Shape>& info) {
  return info.param.name;
}

class ShapeTest : public ::testing::TestWithParam<Shape> {
 protected:
  Scene scene_{small_machine(), shipped_plugin_directory()};
};

TEST_P(ShapeTest, BuildsChecksWorksAndEnds) {
  Strings arguments = {"--vram", "8M", "--gtt", "1M"};
  arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
  const std::string ready = scene_.start_subject(arguments);
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  for (int round = 0; round < 2; ++round) {
    const std::string checked = scene_.subject().ask("check");
    EXPECT_TRUE(checked.starts_with("ok check")) << checked;
    EXPECT_EQ(scene_.subject().ask("work"), "ok work");
  }
  EXPECT_EQ(scene_.subject().ask("quit"), "ok quit");
  EXPECT_EQ(scene_.subject().wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ShapeTest,
    ::testing::Values(
        Shape{"Default", {}}, Shape{"Svm", {"--svm"}}, Shape{"SvmContext", {"--svm-context"}},
        Shape{"OneGpuUsed", {"--gpus", "1"}}, Shape{"Waiter", {"--waiter"}},
        Shape{"SecondKfd", {"--second-kfd"}}, Shape{"DupKfd", {"--dup-kfd"}},
        Shape{"SecondRender", {"--second-render"}}, Shape{"RenderFirst", {"--render-first"}},
        Shape{"ForkChild", {"--fork-child"}}, Shape{"CloseRenderAfterMap", {"--close-render-after-map"}},
        Shape{"NoKfdFd", {"--no-kfd-fd"}}, Shape{"MapDmabuf", {"--map-dmabuf"}},
        Shape{"DmabufFd", {"--dmabuf-fd"}}, Shape{"GemBo", {"--gem-handles", "1,3,70"}},
        Shape{"RenderOnly", {"--render-only"}},
        Shape{"RenderOnlyGemBos", {"--render-only", "--second-render", "--gem-handles", "count:100"}},
        Shape{"Plain", {"--plain"}}, Shape{"TenThousandBos", {"--bos", "count:10000", "--no-queues"}},
        Shape{"OneBo", {"--one-bo", "20M", "--no-queues"}},
        Shape{"LittleOfAll", {"--no-events", "--no-queues", "--no-userptr"}},
        Shape{"MuchAtOnce",
              {"--svm", "--waiter", "--second-kfd", "--dup-kfd", "--second-render", "--fork-child",
               "--gem-handles", "1,3,70", "--dmabuf-fd"}}),
    name_of_shape);

// Kernels whose KFD exports no dma-bufs, and whose topology does not tell how large a context save area is.
TEST(OlderKernelTest, BuildsChecksWorksAndEnds) {
  for (const std::uint32_t kfd_minor_version : {11U, 17U}) {
    SCOPED_TRACE(kfd_minor_version);
    vamdgpu::MachineOptions machine = small_machine();
    machine.kfd_minor_version = kfd_minor_version;
    Scene scene(machine, shipped_plugin_directory());
    const vamdgpu::QueueRunner runner(scene.machine().directory());
    const std::string ready = scene.start_subject(
        {"--vram", "8M", "--gtt", "1M", "--svm", "--run-queues", "--map-dmabuf", "--gem-handles", "1,3,70"});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    for (int round = 0; round < 2; ++round) {
      const std::string checked = scene.subject().ask("check");
      EXPECT_TRUE(checked.starts_with("ok check")) << checked;
      EXPECT_EQ(scene.subject().ask("work"), "ok work");
    }
    EXPECT_EQ(scene.subject().ask("quit"), "ok quit");
  }
}

// ---- what a broken process looks like
// ----------------------------------------------------------------------------------------------------------

class DamageTest : public ::testing::Test {
 protected:
  void start(const Strings& more) {
    Strings arguments = {"--vram", "4M", "--gtt", "1M"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }
  std::string check() { return scene_.subject().ask("check"); }
  vamdgpu::ProcessInfo process() { return *scene_.control().process(scene_.subject_pid()); }

  Scene scene_{small_machine(1), shipped_plugin_directory()};
};

TEST_F(DamageTest, AFlippedBitInAnyBoIsFound) {
  ASSERT_NO_FATAL_FAILURE(start({"--no-queues"}));
  int found = 0;
  for (const vamdgpu::BoInfo& bo : process().bos) {
    if ((bo.flags & 3) == 0 || bo.va == 0 ||
        bo.kfd_handle == static_cast<std::uint32_t>(process().event_page_handle))
      continue;
    std::uint8_t byte = 0;
    const std::uint64_t at = bo.va + bo.size - 1;
    ASSERT_TRUE(scene_.control().read(scene_.subject_pid(), bo.user_gpu_id, at, &byte, 1));
    byte ^= 0x10;
    ASSERT_TRUE(scene_.control().write(scene_.subject_pid(), bo.user_gpu_id, at, &byte, 1));
    EXPECT_NE(check().find("differs at byte"), std::string::npos) << bo.va;
    byte ^= 0x10;
    ASSERT_TRUE(scene_.control().write(scene_.subject_pid(), bo.user_gpu_id, at, &byte, 1));
    ++found;
  }
  EXPECT_GT(found, 5);
  EXPECT_TRUE(check().starts_with("ok check"));
}

TEST_F(DamageTest, QueuesThatNobodyRunsAreNoted) {
  ASSERT_NO_FATAL_FAILURE(start({}));
  EXPECT_EQ(scene_.subject().ask("queue-progress"), "bad no queue gets packets (--run-queues)");
}

// ---- running queues
// ----------------------------------------------------------------------------------------------------------

class RunningQueuesTest : public DamageTest {
 protected:
  vamdgpu::QueueRunner runner_{scene_.machine().directory()};
};

TEST_F(RunningQueuesTest, WorkGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start({"--run-queues"}));
  for (int round = 0; round < 40; ++round) {  // rings wrap
    const std::string checked = check();
    ASSERT_TRUE(checked.starts_with("ok check")) << checked;
    ASSERT_EQ(scene_.subject().ask("work"), "ok work");
  }
  const std::string progress = scene_.subject().ask("queue-progress");
  EXPECT_TRUE(progress.starts_with("ok queue-progress runs consumed=")) << progress;
  std::uint64_t consumed = 0;
  for (const vamdgpu::QueueInfo& queue : process().queues) {
    EXPECT_EQ(queue.fault, "") << queue.id;
    consumed += queue.consumed;
  }
  // Just what the subject has seen.
  EXPECT_TRUE(progress.ends_with("consumed=" + std::to_string(consumed))) << progress << " " << consumed;
  EXPECT_EQ(scene_.subject().ask("quit"), "ok quit");
}

TEST_F(RunningQueuesTest, AWritePointerThatHasChangedIsFound) {
  ASSERT_NO_FATAL_FAILURE(start({"--run-queues"}));
  for (const vamdgpu::QueueInfo& queue : process().queues) {
    const std::uint32_t gpu_id = scene_.control().config().gpus[0].gpu_id;
    std::uint64_t position = 0;
    ASSERT_TRUE(scene_.control().read(scene_.subject_pid(), gpu_id, queue.write_ptr, &position, 8));
    ++position;  // the queue stands at its gate: nobody else writes this
    ASSERT_TRUE(scene_.control().write(scene_.subject_pid(), gpu_id, queue.write_ptr, &position, 8));
    const std::string checked = check();
    EXPECT_NE(checked.find("write pointer"), std::string::npos) << checked;
    --position;
    ASSERT_TRUE(scene_.control().write(scene_.subject_pid(), gpu_id, queue.write_ptr, &position, 8));
  }
}

// ---- through a dump
// ----------------------------------------------------------------------------------------------------------

class RestoredShapeTest : public PluginTest {
 protected:
  void dump_restore_check(const Strings& options) {
    ASSERT_NO_FATAL_FAILURE(start(options));
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
};

TEST_P(RestoredShapeTest, SvmRangesComeBack) {
  dump_restore_check({"--svm"});
}

TEST_P(RestoredShapeTest, QueuesGoOnInTheMiddleOfTheirWork) {
  const vamdgpu::QueueRunner runner(scene_.machine().directory());
  ASSERT_NO_FATAL_FAILURE(start({"--run-queues"}));
  for (int generation = 0; generation < 2; ++generation) {
    ASSERT_NO_FATAL_FAILURE(dump());
    ASSERT_NO_FATAL_FAILURE(restore_and_check());
  }
  EXPECT_TRUE(heard("queue-progress").starts_with("ok queue-progress runs")) << last_;
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(RestoredShapeTest, QueuesGoOnAfterADumpThatLeavesTheProcessRunning) {
  const vamdgpu::QueueRunner runner(scene_.machine().directory());
  ASSERT_NO_FATAL_FAILURE(start({"--run-queues"}));
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
    expect_running();
  }
}

// Nobody undoes what a dump that was killed in its middle has done: the process runs, its queues stand.
TEST_P(RestoredShapeTest, QueuesAreStoppedAfterADumpThatWasKilled) {
  const vamdgpu::QueueRunner runner(scene_.machine().directory());
  ASSERT_NO_FATAL_FAILURE(start({"--run-queues"}));
  EXPECT_TRUE(heard("queue-progress").starts_with("ok queue-progress runs")) << last_;
  Program host = scene_.start_host(version(), "dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  scene_.control().between_calls([&] { host.kill(); });
  EXPECT_TRUE(heard("queue-progress").starts_with("ok queue-progress stands")) << last_;
  EXPECT_EQ(heard("quit"), "ok quit");
}

TEST_P(RestoredShapeTest, TheAcquiredRenderFileIsFoundAmongTwo) {
  dump_restore_check({"--second-render"});
}

TEST_P(RestoredShapeTest, RenderFilesThatWereOpenedBeforeTheKfdComeBack) {
  dump_restore_check({"--render-first"});
}

// What a render file's image says of the KFD is known when the KFD's is made. An earlier one without it would
// be one more that is as good by its digest, or its key.
TEST_P(RestoredShapeTest, EachImageIsMadeOnce) {
  ASSERT_NO_FATAL_FAILURE(start({"--render-first"}));
  std::filesystem::create_directories(scene_.images());
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(watch.get(), scene_.images().c_str(), IN_MOVED_TO), 0);
  ASSERT_NO_FATAL_FAILURE(dump());
  std::map<std::string, int> times;
  alignas(inotify_event) std::array<char, 65536> events{};
  for (ssize_t got = 0; (got = ::read(watch.get(), events.data(), events.size())) > 0;) {
    for (ssize_t at = 0; at < got;) {
      const auto* const event = reinterpret_cast<const inotify_event*>(events.data() + at);
      if (event->len > 0) ++times[event->name];
      at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
    }
  }
  EXPECT_GE(times.size(), 5U) << "the KFD's, those of two render files, pages and sums";
  for (const auto& [name, count] : times) EXPECT_EQ(count, 1) << name;
}

TEST_P(RestoredShapeTest, AProcessOnAnOldKernelComesBack) {
  vamdgpu::MachineOptions old = small_machine();
  old.kfd_minor_version = 11;
  scene_.move_to(old);
  const vamdgpu::QueueRunner runner(scene_.machine().directory());
  dump_restore_check({"--run-queues", "--svm"});
  EXPECT_EQ(scene_.log().find("[SL-R32]"), std::string::npos) << "the driver was asked as Linux 6.1 bears it";
}

INSTANTIATE_TEST_SUITE_P(Versions, RestoredShapeTest, ::testing::Values(kVersions[0], kNewest),
                         name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
