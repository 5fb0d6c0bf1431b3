// SPDX-License-Identifier: MIT
// trace_writer GPU_ID CHUNKS SLOTS ...: a trace on stdout as the plugin writes it, of a dump with a lane for
// each three arguments. Chunks go through copy and store, one a millisecond, in turn through so many slots.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "plugin/contents/stats.h"

namespace {

using sluice::plugin::GpuOutcome;

GpuOutcome lane_of(std::uint32_t gpu_id, std::uint64_t chunks, std::uint64_t slots) {
  GpuOutcome gpu;
  gpu.gpu_id = gpu_id;
  gpu.stats.stages = 2;
  gpu.stats.stage[0].name = "copy";
  gpu.stats.stage[1].name = "store";
  gpu.trace = sluice::Trace(2 * chunks);
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::uint64_t began_ns = 5'000'000'000 + chunk * 1'000'000;
    const auto slot = static_cast<std::uint32_t>(chunk % slots);
    gpu.trace.add({began_ns, began_ns + 250'000, chunk, slot, 0});
    gpu.trace.add({began_ns + 250'000, began_ns + 2'000'000, chunk, slot, 1});
  }
  return gpu;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [argv](int at) { return std::strtoull(argv[at], nullptr, 0); };
  std::string text;
  for (int at = 1; at + 2 < argc; at += 3) {
    const GpuOutcome gpu = lane_of(static_cast<std::uint32_t>(number(at)), number(at + 1), number(at + 2));
    text += (text.empty() ? "" : ",\n") +
            sluice::plugin::trace_events(sluice::Direction::Dump, static_cast<std::size_t>(at / 3), gpu);
  }
  return std::printf("[\n%s\n]\n", text.c_str()) < 0 ? 1 : 0;
}
