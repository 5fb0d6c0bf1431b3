// SPDX-License-Identifier: MIT
// The dies of one MI300X as GPUs (CPX): at one PCI address, with gpu_ids and render nodes of their own.
#include <nlohmann/json.hpp>
#include <set>

#include "kernel_calls.h"
#include "minors.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

using nlohmann::json;

constexpr Gpus kDivided = {.number = 1, .each = Gpus::Each::Dies};
constexpr Gpus kAnother = {.number = 1, .machine = 1, .each = Gpus::Each::Dies};
constexpr Gpus kWhole = {.number = 1, .each = Gpus::Each::Whole};

class Partitions : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!Card::have_dies()) GTEST_SKIP() << "these cards have one die";
  }

  static Strings small_subject(const std::string& gpus = "2") {
    return {"--gpus", gpus, "--vram", "8M", "--gtt", "1M", "--run-queues"};
  }

  void start_on(const Gpus& gpus, const Strings& options) {
    load(gpus);
    ASSERT_EQ(machine().gpu_ids().size(), gpus.each == Gpus::Each::Dies ? 2U : 1U);
    ASSERT_NO_FATAL_FAILURE(start_subject(options));
  }

  void expect_good_end() {
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }

  // A task is asked, because a device cgroup hides the other cards from criu.
  void expect_refused_on(const Gpus& gpus, const std::string& id) {
    ASSERT_NO_FATAL_FAILURE(move_to(gpus));
    const CriuRun run = criu_->restore(images());
    ASSERT_TRUE(run.status.has_value());
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.plugin_said(id)) << "the reason is not said";
    EXPECT_EQ(machine().criu_calls(kRestore), 0U) << "RESTORE was tried";
  }

  // What a command of ours says, as JSON where it can.
  std::string said_by(const Strings& words) {
    Launch launch;
    launch.arguments = {(settings().programs / "sluice").string()};
    launch.arguments.insert(launch.arguments.end(), words.begin(), words.end());
    launch.output = scratch() / "said";
    std::filesystem::remove(launch.output);
    EXPECT_EQ(run(launch), 0) << words.front();
    return read_file(launch.output);
  }
};

TEST_F(Partitions, AreTwoGpusOfOneProcessThatComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(start_on(kDivided, everything()));
  const auto process = machine().process(subject_->pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->gpus_with_vram().size(), 2U);
  ASSERT_NO_FATAL_FAILURE(expect_survives({"--link-remap"}));
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

TEST_F(Partitions, ComeBackOnThoseOfAnotherCard) {
  ASSERT_NO_FATAL_FAILURE(start_on(kDivided, small_subject()));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(move_to(kAnother));
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

TEST_F(Partitions, AreDumpedInAChainAfterAPreDump) {
  ASSERT_NO_FATAL_FAILURE(start_on(kDivided, small_subject()));
  ASSERT_TRUE(criu_->pre_dump(subject_->pid(), images("before"), {"--track-mem"}).good());
  EXPECT_EQ(subject_->ask("change"), "ok change");
  ASSERT_TRUE(criu_
                  ->dump(subject_->pid(), images("first"),
                         {"--track-mem", "--leave-running", "--prev-images-dir", "../before"})
                  .good());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_TRUE(std::filesystem::is_directory(images()));
  ASSERT_NO_FATAL_FAILURE(expect_survives({"--track-mem", "--prev-images-dir", "../first"}));
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

// Equal dies of one card can only be told by name: SLUICE_GPU_MAP has them change places.
TEST_F(Partitions, ChangePlacesWhereTheMapSaysSo) {
  ASSERT_NO_FATAL_FAILURE(start_on(kDivided, {"--gpus", "1", "--vram", "8M", "--no-queues"}));
  const std::vector<std::uint32_t> ids = machine().gpu_ids();
  const auto gpus = [&] {
    return machine().process(subject_->pid()).value_or(ProcessSeen()).gpus_with_vram();
  };
  const std::set<std::uint32_t> before = gpus();
  ASSERT_EQ(before.size(), 1U);
  const bool was_first = before.contains(ids[0]);
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string other = was_first ? "0000:01:00.1" : "0000:01:00.0";
  criu_->environment.insert_or_assign(
      "SLUICE_GPU_MAP", "renderD" + std::to_string(render_minors().at(was_first ? 0 : 1)) + "=" + other);
  ASSERT_NO_FATAL_FAILURE(restore());
  EXPECT_EQ(gpus(), std::set<std::uint32_t>{ids[was_first ? 1 : 0]});
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Partitions, AndTheWholeCardDoNotStandInForEachOther) {
  ASSERT_NO_FATAL_FAILURE(start_on(kWhole, small_subject("1")));
  criu_->environment["SLUICE_LOST_WAVES"] = "warn";
  ASSERT_NO_FATAL_FAILURE(dump());
  criu_->environment.erase("SLUICE_LOST_WAVES");
  ASSERT_NO_FATAL_FAILURE(expect_refused_on(kDivided, "[SL-R14]"));
  std::filesystem::remove_all(images());
  ASSERT_NO_FATAL_FAILURE(start_on(kDivided, small_subject()));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(expect_refused_on(kWhole, "[SL-R14]"));
}

TEST_F(Partitions, AreKnownToTheCommands) {
  ASSERT_NO_FATAL_FAILURE(start_on(kDivided, small_subject()));
  const std::string pid = std::to_string(subject_->pid());
  const json checked = json::parse(said_by({"check", "--json", "--pid", pid, "--dir", images().string()}));
  EXPECT_EQ(checked["result"], "works") << checked;
  {
    StoppedCriu criu(criu_->command("dump", images("killed"), {"-t", pid}));
    ASSERT_TRUE(criu.run_until(criu_op(kCheckpoint, false)));
  }  // killed
  EXPECT_EQ(subject_->ask("queue-progress").rfind("ok queue-progress stands", 0), 0U);
  (void)said_by({"unpause", pid});
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(dump());
  const json map = json::parse(said_by({"map", "--json", images().string()}));
  EXPECT_EQ(map["result"], "fits") << map;
  std::set<std::string> places;
  for (const json& gpu : map["local"]) {
    places.insert(gpu["pci"]);
    EXPECT_GT(gpu["room_bytes"], 0U) << map;
    EXPECT_LT(gpu["room_bytes"], machine().vram_bytes()) << map;
  }
  EXPECT_EQ(places, (std::set<std::string>{"0000:01:00.0", "0000:01:00.1"})) << map;
  const std::string shown = said_by({"show", "--json", images().string()});
  for (const std::uint32_t id : machine().gpu_ids())
    EXPECT_NE(shown.find(std::to_string(id)), std::string::npos) << shown;
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

class WholeCards : public Partitions {};

// No kernel here saves and restores the queues of all dies.
TEST_F(WholeCards, AreNotDumped) {
  ASSERT_NO_FATAL_FAILURE(start_on(kWhole, small_subject("1")));
  const CriuRun run = criu_->dump(subject_->pid(), images());
  EXPECT_NE(run.status.value_or(0), 0);
  EXPECT_TRUE(run.plugin_said("[SL-D97]")) << "the reason is not said";
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

}  // namespace
}  // namespace sluice::vm_test
