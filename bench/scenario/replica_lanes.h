// SPDX-License-Identifier: MIT
// Lanes of a data-parallel job: their BOs have the same sizes, and contents that are more or less alike.
// Their dumps and restores. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/copy_engine.h"
#include "lane/lane_run.h"
#include "scenario/place.h"

namespace sluice::bench {

// What the lanes have alike. Half: half of it, in runs of 1 MiB. Shifted: each lane has the bytes of the lane
// before it one unit later, so nothing is in the same place.
enum class Likeness : std::uint8_t { All, Half, Shifted, Nothing };

using MakeEngine = std::function<Result<std::unique_ptr<CopyEngine>>(Contents contents, std::size_t lane)>;

class ReplicaLanes {
 public:
  // Each holds a little less than `bytes`.
  static Result<ReplicaLanes> make(std::size_t lanes, std::uint64_t bytes, Likeness likeness,
                                   const MakeEngine& make_engine);

  // The first `lanes` to new files of the place until durable; where `block_bytes` is not 0, sharing extents.
  Result<Sample> dump(const Place& place, std::size_t lanes, std::uint64_t block_bytes);
  // The same, copied and hashed only. `written_bytes`: what files would get. `shares`: they look for
  // replicas.
  Result<Sample> dump_nowhere(std::size_t lanes, bool shares, std::uint64_t& written_bytes);

  // What these lanes have dumped to the place, from files outside the page cache, into BOs with other
  // contents; compared. What several lanes have comes from each lane's own file, or from one: read once for
  // the lanes of this process, or through the page cache, as for lanes of several. Errors: EBADMSG (wrong
  // contents).
  enum class From : std::uint8_t { Own, SharedReader, PageCache };
  Result<Sample> restore(const Place& place, std::size_t lanes, From from);
  // As much from memory: hashed and copied only. `handed_on`: each chunk is also copied into its slot, as if
  // from the slot of another lane. The BOs have other contents then.
  Result<Sample> restore_from_memory(std::size_t lanes, bool handed_on);

 private:
  std::vector<LanePlan> plans_of(std::size_t lanes, std::uint64_t block_bytes);
  // By lane; none if no lane has what another has.
  Result<std::vector<ExtentMap>> extents_of(const Place& place, std::size_t lanes) const;

  std::vector<std::unique_ptr<CopyEngine>> engines_;
  std::vector<SumTable> sums_;   // by lane, of its last dump
  std::vector<KnownRuns> runs_;  // by lane, of its last dump to a place: what other lanes' files have
};

}  // namespace sluice::bench
