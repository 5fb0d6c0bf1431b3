// SPDX-License-Identifier: MIT
// The scenarios: each measures one thing and returns a report. One file per scenario; the list is
// scenarios.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "report/report.h"

namespace sluice::bench {

// The amount of work. Smoke sizes only show that a scenario runs.
enum class Scale : std::uint8_t { Smoke, Quick, Full };

struct BenchOptions {
  std::filesystem::path directory;  // on the disk to be measured; our files there are removed
  Scale scale = Scale::Quick;
  std::function<void(const std::string&)> tell;  // a line of progress; never empty
  std::set<std::string> cases;                   // by name; empty: all of the scenario

  bool wants(const std::string& name) const { return cases.empty() || cases.contains(name); }

  // One of three values by scale.
  template <class T>
  T by_scale(T smoke, T quick, T full) const {
    return scale == Scale::Smoke ? smoke : scale == Scale::Quick ? quick : full;
  }
};

struct Scenario {
  const char* name;
  const char* help;
  Result<Report> (*run)(const BenchOptions&);
  unsigned quick_gib = 0, full_gib = 0;  // that its files take on the disk, at most
};

std::span<const Scenario> scenarios();

// ---- the scenarios
Result<Report> run_limits(const BenchOptions& options);
Result<Report> run_cuda(const BenchOptions& options);
Result<Report> run_cuda_disk(const BenchOptions& options);
Result<Report> run_dump(const BenchOptions& options);
Result<Report> run_restore(const BenchOptions& options);
Result<Report> run_serial(const BenchOptions& options);
Result<Report> run_zero(const BenchOptions& options);
Result<Report> run_cached(const BenchOptions& options);
Result<Report> run_bubble(const BenchOptions& options);
Result<Report> run_engine(const BenchOptions& options);
Result<Report> run_memory(const BenchOptions& options);
Result<Report> run_small(const BenchOptions& options);
Result<Report> run_stream(const BenchOptions& options);
Result<Report> run_scale(const BenchOptions& options);
Result<Report> run_frozen(const BenchOptions& options);
Result<Report> run_frozen_cuda(const BenchOptions& options);
Result<Report> run_replicas(const BenchOptions& options);
Result<Report> run_replicas_cuda(const BenchOptions& options);
Result<Report> run_plan(const BenchOptions& options);

}  // namespace sluice::bench
