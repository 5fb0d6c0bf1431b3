// SPDX-License-Identifier: MIT
// Eight GPUs of a data-parallel job. With equal contents, on a file system that shares extents: compared with
// one lane, and with copying and hashing all of them without writing. With different contents: what looking
// for replicas costs, at a sink that takes no time.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lane/lane_run.h"
#include "pipeline/slot_workers.h"
#include "pipeline/store/extent_cloner.h"
#include "scenario/dump_chain.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::uint64_t kAnyBlock = 4 * kKiB;  // where nothing is shared in the end

std::uint64_t used_bytes(const Place& place) {
  struct statvfs status {};
  (void)::syncfs(place.fd());
  return ::fstatvfs(place.fd(), &status) == 0 ? (status.f_blocks - status.f_bfree) * status.f_frsize : 0;
}

// A secret for all lanes, as a dump has.
SumMethod secret() {
  SumSecret made;
  for (std::size_t i = 0; i < made.bytes.size(); ++i) made.bytes[i] = static_cast<std::uint8_t>(i * 37 + 11);
  return SumMethod(made);
}

class Replicas {
 public:
  static Result<Replicas> make(const BenchOptions& options, bool equal) {
    Replicas made;
    const std::uint64_t bytes = options.by_scale(8 * kMiB, 256 * kMiB, 2 * kGiB);
    for (std::size_t i = 0; i < kLanes; ++i) {
      // Some large BOs and some small ones, as a model has.
      Contents contents{{bytes / 2, bytes / 4, bytes / 8, 64 * kKiB, 4 * kKiB}};
      contents.seed = equal ? 1 : i + 1;
      SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine, make_memcpy_engine(std::move(contents)));
      made.engines_.push_back(std::move(engine));
    }
    made.sums_.resize(kLanes);
    for (SumTable& sums : made.sums_) sums.method = secret();
    made.counted_.resize(kLanes);
    return made;
  }

  // To new files of the place until durable; where `block_bytes` is not 0, sharing extents.
  Result<Sample> to_disk(const Place& place, std::size_t lanes, std::uint64_t block_bytes) {
    FairShare disk;
    std::vector<LanePlan> plans = plans_of(lanes, block_bytes);
    for (LanePlan& plan : plans) {
      plan.directory = place.fd();
      plan.file.share = &disk;
      std::filesystem::remove(place.file(plan.name));
    }
    place.settle();
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
    return run.sample;
  }
  // All lanes, copied and hashed only.
  Result<Sample> nowhere(bool shares) {
    std::vector<LanePlan> plans = plans_of(kLanes, shares ? kAnyBlock : 0);
    std::fill(counted_.begin(), counted_.end(), 0);
    for (std::size_t i = 0; i < kLanes; ++i) plans[i].make_store = counting_store(counted_[i]);
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
    return run.sample;
  }

  std::uint64_t counted() const {
    return std::accumulate(counted_.begin(), counted_.end(), std::uint64_t{0});
  }

 private:
  std::vector<LanePlan> plans_of(std::size_t lanes, std::uint64_t block_bytes) {
    std::vector<LanePlan> plans(lanes);
    for (std::size_t i = 0; i < lanes; ++i) {
      plans[i].engine = engines_[i].get();
      plans[i].sums = &sums_[i];
      plans[i].name = "gpu-" + std::to_string(i);
      plans[i].replica_block_bytes = block_bytes;
      plans[i].checksum_workers = spare_workers(lanes);
    }
    return plans;
  }

  std::vector<std::unique_ptr<CopyEngine>> engines_;
  std::vector<SumTable> sums_;
  std::vector<std::uint64_t> counted_;  // by lane: bytes that reached the sink
};

