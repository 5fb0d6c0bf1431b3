// SPDX-License-Identifier: MIT
// The vfio-user protocol, as QEMU (10.1 and newer) speaks it to a device of another process: what to answer
// to each of its messages. No socket is here (connection.h), so that a test or a fuzzer can say anything.
//
// Ten messages make a PCI device: version, DMA map and unmap, device, region and interrupt info, set
// interrupts, region read and write, reset. Any other is EOPNOTSUPP. QEMU is trusted with its own messages,
// which are checked nonetheless; offsets, lengths and contents of region accesses are the guest's, and it is
// not trusted.
//
// Layouts: QEMU's docs/interop/vfio-user.rst and linux/vfio.h. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "bus/device.h"
#include "bus/dma_maps.h"
#include "bus/msi.h"
#include "bus/pci_config.h"
#include "bus/peers.h"
#include "bus/vram.h"
#include "control/trace.h"

namespace sluice::card {

struct VfioUserHeader {
  static constexpr std::uint32_t kTypeMask = 0xf;
  static constexpr std::uint32_t kReply = 0x1;  // of the type; a request is 0
  static constexpr std::uint32_t kNoReply = 0x10;
  static constexpr std::uint32_t kError = 0x20;

  std::uint16_t id = 0;
  std::uint16_t command = 0;
  std::uint32_t bytes = 0;  // with the header
  std::uint32_t flags = 0;
  std::uint32_t error = 0;  // an errno
};
static_assert(sizeof(VfioUserHeader) == 16);

constexpr std::size_t kMostData = 1 << 20;  // of one region access, as the version message promises
constexpr std::size_t kMostFds = 8;         // of one message, likewise
constexpr std::size_t kMostBody = kMostData + 16;

struct VfioUserRequest {
  VfioUserHeader header;
  std::vector<std::byte> body;
  std::vector<UniqueFd> fds;
};

struct VfioUserReply {
  std::vector<std::byte> message;  // header and body
  int fd = -1;                     // to be sent with it; not owned
};

class VfioUser {
 public:
  // What the card is made of. All outlive this.
  struct Card {
    Device& device;
    Vram& vram;
    PciConfig& config;
    DmaMaps& maps;
    Peers& peers;
    Msi& msi;
    std::span<const std::byte> rom;  // may be empty
    Trace& trace;
  };
  explicit VfioUser(const Card& card) : card_(card) {}

  // Nothing: none is wanted. REQUIRES: a request by its type, a body of at most kMostBody.
  std::optional<VfioUserReply> answer(VfioUserRequest request);

 private:
  class Handler;

  Card card_;
  bool agreed_ = false;  // on a version
};

}  // namespace sluice::card
