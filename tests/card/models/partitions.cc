// SPDX-License-Identifier: MIT
#include "models/partitions.h"

#include <algorithm>

namespace sluice::card {

namespace {

constexpr unsigned kModeShift = 4;  // in PARTITION_COMPUTE_STATUS

// enum amdgpu_gfx_partition.
std::uint32_t mode_of(std::uint32_t xccs, std::uint32_t of_partition) {
  constexpr std::uint32_t kSpx = 0, kCpx = 4;
  if (of_partition == 1 && xccs > 1) return kCpx;
  const std::uint32_t partitions = xccs / std::max(of_partition, 1U);
  return kSpx + std::clamp(partitions, 1U, kCpx) - 1;
}

}  // namespace

void attach_partition_status(const Model& model, Registers& registers) {
  const auto xccs = static_cast<std::uint32_t>(model.xccs.size());
  registers.attach(
      model.partition_status,
      [&registers, control = model.partition_control, xccs] {
        return mode_of(xccs, xccs_of_partition(registers.read(control)).count) << kModeShift;
      },
      [](std::uint32_t) {});
}

}  // namespace sluice::card
