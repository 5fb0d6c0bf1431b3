// SPDX-License-Identifier: MIT
// A restore as the plugin does it, with memory in place of GPUs: the readers of metadata and sidecars, and a
// lane for each set of pages files (source → checksum → copy). It is told what may come out, and compares
// every byte with that on its way into memory: what is damaged must not get so far.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/pages.h"
#include "pipeline/arena.h"
#include "pipeline/reactor/reactor.h"
#include "support/serial_writer.h"

namespace sluice::corruption_test {

// The BOs with contents of one open file on one GPU.
struct KnownSet {
  int id = 0;  // CRIU's of the open file
  PagesSet set;
  test::BoList bos;
};

// A checkpoint as it should be.
struct KnownCheckpoint {
  std::map<std::string, std::vector<std::uint8_t>> metadata;  // payloads by name: all that CRIU asks for
  std::vector<KnownSet> sets;

  // Of the set that has a pages file of this name, and which of its files that is; null: none has.
  const KnownSet* set_of(const std::string& pages_file, std::uint32_t& file) const;
};

// What a directory has that nothing is wrong with. Ends the process where something is.
KnownCheckpoint read_known(int dir_fd);

// Memory and reactor of lanes that run one after the other.
struct LaneKit {
  LaneKit(std::uint64_t most_chunk_bytes, std::uint32_t depth);
  StagingArena arena;
  std::unique_ptr<Reactor> reactor;
};

struct TrialRestore {
  std::vector<Error> errors;                // any: refused. All lanes run, whatever becomes of the others
  const KnownCheckpoint* became = nullptr;  // not refused, and every byte is that one's
  std::uint64_t bytes = 0;                  // of pages files that went through lanes whole
  std::uint64_t wrong_bytes = 0;            // that reached memory
};

// `known`: what the directory may be. A chain of parents is followed. `reactor`: that of `kit`, or one around
// it.
TrialRestore trial_restore(int dir_fd, const std::vector<const KnownCheckpoint*>& known,
                           std::uint64_t chunk_bytes, const LaneKit& kit, Reactor& reactor);

}  // namespace sluice::corruption_test
