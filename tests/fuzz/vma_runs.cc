// SPDX-License-Identifier: MIT
// CRIU's mm-PID.img, of which the maps are read: as it is, and behind a header that fits.
#include <array>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "plugin/host/vma_runs.h"

using namespace sluice;

namespace {

fuzz::Goal a_map("a task's memory with a map of a device");

void parse(std::span<const std::uint8_t> bytes) {
  const auto runs = plugin::VmaRuns::parse(bytes);
  if (!runs) {
    FUZZ_CHECK(runs.error().err > 0 && !runs.error().what.empty());
    return;
  }
  if (runs->maps(0, UINT64_MAX)) a_map.reach();
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{0x1000}, UINT64_MAX})
    FUZZ_CHECK(!runs->is_last(address) || runs->maps(0, UINT64_MAX) || runs->maps(UINT64_MAX, 1));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse({data, size});
  const std::array<std::uint32_t, 3> header{0x54564319, 0x57492820, static_cast<std::uint32_t>(size)};
  std::vector<std::uint8_t> framed(sizeof header + size);
  std::memcpy(framed.data(), header.data(), sizeof header);
  if (size > 0) std::memcpy(&framed[sizeof header], data, size);
  parse(framed);
  return 0;
}
