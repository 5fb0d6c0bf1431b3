// SPDX-License-Identifier: MIT
#include "sdma/rings.h"

#include <string>
#include <utility>

namespace sluice::card {

namespace {

// Bits of RB_CNTL and of DOORBELL.
constexpr std::uint32_t kRingOn = 1;
constexpr std::uint32_t kReportOn = 1 << 12;  // the read pointer is written to memory
constexpr std::uint32_t kRingDoorbellOn = 1 << 28;

}  // namespace

SdmaRings::SdmaRings(Chip& chip, Registers& registers) : chip_(chip), registers_(registers) {
  for (unsigned engine = 0; engine < reg::kSdmaEngines; ++engine) attach(engine);
}

void SdmaRings::attach(unsigned engine) {
  const std::uint32_t base = reg::kSdmaBase[engine];
  registers_.attach(
      base + reg::sdma::kRbCntl, [this, engine] { return control_[engine]; },
      [this, engine](std::uint32_t value) { control(engine, value); });
  const auto read_pointer = [this, engine] {
    return rings_[engine] ? rings_[engine]->read_pointer() : read_[engine];
  };
  registers_.attach(
      base + reg::sdma::kRbRptr, [read_pointer] { return static_cast<std::uint32_t>(read_pointer()); },
      [this, engine](std::uint32_t value) { read_[engine] = (read_[engine] >> 32 << 32) | value; });
  registers_.attach(
      base + reg::sdma::kRbRptrHi,
      [read_pointer] { return static_cast<std::uint32_t>(read_pointer() >> 32); },
      [this, engine](std::uint32_t value) {
        read_[engine] = (read_[engine] & 0xffffffff) | static_cast<std::uint64_t>(value) << 32;
      });
  registers_.attach(
      base + reg::sdma::kRbWptr,
      [this, engine] {
        return rings_[engine] ? static_cast<std::uint32_t>(rings_[engine]->write_pointer()) : write_[engine];
      },
      [this, engine](std::uint32_t value) {
        write_[engine] = value;
        const bool by_doorbell =
            (registers_.latched(reg::kSdmaBase[engine] + reg::sdma::kDoorbell) & kRingDoorbellOn) != 0;
        if (rings_[engine] && !by_doorbell) {
          rings_[engine]->ring(
              value |
              static_cast<std::uint64_t>(registers_.latched(reg::kSdmaBase[engine] + reg::sdma::kRbWptrHi))
                  << 32);
        }
      });
}

void SdmaRings::reset() {
  for (auto& ring : rings_) ring.reset();
  stopped_.clear();
  control_ = {};
  read_ = {};
  write_ = {};
}

std::uint64_t SdmaRings::pair(unsigned engine, std::uint32_t low, std::uint32_t high) const {
  const std::uint32_t base = reg::kSdmaBase[engine];
  return registers_.latched(base + low) | static_cast<std::uint64_t>(registers_.latched(base + high)) << 32;
}

void SdmaRings::control(unsigned engine, std::uint32_t value) {
  control_[engine] = value;
  const bool on = (value & kRingOn) != 0;
  if (!on && rings_[engine]) {
    read_[engine] = rings_[engine]->read_pointer();
    stopped_.push_back(std::move(rings_[engine]));
  }
  if (!on || rings_[engine]) return;
  SdmaRing ring;
  ring.engine = engine;
  ring.base = pair(engine, reg::sdma::kRbBase, reg::sdma::kRbBaseHi) << 8;
  ring.bytes = std::uint64_t{4} << (value >> 1 & 0x1f);
  ring.read_pointer = read_[engine];
  if ((value & kReportOn) != 0) {
    ring.read_pointer_report = pair(engine, reg::sdma::kRbRptrAddrLo, reg::sdma::kRbRptrAddrHi) & ~3ULL;
  }
  rings_[engine] = make_sdma_ring(chip_, ring);
  if (chip_.tracing()) {
    chip_.trace("sdma" + std::to_string(engine) + " starts: ring " + hex(ring.base) + " of " +
                hex(ring.bytes));
  }
}

bool SdmaRings::doorbell(std::uint64_t offset, std::uint64_t value) {
  for (unsigned engine = 0; engine < reg::kSdmaEngines; ++engine) {
    const std::uint32_t base = reg::kSdmaBase[engine];
    if (!rings_[engine] || (registers_.latched(base + reg::sdma::kDoorbell) & kRingDoorbellOn) == 0 ||
        offset != (registers_.latched(base + reg::sdma::kDoorbellOffset) & 0x0ffffffc)) {
      continue;
    }
    rings_[engine]->ring(value);
    return true;
  }
  return false;
}

Queue::State SdmaRings::work() {
  stopped_.clear();
  Queue::State state = Queue::State::kIdle;
  for (unsigned engine = 0; engine < reg::kSdmaEngines; ++engine) {
    const bool halted = (registers_.latched(reg::kSdmaBase[engine] + reg::sdma::kF32Cntl) & 1) != 0;
    if (rings_[engine] && !halted) state = busier(state, rings_[engine]->step());
  }
  return state;
}

}  // namespace sluice::card