// What eight take on the disk, compared with one. Their files stay until all is measured, because a file
// system gives space back later.
Result<double> space_of(const BenchOptions& options, Replicas& replicas, std::uint64_t block_bytes) {
  SLUICE_TRY_ASSIGN(const Place first, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const Place second, Place::make(options.directory));
  const auto used_by = [&](const Place& place, std::size_t lanes) -> Result<double> {
    const std::uint64_t before = used_bytes(place);
    SLUICE_TRY(replicas.to_disk(place, lanes, block_bytes));
    return static_cast<double>(used_bytes(place) - before);
  };
  SLUICE_TRY_ASSIGN(const double one, used_by(first, 1));
  SLUICE_TRY_ASSIGN(const double eight, used_by(second, kLanes));
  return eight / one;
}

Result<Case> equal_lanes(const BenchOptions& options, const Place& place, std::uint64_t block_bytes) {
  Case each{"eight equal lanes",
            "to durable; of the larger: of one lane's time, and of copying and hashing all",
            {}};
  options.tell(each.name);
  SLUICE_TRY_ASSIGN(Replicas replicas, Replicas::make(options, true));
  SLUICE_TRY_ASSIGN(const double space, space_of(options, replicas, block_bytes));
  std::vector<double> of_larger, eight, one, bare, off;
  const unsigned rounds = options.by_scale(1u, 5u, 9u);
  for (unsigned i = 0; i < rounds; ++i) {
    SLUICE_TRY_ASSIGN(const Sample first, replicas.to_disk(place, 1, 0));
    SLUICE_TRY_ASSIGN(const Sample all, replicas.to_disk(place, kLanes, block_bytes));
    SLUICE_TRY_ASSIGN(const Sample hashed, replicas.nowhere(false));
    SLUICE_TRY_ASSIGN(const Sample written, replicas.to_disk(place, kLanes, 0));
    of_larger.push_back(all.seconds / std::max(first.seconds, hashed.seconds));
    eight.push_back(all.seconds);
    one.push_back(first.seconds);
    bare.push_back(hashed.seconds);
    off.push_back(written.seconds);
  }
  each.figures = {figure("of the larger", "ratio", of_larger),
                  figure("space", "ratio", {space}),
                  figure("eight", "s", eight),
                  figure("one", "s", one),
                  figure("copied and hashed", "s", bare),
                  figure("not shared", "s", off)};
  return each;
}

Result<Case> different_lanes(const BenchOptions& options) {
  Case each{"eight different lanes, null sink, on / off", "looking for replicas / not looking", {}};
  options.tell(each.name);
  SLUICE_TRY_ASSIGN(Replicas replicas, Replicas::make(options, false));
  std::uint64_t with_bytes = 0, without_bytes = 0;
  const auto run = [&replicas](bool shares, std::uint64_t& bytes) -> Result<Sample> {
    auto sample = replicas.nowhere(shares);
    bytes = replicas.counted();
    return sample;
  };
  SLUICE_TRY_ASSIGN(const Pairs pairs,
                    run_pairs(
                        options.by_scale(1u, 9u, 15u), [] {}, [&] { return run(true, with_bytes); },
                        [&] { return run(false, without_bytes); }));
  each.figures = cost_figures(pairs, with_bytes, without_bytes);
  return each;
}

}  // namespace

Result<Report> run_replicas(const BenchOptions& options) {
  Report report{"replicas", "what eight GPUs have alike, written once, compared with one GPU", {}};
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  const std::uint64_t block_bytes = shareable_block_bytes(place.fd());
  if (block_bytes == 0) {
    report.cases.push_back({"eight equal lanes",
                            "not measured: files here cannot share extents; name a directory on XFS or btrfs",
                            {}});
  } else if (options.wants("eight equal lanes")) {
    SLUICE_TRY_ASSIGN(Case each, equal_lanes(options, place, block_bytes));
    report.cases.push_back(std::move(each));
  }
  if (options.wants("eight different lanes, null sink, on / off")) {
    SLUICE_TRY_ASSIGN(Case each, different_lanes(options));
    report.cases.push_back(std::move(each));
  }
  return report;
}

}  // namespace sluice::bench
