// SPDX-License-Identifier: MIT
// What a lane did, chunk by chunk, to show where its time went. Value type; thread-bound.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

// A chunk's stay in a stage. Nanoseconds of the reactor's clock.
struct TraceEvent {
  std::uint64_t began_ns = 0;
  std::uint64_t ended_ns = 0;
  std::uint64_t chunk = 0;
  std::uint32_t slot = 0;
  std::uint32_t stage = 0;  // position on the route
};

// Keeps the first events, up to its capacity; nothing is allocated later.
class Trace {
 public:
  Trace() = default;  // keeps none
  explicit Trace(std::uint64_t events_max) : events_max_(events_max) { events_.reserve(events_max); }

  void add(const TraceEvent& event) {
    if (events_.size() < events_max_) events_.push_back(event);
  }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  std::uint64_t events_max_ = 0;
  std::vector<TraceEvent> events_;
};

}  // namespace sluice
