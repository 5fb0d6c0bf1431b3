// SPDX-License-Identifier: MIT
// What tests of whole lanes share: BOs in memory, and lanes whose n-th operation fails. Thread-bound.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/fault_reactor.h"
#include "support/lane.h"
#include "support/process_state.h"
#include "support/temp_dir.h"

namespace sluice::test {

class EngineTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kDepth = 3;
  static constexpr std::uint64_t kNever = UINT64_MAX;

  EngineTest(ReactorKind kind, BoList bos) : kind_(kind), bos_(std::move(bos)) {}
  void SetUp() override {
    if (const std::string reason = unavailable(kind_); !reason.empty()) GTEST_SKIP() << reason;
  }

  struct FaultyLane {
    FaultyLane(ReactorKind kind, const ImageLayout& layout, Fault fault, std::uint64_t nth, int err)
        : world(kind,
                [=](std::unique_ptr<Reactor> inner) {
                  return std::make_unique<FaultReactor>(std::move(inner), fault, nth, err);
                }),
          lane(make_lane(layout, kDepth, world)) {}
    bool fired() const { return static_cast<const FaultReactor&>(lane->reactor()).fired(); }

    TestWorld world;
    std::unique_ptr<Lane> lane;
  };
  // `err`: for Fault::Error.
  FaultyLane lane_that_fails(const ImageLayout& layout, Fault fault, std::uint64_t nth, int err = 0) const {
    return {kind_, layout, fault, nth, err};
  }

  // Runs `body` for n = 0, 1, 2, ... until it says that nothing was left to fail, which is the number it
  // returns.
  template <class Body>
  static std::uint64_t fail_each(const Body& body) {
    for (std::uint64_t nth = 0;; ++nth) {
      SCOPED_TRACE("operation " + std::to_string(nth));
      if (!body(nth) || HasFailure()) return nth;
    }
  }

  // What a restore is to write over.
  BoList garbage() const {
    BoList bos;
    for (const Bytes& bo : bos_) bos.emplace_back(bo.size(), std::byte{0x5a});
    return bos;
  }
  // Of a file for each BO.
  std::vector<std::string> names(const std::string& prefix = "pages-") const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < bos_.size(); ++i) names.push_back(prefix + std::to_string(i));
    return names;
  }
  static ImageLayout file_per_bo(const BoList& bos, std::uint64_t chunk_bytes) {
    return std::move(ImageLayout::make_file_per_bo(sizes_of(bos), chunk_bytes)).value();
  }

  static void expect_ok(const Result<PipelineStats>& stats) { EXPECT_TRUE(stats.ok()) << stats.error().what; }
  static void expect_error(const Result<PipelineStats>& stats, int err, const std::string& words) {
    ASSERT_FALSE(stats.ok());
    EXPECT_EQ(stats.error().err, err) << stats.error().what;
    EXPECT_NE(stats.error().what.find(words), std::string::npos) << stats.error().what;
  }

  ReactorKind kind_;
  BoList bos_;
};

}  // namespace sluice::test
