// SPDX-License-Identifier: MIT
// GPUs of a data-parallel job. With equal or half-equal contents, on a file system that shares extents: their
// dumps and restores, compared with one lane, and with copying and hashing all of them without a disk. Where
// nothing is equal in one place: what looking for replicas costs, at a sink that takes no time.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "pipeline/extents/extent_cloner.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/replica_lanes.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

struct Count {
  std::size_t lanes;
  const char* word;
};
constexpr std::array<Count, 3> kCounts = {{{8, "eight"}, {4, "four"}, {2, "two"}}};
constexpr std::size_t kMost = kCounts.front().lanes;

std::uint64_t used_bytes(const Place& place) {
  struct statvfs status {};
  (void)::syncfs(place.fd());
  return ::fstatvfs(place.fd(), &status) == 0 ? (status.f_blocks - status.f_bfree) * status.f_frsize : 0;
}

// The same work done in several ways, in turn: forwards and backwards, so that none always comes first.
Result<std::vector<std::vector<Sample>>> run_in_turn(unsigned rounds, const std::vector<Run>& ways) {
  std::vector<std::vector<Sample>> samples(ways.size());
  for (unsigned round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < ways.size(); ++turn) {
      const std::size_t way = round % 2 == 0 ? turn : ways.size() - 1 - turn;
      SLUICE_TRY_ASSIGN(const Sample sample, ways[way]());
      samples[way].push_back(sample);
    }
  }
  return samples;
}

std::vector<double> seconds_of(const std::vector<Sample>& samples) {
  std::vector<double> seconds;
  for (const Sample& sample : samples) seconds.push_back(sample.seconds);
  return seconds;
}

std::vector<double> cpu_of(const std::vector<Sample>& samples) {
  std::vector<double> cpu;
  for (const Sample& sample : samples) cpu.push_back(sample.cpu_seconds_per_gb());
  return cpu;
}

std::vector<double> larger_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> larger;
  for (std::size_t i = 0; i < a.size(); ++i) larger.push_back(std::max(a[i], b[i]));
  return larger;
}

// Everything on one kind of GPU.
class Replicas {
 public:
  Replicas(const BenchOptions& options, std::uint64_t bytes, MakeEngine make_engine, Report& report)
      : options_(options), bytes_(bytes), make_engine_(std::move(make_engine)), report_(report) {}

  Result<void> run() {
    SLUICE_TRY_ASSIGN(const Place place, Place::make(options_.directory));
    if (const std::uint64_t block_bytes = shareable_block_bytes(place.fd()); block_bytes != 0) {
      for (const Count& count : kCounts) {
        const std::string lanes = std::string(count.word) + " equal lanes";
        SLUICE_TRY(measure(lanes, Likeness::All, count.lanes, [&](ReplicaLanes& all, Case& each) {
          return dumps(all, place, count.lanes, block_bytes, each);
        }));
        SLUICE_TRY(measure(lanes + ", restored cold", Likeness::All, count.lanes,
                           [&](ReplicaLanes& all, Case& each) {
                             return restores(all, place, count.lanes, block_bytes, each);
                           }));
        SLUICE_TRY(measure(std::string(count.word) + " half-equal lanes", Likeness::Half, count.lanes,
                           [&](ReplicaLanes& all, Case& each) {
                             return dumps(all, place, count.lanes, block_bytes, each);
                           }));
      }
    } else {
      for (const char* name : {"eight equal lanes", "eight equal lanes, restored cold"}) {
        report_.cases.push_back(
            {name, "not measured: files here cannot share extents; name a directory on XFS or btrfs", {}});
      }
    }
    const auto looking = [](const Count& count, const char* kind) {
      return std::string(count.word) + " " + kind + " lanes, null sink, on / off";
    };
    SLUICE_TRY(measure(looking(kCounts.front(), "different"), Likeness::Nothing, kMost,
                       [this](ReplicaLanes& all, Case& each) { return costs(all, kMost, each); }));
    for (const Count& count : kCounts) {
      SLUICE_TRY(measure(looking(count, "shifted"), Likeness::Shifted, count.lanes,
                         [&](ReplicaLanes& all, Case& each) { return costs(all, count.lanes, each); }));
    }
    return {};
  }

 private:
  // Goals have bars on the most lanes.
  unsigned rounds(std::size_t lanes) const {
    return lanes == kMost ? options_.by_scale(1u, 5u, 9u) : options_.by_scale(1u, 3u, 5u);
  }

  Result<void> measure(const std::string& name, Likeness likeness, std::size_t lanes,
                       const std::function<Result<void>(ReplicaLanes&, Case&)>& run) {
    if (!options_.wants(name)) return {};
    options_.tell(name);
    Case each{name, "", {}};
    SLUICE_TRY_ASSIGN(ReplicaLanes made, ReplicaLanes::make(lanes, bytes_, likeness, make_engine_));
    SLUICE_TRY(run(made, each));
    report_.cases.push_back(std::move(each));
    return {};
  }

  // What these lanes take on the disk, compared with one. Their files stay until all is measured, because a
  // file system gives space back later.
  Result<double> space_of(ReplicaLanes& all, std::size_t lanes, std::uint64_t block_bytes) const {
    SLUICE_TRY_ASSIGN(const Place first, Place::make(options_.directory));
    SLUICE_TRY_ASSIGN(const Place second, Place::make(options_.directory));
    const auto used_by = [&](const Place& place, std::size_t count) -> Result<double> {
      const std::uint64_t before = used_bytes(place);
      SLUICE_TRY(all.dump(place, count, block_bytes));
      return static_cast<double>(used_bytes(place) - before);
    };
    SLUICE_TRY_ASSIGN(const double one, used_by(first, 1));
    SLUICE_TRY_ASSIGN(const double together, used_by(second, lanes));
    return together / one;
  }

