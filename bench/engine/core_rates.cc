// SPDX-License-Identifier: MIT
#include "engine/core_rates.h"

#include <chrono>
#include <functional>

#include "front/dma_copy.h"
#include "lane/lane_run.h"
#include "pipeline/arena.h"

namespace sluice::bench {
namespace {

double time_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Result<std::vector<CoreRates>> measure_core(std::uint64_t bytes, unsigned count) {
  SLUICE_TRY(load_mac());
  SLUICE_TRY_ASSIGN(const StagingArena from, StagingArena::make(bytes, 1, -1));
  SLUICE_TRY_ASSIGN(const StagingArena ring, StagingArena::make(kStagingBytes, 1, -1));
  volatile std::uint8_t seen = 0;
  const auto copy = [&] {
    for (std::uint64_t at = 0; at < bytes; at += kChunkBytes)
      vamdgpu::dma_copy(&ring.bytes()[at % ring.bytes().size()], &from.bytes()[at], kChunkBytes);
  };
  const auto hash = [&](const SumMethod& method) {
    for (std::uint64_t at = 0; at < bytes; at += kSumBlockBytes)
      seen = seen ^ method.of(from.bytes().subspan(at, kSumBlockBytes))[0];
  };
  std::vector<CoreRates> all(count);
  for (CoreRates& rates : all) {
    rates.copy = static_cast<double>(bytes) / time_of(copy);
    rates.checksum = static_cast<double>(bytes) / time_of([&] { hash(SumMethod()); });
    rates.keyed = static_cast<double>(bytes) / time_of([&] { hash(SumMethod(MacKey{})); });
  }
  return all;
}

}  // namespace sluice::bench
