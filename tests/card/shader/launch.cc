// SPDX-License-Identifier: MIT
#include "shader/launch.h"

#include <algorithm>
#include <cstring>

namespace sluice::card::shader {

namespace {

// Offsets in a kernel descriptor of 64 bytes.
constexpr std::size_t kGroupBytes = 0, kPrivateBytes = 4, kEntry = 16, kRsrc3 = 44, kRsrc1 = 48, kRsrc2 = 52,
                      kProperties = 56;
constexpr std::size_t kDescriptorBytes = 64;

// Bits of the properties: which user SGPRs there are, in this order.
enum Property : U32 {
  kPrivateSegmentBuffer = 1 << 0,  // 4
  kDispatchPointer = 1 << 1,       // 2
  kQueuePointer = 1 << 2,          // 2
  kKernargPointer = 1 << 3,        // 2
  kDispatchId = 1 << 4,            // 2
  kFlatScratchInit = 1 << 5,       // 2
  kPrivateSegmentSize = 1 << 6,    // 1
};
// Bits of RSRC2.
constexpr U32 kScratchEnable = 1 << 0, kTrapPresent = 1 << 6;
constexpr unsigned kGroupIdAt = 7;  // to 9: x, y, z
constexpr U32 kGroupInfo = 1 << 10;

constexpr U32 kLdsGranule = 512;
constexpr U32 kMostLds = 64 * 1024;
constexpr U32 kMostItems = kMostWaves * kLanes;  // of a workgroup

bool read(Outside& outside, U64 address, std::span<std::byte> out) {
  while (!out.empty()) {
    const auto piece = outside.at(address, out.size(), Access::kRead);
    if (piece.empty()) return false;
    std::memcpy(out.data(), piece.data(), piece.size());
    address += piece.size();
    out = out.subspan(piece.size());
  }
  return true;
}

template <class T>
T value_at(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

U64 groups_of(U32 grid, U32 group) {
  return (U64{grid} + group - 1) / group;
}

}  // namespace

void read_queue(const AddressSpace& space, DispatchPlace& place) {
  constexpr U64 kBytes = amd_queue::kInactiveSignal + 8 - amd_queue::kScratchRing;
  std::array<std::byte, kBytes> words{};
  if (!space.read(place.queue + amd_queue::kScratchRing, words)) return;
  place.scratch_wave_bytes = (value_at<U32>(words, 0) >> 12 & 0x1fff) << 10;
  for (std::size_t i = 0; i < 4; ++i) {
    place.scratch_resource[i] =
        value_at<U32>(words, amd_queue::kScratchResource - amd_queue::kScratchRing + 4 * i);
  }
  place.scratch_base = value_at<U64>(words, amd_queue::kScratchBase - amd_queue::kScratchRing);
  place.inactive_signal = value_at<U64>(words, amd_queue::kInactiveSignal - amd_queue::kScratchRing);
}

std::optional<Dispatch> Dispatch::read(Outside& outside, const DispatchPacket& packet,
                                       const DispatchPlace& place) {
  const U64 items = U64{packet.group_x} * packet.group_y * packet.group_z;
  if (items == 0 || items > kMostItems) return std::nullopt;
  std::array<std::byte, kDescriptorBytes> descriptor{};
  if (!shader::read(outside, packet.kernel_object, descriptor)) return std::nullopt;
  Dispatch dispatch(packet, place);
  dispatch.groups_x_ = groups_of(packet.grid_x, packet.group_x);
  dispatch.groups_y_ = groups_of(packet.grid_y, packet.group_y);
  dispatch.groups_z_ = groups_of(packet.grid_z, packet.group_z);
  dispatch.entry_ = packet.kernel_object + value_at<U64>(descriptor, kEntry);
  dispatch.lds_bytes_ = std::max(value_at<U32>(descriptor, kGroupBytes), packet.group_bytes);
  dispatch.private_bytes_ = std::max(value_at<U32>(descriptor, kPrivateBytes), packet.private_bytes);
  dispatch.rsrc1_ = value_at<U32>(descriptor, kRsrc1);
  dispatch.rsrc2_ = value_at<U32>(descriptor, kRsrc2);
  dispatch.rsrc3_ = value_at<U32>(descriptor, kRsrc3);
  dispatch.properties_ = value_at<U16>(descriptor, kProperties);
  if (dispatch.lds_bytes_ > kMostLds) return std::nullopt;
  return dispatch;
}

Group Dispatch::group(U64 number, unsigned first_slot) const {
  const std::array<U32, 3> at = {static_cast<U32>(number % groups_x_),
                                 static_cast<U32>(number / groups_x_ % groups_y_),
                                 static_cast<U32>(number / groups_x_ / groups_y_)};
  const U32 items = U32{packet_.group_x} * packet_.group_y * packet_.group_z;
  Group group;
  group.lds.resize((lds_bytes_ + kLdsGranule - 1) / kLdsGranule * kLdsGranule);
  for (U32 first = 0; first < items; first += kLanes) {
    auto wave = std::make_unique<Wave>();
    U64 lanes = 0;
    for (U32 lane = 0; lane < kLanes && first + lane < items; ++lane) {
      const U32 item = first + lane;
      const U32 x = item % packet_.group_x, y = item / packet_.group_x % packet_.group_y,
                z = item / packet_.group_x / packet_.group_y;
      wave->vector[0][lane] = x | y << 10 | z << 20;  // gfx90a packs them
      const bool in_grid = at[0] * packet_.group_x + x < packet_.grid_x &&
                           at[1] * packet_.group_y + y < packet_.grid_y &&
                           at[2] * packet_.group_z + z < packet_.grid_z;
      if (in_grid) lanes |= U64{1} << lane;
    }
    if (lanes == 0) continue;
    wave->exec(lanes);
    wave->scratch_slot = first_slot + static_cast<unsigned>(group.waves.size());
    wave->first_of_group = group.waves.empty();
    set_registers(*wave, at);
    group.waves.push_back(std::move(wave));
  }
  return group;
}

void Dispatch::set_registers(Wave& wave, const std::array<U32, 3>& at) const {
  wave.pc = entry_;
  wave.vgprs = ((rsrc1_ & 0x3f) + 1) * 8;
  wave.arch_vgprs = std::min(((rsrc3_ & 0x3f) + 1) * 4, wave.vgprs);
  wave.mode = rsrc1_ >> 12 & 0xff;  // rounding and denormals
  if ((rsrc1_ >> 21 & 1) != 0) wave.mode |= mode::kDx10Clamp;
  if ((rsrc1_ >> 23 & 1) != 0) wave.mode |= mode::kIeee;
  wave.status = status::kValid | status::kInGroup;
  if ((rsrc2_ & kTrapPresent) != 0) wave.status |= status::kTrapEnable;

  U32 next = 0;
  const auto put = [&](U32 value) { wave.scalar[next++] = value; };
  const auto put_pair = [&](U64 value) {
    wave.pair(next, value);
    next += 2;
  };
  if ((properties_ & kPrivateSegmentBuffer) != 0) {
    for (const U32 word : place_.scratch_resource) put(word);
  }
  if ((properties_ & kDispatchPointer) != 0) put_pair(place_.packet);
  if ((properties_ & kQueuePointer) != 0) put_pair(place_.queue);
  if ((properties_ & kKernargPointer) != 0) put_pair(packet_.kernarg);
  if ((properties_ & kDispatchId) != 0) put_pair(place_.id);
  if ((properties_ & kFlatScratchInit) != 0) put_pair(place_.scratch_base);
  if ((properties_ & kPrivateSegmentSize) != 0) put(private_bytes_);
  for (unsigned i = 0; i < 3; ++i) {
    if ((rsrc2_ >> (kGroupIdAt + i) & 1) != 0) put(at[i]);
  }
  if ((rsrc2_ & kGroupInfo) != 0) put(0);
  if ((rsrc2_ & kScratchEnable) == 0) return;
  const U32 scratch = wave.scratch_slot * place_.scratch_wave_bytes;
  if (place_.presets_scratch) {
    wave.pair(sgpr::kFlatScratch, place_.scratch_base + scratch);
  } else {
    put(scratch);
  }
}

}  // namespace sluice::card::shader
