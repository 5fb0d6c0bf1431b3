// SPDX-License-Identifier: MIT
// What all rings of the SDMA engines have in common, the driver's and those of processes: which packets they
// may hold, how fast they go, and whose interrupts they raise.
#pragma once

#include <cstdint>

#include "engine.h"
#include "packets/packets.h"

namespace sluice::card {

// Of their interrupts: irqsrcs_sdma0_4_0.h.
constexpr unsigned kSourceSdmaTrap = 224;
constexpr unsigned kSourceSdmaRegisterWrite = 247;  // of somebody who may not

// The count field has 30 bits since SDMA 4.4. Linux uses all of them since 7.2 (sdma_v4_0.c), and 22 before.
constexpr std::uint32_t kSdmaMostBytes = 1u << 30;

// Sizes of IBs: Linux 6.1 does not check what a process asks for.
constexpr pkt_sdma_rules kSdmaKernelRules{PKT_SDMA_KERNEL, kSdmaMostBytes, 1, 0, 1};
// On real hardware an unprivileged ring writes no registers; page table packets are the driver's.
constexpr pkt_sdma_rules kSdmaUserRules{PKT_SDMA_USER | PKT_SDMA_BIT(PKT_SDMA_INDIRECT) |
                                            PKT_SDMA_BIT(PKT_SDMA_COND_EXE) |
                                            PKT_SDMA_BIT(PKT_SDMA_TIMESTAMP),
                                        kSdmaMostBytes, 1, 0, 0};

// One ring's time: it keeps to Faults::sdma_bytes_per_s, whatever other rings move. Were there one time for
// all of them, the ring that is asked first would take it, and the others would wait until that one is empty.
class SdmaPace {
 public:
  explicit SdmaPace(Chip& chip) : chip_(chip) {}

  // Bytes that the ring may move now. 0: later.
  std::uint64_t budget();
  // It has moved them.
  void moved(std::uint64_t bytes);

 private:
  Chip& chip_;
  std::uint64_t busy_until_ = 0;  // of the clock: what was moved so far takes so long
};

}  // namespace sluice::card
