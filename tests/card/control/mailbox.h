// SPDX-License-Identifier: MIT
// Control (control.h) for a program in the guest: a page of BAR 5 that no register of this chip is in. The
// program maps /sys/bus/pci/devices/…/resource5; neither the driver nor a network is needed. This page
// answers while no driver is bound, too, as long as the device's memory is enabled (sysfs: enable).
//
// Offsets within the page, every access 4 bytes, little endian:
//   0x000  reads 0x6c756373 ("scul"): there is a mailbox
//   0x004  written: so many bytes of the text are a command, which is run; reads: length of the answer
//   0x800  2 KiB of text: the command, and then the answer
//
// It stands between the bus and the GPU. What is beyond the page goes through. One thread.
#pragma once

#include <array>

#include "bus/device.h"
#include "control/control.h"

namespace sluice::card {

class Mailbox final : public Device {
 public:
  static constexpr std::uint64_t kPage = 0x7e000;  // in BAR 5; the SDMA engines end below, 0x7f000 is HDP's
  static constexpr std::uint64_t kPageBytes = 0x1000;
  static constexpr std::uint64_t kMagicAt = 0;
  static constexpr std::uint64_t kLengthAt = 4;
  static constexpr std::uint64_t kTextAt = 0x800;
  static constexpr std::uint32_t kMagic = 0x6c756373;

  // Both outlive this.
  Mailbox(Device& gpu, Control& control) : gpu_(gpu), control_(control) {}

  void read(Bar bar, std::uint64_t offset, std::span<std::byte> out) override;
  void write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) override;
  void reset() override;
  bool work() override { return gpu_.work(); }

 private:
  void run(std::uint32_t length);

  Device& gpu_;
  Control& control_;
  std::array<std::byte, kPageBytes - kTextAt> text_{};
  std::uint32_t length_ = 0;
};
static_assert(Mailbox::kPageBytes - Mailbox::kTextAt >= Control::kLongest);

}  // namespace sluice::card
