// SPDX-License-Identifier: MIT
#include "scenario/vamdgpu_cases.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "machine_directory.h"
#include "measure/program.h"
#include "scenario/place.h"

namespace sluice::bench {
namespace {

constexpr int kNoMachine = 125;  // vamdgpu-run's exit status, with the reason on stderr

}  // namespace

Result<void> add_vamdgpu_cases(const BenchOptions& options, const std::string& scenario,
                               std::uint64_t vram_bytes, Report& report) {
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  const std::filesystem::path json = place.file("report.json");
  std::vector<std::string> arguments;
  try {
    // Beside its library. It removes the machine, however this ends.
    arguments = {vamdgpu::find_preload_library().parent_path() / "vamdgpu-run"};
    arguments.insert(arguments.end(),
                     {"--gpus", "1", "--vram", std::to_string(vram_bytes), "--gtt", "64M", "--",
                      std::filesystem::read_symlink("/proc/self/exe"), scenario, "--dir", options.directory,
                      "--json", json, options.by_scale("--smoke", "--quick", "--full")});
  } catch (const std::system_error& error) {
    report.cases.push_back({kOnVamdgpu, std::string("left out: ") + error.what(), {}});
    return {};
  }
  SLUICE_TRY_ASSIGN(const int status, run_program(std::move(arguments)));
  if (status == kNoMachine) {
    report.cases.push_back({kOnVamdgpu,
                            "left out: no virtual machine could be made; its VRAM takes " +
                                std::to_string(vram_bytes / kMiB) + " MiB of /dev/shm",
                            {}});
    return {};
  }
  if (status != 0) return make_error(EIO, "on a virtual machine: exit status " + std::to_string(status));
  std::ifstream file(json);
  SLUICE_TRY_ASSIGN(Report there, report_of(nlohmann::ordered_json::parse(file, nullptr, false)));
  for (Case& each : there.cases) report.cases.push_back(std::move(each));
  return {};
}

}  // namespace sluice::bench
