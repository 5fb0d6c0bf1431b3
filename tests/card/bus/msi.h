// SPDX-License-Identifier: MIT
// The card's interrupt, as QEMU takes it: an eventfd that it has sent. One thread.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"
#include "bus/device.h"

namespace sluice::card {

class Msi final : public Interrupt {
 public:
  void raise() override;

  // Nothing: from now on nobody is told.
  void set_trigger(UniqueFd eventfd) { trigger_ = std::move(eventfd); }
  bool armed() const { return trigger_.valid(); }
  std::uint64_t raised() const { return raised_; }

 private:
  UniqueFd trigger_;
  std::uint64_t raised_ = 0;  // while armed
};

}  // namespace sluice::card
