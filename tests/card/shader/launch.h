// SPDX-License-Identifier: MIT
// A kernel dispatch of AQL: from its packet and its kernel descriptor to the waves of each workgroup.
//
// Facts: HSA Platform System Architecture 1.2, 2.9 (the packet); LLVM's "User Guide for AMDGPU Backend",
// kernel descriptor and initial register state for gfx90a; amd_hsa_queue.h of ROCr (amd_queue_t).
#pragma once

#include <optional>

#include "memory/address_space.h"
#include "shader/machine.h"

namespace sluice::card::shader {

// hsa_kernel_dispatch_packet_t.
struct DispatchPacket {
  U16 header, setup;
  U16 group_x, group_y, group_z, reserved0;  // work-items of a workgroup
  U32 grid_x, grid_y, grid_z;                // work-items in all
  U32 private_bytes;                         // of a work-item
  U32 group_bytes;                           // of LDS
  U64 kernel_object, kernarg, reserved1, completion;
};
static_assert(sizeof(DispatchPacket) == 64);

// What a wave's first registers say of its queue and packet.
struct DispatchPlace {
  U64 packet = 0;              // its address
  U64 queue = 0;               // of the amd_queue_t
  U64 id = 0;                  // number of the packet
  U32 scratch_wave_bytes = 0;  // of a wave, in the queue's scratch
  U64 scratch_base = 0;
  std::array<U32, 4> scratch_resource{};
  bool presets_scratch = false;  // as in Surroundings
  U64 inactive_signal = 0;       // tells the runtime that the queue stands and why
};

// Of amd_queue_t: byte offsets.
namespace amd_queue {
constexpr U64 kReadPointer = 0x80;
constexpr U64 kScratchRing = 140;      // bits 12 to 24: of a wave, in units of 1 KiB
constexpr U64 kScratchResource = 144;  // four dwords
constexpr U64 kScratchBase = 160;
constexpr U64 kInactiveSignal = 192;
}  // namespace amd_queue

// The queue's own words at `place.queue`: its scratch, and its signal. Nothing where that is not mapped.
void read_queue(const AddressSpace& space, DispatchPlace& place);

constexpr unsigned kMostWaves = 16;  // of a workgroup

// A dispatch whose descriptor has been read.
class Dispatch {
 public:
  // Nothing: sizes that make no sense, or a descriptor that cannot be read.
  static std::optional<Dispatch> read(Outside& outside, const DispatchPacket& packet,
                                      const DispatchPlace& place);

  U64 groups() const { return groups_x_ * groups_y_ * groups_z_; }
  // The waves of workgroup `number` at their first instruction. The first has the queue's scratch number
  // `first_slot`, the others the next ones. REQUIRES: number < groups().
  Group group(U64 number, unsigned first_slot = 0) const;

 private:
  Dispatch(const DispatchPacket& packet, const DispatchPlace& place) : packet_(packet), place_(place) {}

  void set_registers(Wave& wave, const std::array<U32, 3>& at) const;

  DispatchPacket packet_;
  DispatchPlace place_;
  U64 groups_x_ = 0, groups_y_ = 0, groups_z_ = 0;
  U64 entry_ = 0;
  U32 lds_bytes_ = 0, private_bytes_ = 0;
  U32 rsrc1_ = 0, rsrc2_ = 0, rsrc3_ = 0;
  U32 properties_ = 0;
};

}  // namespace sluice::card::shader
