// SPDX-License-Identifier: MIT
// `sluice map` foretells what a restore does: the same GPUs, or the same refusal. Checkpoints of several
// machines, on several others.
#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using Json = nlohmann::json;
using Options = vamdgpu::MachineOptions;

struct Dumped {
  const char* name;
  unsigned gpus;
  vamdgpu::Fabric fabric;
  Strings subject;
};
void PrintTo(const Dumped& dumped, std::ostream* out) {
  *out << dumped.name;
}
const Dumped kDumped[] = {
    {"OneGpu", 1, vamdgpu::Fabric::Pcie, {"--gpus", "1"}},
    {"TwoGpusOfOneHive", 2, vamdgpu::Fabric::Xgmi, {}},
    {"TwoGpusByPcie", 2, vamdgpu::Fabric::Pcie, {}},
    {"RenderFiles", 2, vamdgpu::Fabric::Pcie, {"--render-only", "--gem-handles", "1"}},
    {"KfdAndRenderFiles",
     2,
     vamdgpu::Fabric::Pcie,
     {"--svm-context", "--share", "kfd", "--gem-handles", "1,3"}},
};

struct Here {
  const char* name;
  std::function<void(Options&)> change;
  std::map<std::string, std::string> settings = {};
  unsigned taken_gpus = 0;  // by another process, the first ones
};
const Here kHere[] = {
    {"TheSame", [](Options&) {}},
    {"FourGpus", [](Options& options) { options.gpus = 4; }},
    {"OneGpuOnly", [](Options& options) { options.gpus = 1; }},
    {"FourGpusTheFirstIsFull", [](Options& options) { options.gpus = 4; }, {}, 1},
    {"FourGpusTwoAreFull", [](Options& options) { options.gpus = 4; }, {}, 2},
    {"OtherIds",
     [](Options& options) {
       options.gpu_ids = {11, 12};
       options.gpu_ids.resize(options.gpus);
     }},
    {"OtherRenderNodes", [](Options& options) { options.minor_base = 140; }},
    {"OneIsHidden",
     [](Options& options) {
       options.gpus = 3;
       options.hidden = {0};
     }},
    {"LessVram", [](Options& options) { options.vram_bytes = 16 * kMiB; }},
    {"LessVramAllowed",
     [](Options& options) { options.vram_bytes = 16 * kMiB; },
     {{"KFD_VRAM_SIZE_CHECK", "0"}}},
    {"AnotherModel", [](Options& options) { options.preset = vamdgpu::Preset::Mi300x; }},
    {"HivesOfTwo",
     [](Options& options) {
       options.gpus = 4;
       options.fabric = vamdgpu::Fabric::Xgmi;
       options.hive_size = 2;
     }},
    {"TwoCpuNodes",
     [](Options& options) {
       options.cpu_nodes = 2;
       options.fabric = vamdgpu::Fabric::Pcie;
     }},
    {"TwoCpuNodesAllowed",
     [](Options& options) {
       options.cpu_nodes = 2;
       options.fabric = vamdgpu::Fabric::Pcie;
     },
     {{"KFD_NUMA_CHECK", "0"}}},
    {"AnotherDriver", [](Options& options) { options.bo_record_bytes = VAMDGPU_BO_RECORD_AMD_64; }},
    {"AMap", [](Options& options) { options.gpus = 4; }, {{"SLUICE_GPU_MAP", "renderD128=renderD131"}}},
    {"AMapOfNoGpu", [](Options&) {}, {{"SLUICE_GPU_MAP", "renderD128=0x1"}}},
    {"AMapAgainstTheRules",
     [](Options& options) { options.vram_bytes = 16 * kMiB; },
     {{"SLUICE_GPU_MAP", "renderD128=renderD128"}}},
};

Options machine_of(const Dumped& dumped) {
  Options options = small_machine(dumped.gpus);
  options.fabric = dumped.fabric;
  return options;
}

std::string id_in(const std::string& message) {
  const std::size_t begin = message.rfind("[SL-");
  return begin != std::string::npos ? message.substr(begin) : "no id";
}

class GpuForecastTest : public SceneTest, public ::testing::WithParamInterface<Dumped> {
 protected:
  GpuForecastTest() : SceneTest(machine_of(GetParam())) {}

  Json map(int* status) {
    Program program = scene_.start_program(
        {(program_directory() / "../../src/cli/sluice").string(), "map", "--json", scene_.images().string()});
    const Json object = Json::parse(program.hear(), nullptr, false);
    *status = program.wait();
    return object;
  }

  // Local gpu_ids by those of the images, as a restore's log tells.
  static std::map<std::string, std::string> moved_in(const std::string& log) {
    std::map<std::string, std::string> moved;
    const std::regex line("GPU (0x[0-9a-f]+) renderD[0-9]+ of the image is (0x[0-9a-f]+) renderD[0-9]+ here");
    for (std::sregex_iterator at(log.begin(), log.end(), line), end; at != end; ++at)
      moved[(*at)[1]] = (*at)[2];
    return moved;
  }
  static std::map<std::string, std::string> moved_in(const Json& forecast) {
    const auto hex = [](unsigned gpu_id) {
      std::array<char, 16> text{};
      (void)std::snprintf(text.data(), text.size(), "0x%04x", gpu_id);
      return std::string(text.data());
    };
    std::map<std::string, std::string> moved;
    for (const Json& mapping : forecast["mappings"]) {
      for (const Json& pair : mapping["gpus"]) {
        if (pair["gpu_id"] != pair["local_gpu_id"]) moved[hex(pair["gpu_id"])] = hex(pair["local_gpu_id"]);
      }
    }
    return moved;
  }

  void expect_the_same(const Json& forecast, int status) {
    (void)scene_.log();
    const int restored = scene_.restore("4.2");
    const std::string log = scene_.log();
    ASSERT_EQ(status, restored == 0 ? 0 : 3) << forecast.dump(1) << log;
    if (restored == 0) {
      EXPECT_EQ(moved_in(forecast), moved_in(log)) << forecast.dump(1) << log;
      EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
      return;
    }
    EXPECT_NE(log.find(id_in(forecast["message"])), std::string::npos) << forecast.dump(1) << log;
    EXPECT_NE(log.find(forecast["remedy"]), std::string::npos) << forecast.dump(1) << log;
    for (const Json& mapping : forecast.value("mappings", Json::array())) {
      if (mapping["result"] == "refused") {
        EXPECT_NE(log.find(mapping["message"]), std::string::npos) << forecast.dump(1) << log;
      }
    }
  }
};

TEST_P(GpuForecastTest, IsWhatARestoreDoes) {
  ASSERT_NO_FATAL_FAILURE(start(GetParam().subject));
  ASSERT_NO_FATAL_FAILURE(dump_with("4.2"));
  for (const Here& here : kHere) {
    SCOPED_TRACE(here.name);
    Options options = machine_of(GetParam());
    here.change(options);
    scene_.move_to(options);
    Program other;
    if (here.taken_gpus != 0) {
      other = scene_.start_program({(program_directory() / "../subject/gpu-subject").string(), "--gpus",
                                    std::to_string(here.taken_gpus), "--vram", "20M", "--gtt", "1M",
                                    "--no-queues"});
      ASSERT_TRUE(other.hear().starts_with("ready"));
    }
    scene_.variables.insert(here.settings.begin(), here.settings.end());
    int status = -1;
    const Json forecast = map(&status);
    expect_the_same(forecast, status);
    for (const auto& [name, value] : here.settings) scene_.variables.erase(name);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GpuForecastTest, ::testing::ValuesIn(kDumped),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace sluice::plugin_test
