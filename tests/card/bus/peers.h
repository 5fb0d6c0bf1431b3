// SPDX-License-Identifier: MIT
// The other cards of the machine, whose VRAM this one's engines reach by the addresses of their BARs (P2P).
//
// QEMU tells a card where another one's BAR is, without the file: a DMA map of bus addresses alone. So the
// cards of a machine have a directory in common. Each keeps a link there, named after the place that the
// guest has given to its VRAM, to its memfd. The guest places a BAR by messages to its card that are answered
// before QEMU tells the others, so the link is there when they look. One thread.
#pragma once

#include <string>

#include "base/unique_fd.h"
#include "bus/dma_maps.h"

namespace sluice::card {

class Peers {
 public:
  // Empty: there are none, and nothing here does anything.
  explicit Peers(std::string directory) : directory_(std::move(directory)) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  ~Peers() { withdraw(); }

  // This card's VRAM is at `range` now. `vram` stays open as long as it is there.
  void place(const DmaMaps::Range& range, int vram);
  // It is nowhere.
  void withdraw();

  // The memory of the card whose VRAM is at exactly this place; none: no card of the directory's is there.
  UniqueFd find(const DmaMaps::Range& range) const;

 private:
  std::string link_of(const DmaMaps::Range& range) const;

  std::string directory_;
  std::string placed_;  // path of this card's link; empty: it has none
};

}  // namespace sluice::card
