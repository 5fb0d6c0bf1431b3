// SPDX-License-Identifier: MIT
// Lanes that move their bytes at the same time, each in a thread of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "measure/process.h"
#include "measure/sample.h"

namespace sluice::bench {

// Calls run(*lane), a Result<void>, for all of `lanes` at once. Timed from the first start to the last end;
// bytes are lane->bytes() of all. The first error in their order, when all have ended.
template <class Lanes, class Run>
Result<Sample> run_at_once(const Lanes& lanes, Run run) {
  std::vector<Result<void>> results(lanes.size());
  Sample sample;
  const double cpu = process_cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    sample.bytes += lanes[i]->bytes();
    threads.emplace_back([&, i] { results[i] = run(*lanes[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  sample.cpu_seconds = process_cpu_seconds() - cpu;
  for (Result<void>& result : results) {
    if (!result) return std::move(result).error();
  }
  return sample;
}

}  // namespace sluice::bench
