// SPDX-License-Identifier: MIT
// What disks, copies and people do to an image directory, by seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "corruption/directory_copy.h"
#include "corruption/trial_restore.h"
#include "support/rng.h"

namespace sluice::corruption_test {

// A part of a file that may not be what it was.
struct Place {
  static constexpr std::uint64_t kToTheEnd = UINT64_MAX;

  std::string file;
  std::uint64_t begin = 0;  // bytes
  std::uint64_t end = kToTheEnd;
};

struct Damage {
  const char* kind = "";
  std::vector<Place> places;
  bool harmless = false;  // nothing that a reader sees has changed
};

// A directory that may be damaged, what it has, and what an older dump of the same processes had there.
struct Victim {
  int dir_fd = -1;
  const DirectoryCopy& now;
  const DirectoryCopy& older;
  const KnownCheckpoint& known;  // what it should be
};

// Names of all kinds of damage, as in Damage::kind.
std::vector<std::string> damage_kinds();

// Damages it; in any way, or in that of number `kind`. REQUIRES: kind < damage_kinds().size().
Damage do_damage(const Victim& victim, test::Rng& rng);
Damage do_damage(const Victim& victim, std::size_t kind, test::Rng& rng);

}  // namespace sluice::corruption_test
