// SPDX-License-Identifier: MIT
#include "sdma/rings.h"

#include <string>
#include <utility>

#include "models/model.h"

namespace sluice::card {

namespace {

// Bits of RB_CNTL and of DOORBELL.
constexpr std::uint32_t kRingOn = 1;
constexpr std::uint32_t kReportOn = 1 << 12;  // the read pointer is written to memory
constexpr std::uint32_t kRingDoorbellOn = 1 << 28;

}  // namespace

SdmaRings::SdmaRings(Chip& chip, Registers& registers)
    : chip_(chip), registers_(registers), engines_(chip.model().sdma.size()) {
  for (unsigned engine = 0; engine < engines_.size(); ++engine) attach(engine);
}

void SdmaRings::attach(unsigned number) {
  Engine& engine = engines_[number];
  engine.base = chip_.model().sdma[number].base;
  registers_.attach(
      engine.base + reg::sdma::kRbCntl, [&engine] { return engine.control; },
      [this, number](std::uint32_t value) { control(number, value); });
  const auto read_pointer = [&engine] { return engine.ring ? engine.ring->read_pointer() : engine.read; };
  registers_.attach(
      engine.base + reg::sdma::kRbRptr, [read_pointer] { return static_cast<std::uint32_t>(read_pointer()); },
      [&engine](std::uint32_t value) { engine.read = (engine.read >> 32 << 32) | value; });
  registers_.attach(
      engine.base + reg::sdma::kRbRptrHi,
      [read_pointer] { return static_cast<std::uint32_t>(read_pointer() >> 32); },
      [&engine](std::uint32_t value) {
        engine.read = (engine.read & 0xffffffff) | static_cast<std::uint64_t>(value) << 32;
      });
  registers_.attach(
      engine.base + reg::sdma::kRbWptr,
      [&engine] {
        return engine.ring ? static_cast<std::uint32_t>(engine.ring->write_pointer()) : engine.write;
      },
      [this, &engine](std::uint32_t value) {
        engine.write = value;
        const bool by_doorbell =
            (registers_.latched(engine.base + reg::sdma::kDoorbell) & kRingDoorbellOn) != 0;
        if (engine.ring && !by_doorbell) {
          const std::uint64_t high = registers_.latched(engine.base + reg::sdma::kRbWptrHi);
          engine.ring->ring(value | high << 32);
        }
      });
}

void SdmaRings::reset() {
  for (Engine& engine : engines_) {
    engine.ring.reset();
    engine.control = engine.write = 0;
    engine.read = 0;
  }
  stopped_.clear();
}

std::uint64_t SdmaRings::pair(std::uint32_t base, std::uint32_t low, std::uint32_t high) const {
  return registers_.latched(base + low) | static_cast<std::uint64_t>(registers_.latched(base + high)) << 32;
}

void SdmaRings::control(unsigned number, std::uint32_t value) {
  Engine& engine = engines_[number];
  engine.control = value;
  const bool on = (value & kRingOn) != 0;
  if (!on && engine.ring) {
    engine.read = engine.ring->read_pointer();
    stopped_.push_back(std::move(engine.ring));
  }
  if (!on || engine.ring) return;
  SdmaRing ring;
  ring.engine = number;
  ring.base = pair(engine.base, reg::sdma::kRbBase, reg::sdma::kRbBaseHi) << 8;
  ring.bytes = std::uint64_t{4} << (value >> 1 & 0x1f);
  ring.read_pointer = engine.read;
  if ((value & kReportOn) != 0) {
    ring.read_pointer_report = pair(engine.base, reg::sdma::kRbRptrAddrLo, reg::sdma::kRbRptrAddrHi) & ~3ULL;
  }
  engine.ring = make_sdma_ring(chip_, ring);
  if (chip_.tracing()) {
    chip_.trace("sdma" + std::to_string(number) + " starts: ring " + hex(ring.base) + " of " +
                hex(ring.bytes));
  }
}

bool SdmaRings::doorbell(std::uint64_t offset, std::uint64_t value) {
  for (const Engine& engine : engines_) {
    if (!engine.ring || (registers_.latched(engine.base + reg::sdma::kDoorbell) & kRingDoorbellOn) == 0 ||
        offset != (registers_.latched(engine.base + reg::sdma::kDoorbellOffset) & 0x0ffffffc)) {
      continue;
    }
    engine.ring->ring(value);
    return true;
  }
  return false;
}

Queue::State SdmaRings::work() {
  stopped_.clear();
  Queue::State state = Queue::State::kIdle;
  for (Engine& engine : engines_) {
    const bool halted = (registers_.latched(engine.base + chip_.model().sdma_f32_cntl) & 1) != 0;
    if (engine.ring && !halted) state = busier(state, engine.ring->step());
  }
  return state;
}

}  // namespace sluice::card
