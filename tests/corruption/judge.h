// SPDX-License-Identifier: MIT
// Whether what a reader says of a damaged directory is right: that it names a place where there is damage,
// and whose memory lies there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "corruption/damage.h"
#include "corruption/trial_restore.h"
#include "verify/verify.h"

namespace sluice::corruption_test {

// Whether the words of an error name one of the places: metadata, a sidecar, or a pages file of which the end
// may be another, by the file's name (a pipe knows of no more than where it was); what changed within a pages
// file by file, range, GPU, BO and offset in it, as it may say of any contents. A block that is corrupt is no
// longer than `block_bytes`.
bool names_damage(const Error& error, const std::vector<Place>& places, const KnownCheckpoint& known,
                  std::uint64_t block_bytes);

// What `sluice verify` finds.
struct Verified {
  std::vector<VerifyProblem> problems;
  std::uint64_t bytes = 0;  // read
};
Verified verify(int dir_fd, std::uint64_t chunk_bytes);
bool names_damage(const VerifyProblem& problem, const std::vector<Place>& places,
                  const KnownCheckpoint& known, std::uint64_t block_bytes);

}  // namespace sluice::corruption_test
