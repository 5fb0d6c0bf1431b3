// SPDX-License-Identifier: MIT
// Lanes that move their bytes at the same time, each in its own thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "measure/process.h"
#include "measure/sample.h"

namespace sluice::bench {

// Calls prepare(*lane), then run(*lane), each a Result<void>, for all of `lanes` at once. Timed from when all
// are prepared to the last end; bytes are the sum of lane->bytes(). Returns the first error in their order,
// when all have ended.
template <class Lanes, class Prepare, class Run>
Result<Sample> run_at_once(const Lanes& lanes, Prepare prepare, Run run) {
  std::vector<Result<void>> results(lanes.size());
  Sample sample;
  std::latch prepared(static_cast<std::ptrdiff_t>(lanes.size() + 1));
  std::latch begun(1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    sample.bytes += lanes[i]->bytes();
    threads.emplace_back([&, i] {
      results[i] = prepare(*lanes[i]);
      prepared.count_down();
      begun.wait();
      if (results[i]) results[i] = run(*lanes[i]);
    });
  }
  prepared.arrive_and_wait();
  const double cpu = process_cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  begun.count_down();
  for (std::thread& thread : threads) thread.join();
  sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  sample.cpu_seconds = process_cpu_seconds() - cpu;
  for (Result<void>& result : results) {
    if (!result) return std::move(result).error();
  }
  return sample;
}

}  // namespace sluice::bench
