// SPDX-License-Identifier: MIT
// What stands at both ends of a simulated route: a copy engine with a depth, several operations per slot and
// latency; and the other end of the pipe stage's streams. Thread-bound.
//
// The copy engine's bytes move when the last operation completes, and a buffer that holds nothing yet (or
// nothing any more) is full of garbage, so that a stage which looks too early or too late is found.
#pragma once

#include <cstdint>

#include "base/unique_fd.h"
#include "pipeline/layout.h"
#include "pipeline/stage.h"
#include "sim/sim_reactor.h"
#include "support/memory_copy.h"
#include "support/rng.h"

namespace sluice::sim {

struct SimCopyOptions {
  int depth = 1;                         // slots it takes at once
  std::uint64_t latency_ns_max = 1;      // of one operation
  std::uint64_t fail_op = UINT64_MAX;    // the n-th operation completes with -EREMOTEIO
  std::uint64_t bad_chunk = UINT64_MAX;  // must never come here: its contents are corrupt
};

class SimCopy : public Stage {
 public:
  SimCopy(Direction direction, const ImageLayout& layout, SimReactor& reactor, test::BoList& bos,
          test::Rng rng, const SimCopyOptions& options)
      : direction_(direction), layout_(layout), reactor_(reactor), bos_(bos), rng_(rng), options_(options) {}

  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

  bool fault_fired() const { return fault_fired_; }
  int running() const { return running_; }

 private:
  Direction direction_;
  const ImageLayout& layout_;
  SimReactor& reactor_;
  test::BoList& bos_;
  test::Rng rng_;
  SimCopyOptions options_;
  int running_ = 0;
  std::uint64_t ops_ = 0;
  bool fault_fired_ = false;
};

// The other end of a lane's stream, worked between two waits of the lane: takes (dump) or gives (restore)
// some bytes, or none, at each step; dies, ends early or goes on too long where it is told to.
class StreamPeer {
 public:
  enum class Manner : std::uint8_t { Sound, Dies, EndsEarly, HasMore };

  // `bytes`: what was taken, or what is given. `at`: the byte where Dies and EndsEarly happen.
  StreamPeer(Direction direction, test::Bytes& bytes, test::Rng rng, Manner manner, std::uint64_t at)
      : direction_(direction), bytes_(bytes), rng_(rng), manner_(manner), at_(at) {}

  // For the stage. A pipe, or a socket that holds a few KiB: what has to wait all the time.
  Result<UniqueFd> open();
  void step();
  // The lane is through: takes what is left.
  void drain();

 private:
  bool take();
  void give();

  Direction direction_;
  test::Bytes& bytes_;
  test::Rng rng_;
  Manner manner_;
  std::uint64_t at_;
  std::uint64_t given_ = 0;
  UniqueFd end_;
};

}  // namespace sluice::sim
