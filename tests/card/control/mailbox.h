// SPDX-License-Identifier: MIT
// Control (control.h) for a program in the guest, through the page that mailbox_page.h describes. It stands
// between the bus and the GPU: what is not in the page goes through. One thread.
#pragma once

#include <array>

#include "bus/device.h"
#include "control/control.h"
#include "control/mailbox_page.h"

namespace sluice::card {

class Mailbox final : public Device {
 public:
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
  std::array<std::byte, mailbox::kTextBytes> text_{};
  std::uint32_t length_ = 0;
};
static_assert(mailbox::kTextBytes >= Control::kLongest);

}  // namespace sluice::card
