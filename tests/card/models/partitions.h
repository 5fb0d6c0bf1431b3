// SPDX-License-Identifier: MIT
// How a card with several XCCs is divided into GPUs: the driver writes how many XCCs each has
// (CP_HYP_XCP_CTL, gfx_v9_4_3_switch_compute_partition), and reads from NBIO which mode that is.
#pragma once

#include <cstdint>

#include "models/model.h"
#include "registers/registers.h"

namespace sluice::card {

// What an XCC's control register says.
struct XccsOfPartition {
  unsigned number = 0;  // of this XCC in its partition
  unsigned count = 0;
};
constexpr XccsOfPartition xccs_of_partition(std::uint32_t control) {
  return {control & 7, control >> 3 & 0xf};
}

constexpr std::uint32_t partition_control(unsigned number, unsigned count) {
  return count << 3 | number;
}

// Attaches NBIO's status, which follows from what is written. REQUIRES: model.partition_status != 0.
void attach_partition_status(const Model& model, Registers& registers);

}  // namespace sluice::card
