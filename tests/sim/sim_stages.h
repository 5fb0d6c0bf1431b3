// SPDX-License-Identifier: MIT
// Simulated stages for both ends of a route: a copy engine with a depth, several operations per slot and
// latency, and a pipe, which takes chunks in order only and answers Busy until it is a chunk's turn.
// Thread-bound.
//
// Their bytes move when the last operation completes, and a buffer that holds nothing yet (or nothing any
// more) is full of garbage, so that a stage which looks too early or too late is found.
#pragma once

#include <cstdint>

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

class SimCopy final : public Stage {
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

// Dump: takes the bytes into `bytes`. Restore: gives them out of it.
class SimPipe final : public Stage {
 public:
  SimPipe(Direction direction, SimReactor& reactor, test::Bytes& bytes, test::Rng rng,
          std::uint64_t latency_ns_max)
      : direction_(direction), reactor_(reactor), bytes_(bytes), rng_(rng), latency_ns_max_(latency_ns_max) {}

  const char* name() const override { return "pipe"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

 private:
  void start(Slot& slot);

  Direction direction_;
  SimReactor& reactor_;
  test::Bytes& bytes_;
  test::Rng rng_;
  std::uint64_t latency_ns_max_;
  std::uint64_t turn_ = 0;
  bool running_ = false;
};

}  // namespace sluice::sim
