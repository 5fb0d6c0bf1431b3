// SPDX-License-Identifier: MIT
// What the readers of private records share: a word, and the places in a queue's record.
//
// Places are those of struct kfd_criu_queue_priv_data (kfd_priv.h), the same in Linux 6.1 to 7.2 and in AMD's
// out-of-tree driver. Offsets in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice::kfd {

// REQUIRES: four bytes at `at`.
inline std::uint32_t load_u32(std::span<const std::uint8_t> bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

namespace queue_record {
inline constexpr std::size_t kHeaderBytes = 120;  // the MQD follows, then the control stack
inline constexpr std::size_t kGpuIdAt = 64;
inline constexpr std::size_t kTypeAt = 68;
inline constexpr std::size_t kGwsAt = 92;
inline constexpr std::size_t kCtlStackBytesAt = 108;
inline constexpr std::size_t kMqdBytesAt = 112;
}  // namespace queue_record

}  // namespace sluice::kfd