  Result<void> dumps(ReplicaLanes& all, const Place& place, std::size_t lanes, std::uint64_t block_bytes,
                     Case& each) const {
    each.note = "to durable; of the larger: of one lane's time, and of copying and hashing all";
    SLUICE_TRY_ASSIGN(const double space, space_of(all, lanes, block_bytes));
    std::uint64_t ignored = 0;
    SLUICE_TRY_ASSIGN(const auto samples,
                      run_in_turn(rounds(lanes), {[&] { return all.dump(place, 1, 0); },
                                                  [&] { return all.dump(place, lanes, block_bytes); },
                                                  [&] { return all.dump_nowhere(lanes, false, ignored); },
                                                  [&] { return all.dump(place, lanes, 0); }}));
    const std::vector<double> one = seconds_of(samples[0]), shared = seconds_of(samples[1]),
                              bare = seconds_of(samples[2]), not_shared = seconds_of(samples[3]);
    each.figures = {ratio("of the larger", shared, larger_of(one, bare)),
                    ratio("of not shared", shared, not_shared),
                    figure("space", "ratio", {space}),
                    figure("shared", "s", shared),
                    figure("one", "s", one),
                    figure("copied and hashed", "s", bare),
                    figure("not shared", "s", not_shared),
                    figure("cpu", "s/GB", cpu_of(samples[1])),
                    figure("copied and hashed cpu", "s/GB", cpu_of(samples[2])),
                    figure("not shared cpu", "s/GB", cpu_of(samples[3]))};
    return {};
  }

  Result<void> restores(ReplicaLanes& all, const Place& place, std::size_t lanes, std::uint64_t block_bytes,
                        Case& each) const {
    each.note = "verified; of the larger: of one lane's time, and of hashing and copying all from memory";
    SLUICE_TRY(all.dump(place, lanes, block_bytes));
    SLUICE_TRY_ASSIGN(
        const auto samples,
        run_in_turn(rounds(lanes),
                    {[&] { return all.restore(place, 1, ReplicaLanes::From::Own); },
                     [&] { return all.restore(place, lanes, ReplicaLanes::From::SharedReader); },
                     [&] { return all.restore_from_memory(lanes, false); },
                     [&] { return all.restore(place, lanes, ReplicaLanes::From::PageCache); },
                     [&] { return all.restore(place, lanes, ReplicaLanes::From::Own); },
                     [&] { return all.restore_from_memory(lanes, true); }}));
    const std::vector<double> one = seconds_of(samples[0]), once = seconds_of(samples[1]),
                              bare = seconds_of(samples[2]), cached = seconds_of(samples[3]),
                              each_own = seconds_of(samples[4]), handed = seconds_of(samples[5]);
    each.figures = {ratio("of the larger", once, larger_of(one, bare)),
                    ratio("of each its own", once, each_own),
                    figure("read once", "s", once),
                    figure("one", "s", one),
                    figure("hashed and copied", "s", bare),
                    figure("through the page cache", "s", cached),
                    figure("each its own", "s", each_own),
                    figure("handed on", "s", handed),
                    figure("cpu", "s/GB", cpu_of(samples[1])),
                    figure("hashed and copied cpu", "s/GB", cpu_of(samples[2])),
                    figure("through the page cache cpu", "s/GB", cpu_of(samples[3])),
                    figure("each its own cpu", "s/GB", cpu_of(samples[4])),
                    figure("handed on cpu", "s/GB", cpu_of(samples[5]))};
    return {};
  }

  Result<void> costs(ReplicaLanes& all, std::size_t lanes, Case& each) const {
    each.note = "looking for replicas / not looking";
    std::uint64_t with_bytes = 0, without_bytes = 0;
    SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                             options_.by_scale(1u, 9u, 15u), [] {},
                                             [&] { return all.dump_nowhere(lanes, true, with_bytes); },
                                             [&] { return all.dump_nowhere(lanes, false, without_bytes); }));
    each.figures = cost_figures(pairs, with_bytes, without_bytes);
    return {};
  }

  const BenchOptions& options_;
  const std::uint64_t bytes_;
  const MakeEngine make_engine_;
  Report& report_;
};

}  // namespace

Result<Report> run_replicas(const BenchOptions& options) {
  Report report{"replicas", "what several GPUs have alike, written once, compared with one GPU", {}};
  SLUICE_TRY(
      Replicas(
          options, options.by_scale(8 * kMiB, 256 * kMiB, 2 * kGiB),
          [](Contents contents, std::size_t /*lane*/) { return make_memcpy_engine(std::move(contents)); },
          report)
          .run());
  return report;
}

Result<Report> run_replicas_cuda(const BenchOptions& options) {
  SLUICE_TRY_ASSIGN(const int gpus, cuda::load());
  Report report{
      "replicas-cuda", "the same with real GPUs' memory; " + std::to_string(gpus) + " of them, in turn", {}};
  SLUICE_TRY(Replicas(
                 options, options.by_scale(8 * kMiB, kGiB, 4 * kGiB),
                 [gpus](Contents contents, std::size_t lane) {
                   return make_cuda_engine(std::move(contents),
                                           static_cast<int>(lane % static_cast<std::size_t>(gpus)));
                 },
                 report)
                 .run());
  return report;
}

}  // namespace sluice::bench
