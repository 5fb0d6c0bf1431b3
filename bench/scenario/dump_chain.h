// SPDX-License-Identifier: MIT
// Dumps of one engine's BOs, each the parent of the next, as files of one place, and restores of the last. A
// job with checkpoints does the same, plus the images that list the BOs. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lane/lane_run.h"
#include "scenario/place.h"

namespace sluice::bench {

// A store that counts the bytes for a file, and discards them.
MakeStore counting_store(std::uint64_t& written_bytes);

class DumpChain {
 public:
  // Both are borrowed. `workers`: additional threads per lane that hash.
  DumpChain(CopyEngine& engine, const Place& place, unsigned workers);
  DumpChain(const DumpChain&) = delete;
  DumpChain& operator=(const DumpChain&) = delete;
  ~DumpChain();  // removes the files

  // Removes all dumps, and dumps everything. The time includes sidecar, names and syncs, here and in the
  // next.
  Result<Sample> dump_full();
  // With the last dump as the parent. REQUIRES: there is one.
  Result<Sample> dump_change();
  // Everything to nowhere, with sums, compared with the last dump or with nothing. `written_bytes`: the bytes
  // that a file would get.
  Result<Sample> dump_nowhere(bool with_parent, std::uint64_t& written_bytes);
  // As a pre-dump does: everything, with sums, at most so many bytes a second (0: as fast as it goes), to a
  // file or nowhere. No member of the chain.
  Result<Sample> predump(std::uint64_t bytes_per_second, bool to_file);
  // From now on no unit matches the last dump: its sums are changed.
  void spoil_last();
  // Restores the last dump, from files outside the page cache, into BOs with other contents; compared.
  // Errors: EBADMSG (wrong contents).
  Result<Sample> restore();

  // Space on the disk, in bytes: the last dump, and all of them.
  Result<std::uint64_t> last_bytes() const;
  Result<std::uint64_t> all_bytes() const;

 private:
  struct Member {
    std::string name;
    std::unique_ptr<const KnownFiles> files;
    std::vector<std::uint32_t> owners;  // by unit: the member that has its bytes
  };

  Result<Sample> dump(bool with_parent);
  Result<void> save_sidecar(const Member& member, const SumTable& sums, KnownRuns runs) const;
  Result<std::vector<std::uint32_t>> owners_of(const KnownRuns& runs) const;
  ExtentMap extents() const;
  LanePlan plan() const;
  Result<std::uint64_t> disk_bytes(const std::string& name) const;
  void remove_all();

  CopyEngine& engine_;
  const Place& place_;
  const unsigned workers_;
  std::vector<Member> members_;
};

}  // namespace sluice::bench
