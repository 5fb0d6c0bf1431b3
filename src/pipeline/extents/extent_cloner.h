// SPDX-License-Identifier: MIT
// Extents of a file that another file shares instead of being written again: a reflink in XFS and btrfs, by
// ioctl_ficlonerange(2).
//
// Its requirements (generic_remap_file_range_prep of fs/remap_range.c): both files on one mount's file
// system; offsets that are multiples of the file system's block. The length must be one, too, unless it
// reaches the source's end. It waits for direct I/O in flight on both files and writes the source's dirty
// pages first. So a file gets its clones after its last write, in as few stretches as possible. A stretch
// here has whole parts of kZeroUnitBytes, and never the end of a file, which is written.
//
// A clone has the source's bytes on the disk: none are read or compared.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "pipeline/extents/clone_runs.h"
#include "pipeline/extents/extent_copier.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot.h"
#include "pipeline/slot_workers.h"

namespace sluice {

class Lane;

// Files up to this size are written completely, and nothing is cloned from them: a clone costs as much as
// writing them.
inline constexpr std::uint64_t kLargestUncloned = 256 * kKiB;

// [from, from + bytes) of one open file becomes [to, to + bytes) of another one. 0, or a positive errno.
using CloneCall =
    std::function<int(int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd, std::uint64_t to)>;
// FICLONERANGE.
int clone_range(int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd, std::uint64_t to);

// Whether a clone failed because the file system does not share these bytes, now or ever. They can be copied.
// All other errors are of the disk, or of the files.
bool is_refusal(int err);

// Whether new files of a directory can share extents of existing files. Tested by cloning into an unnamed
// file: neither a file system's name nor another file's success tells.
class CloneProbe {
 public:
  // `dir_fd`: of the new files. Errors: those of making a file there, and of fstatfs.
  static Result<CloneProbe> make(int dir_fd, CloneCall call = clone_range);

  // A power of two, at most kZeroUnitBytes: offsets must be multiples of it.
  std::uint64_t block_bytes() const { return block_bytes_; }
  // Tests a file of more than kLargestUncloned bytes. 0: it can be shared; else the errno of the call that
  // was refused. Errors: other errors of the clone, named; those of open_image_file(), and EBADMSG and EACCES
  // as clone_runs().
  Result<int> ask(const ExtentFile& file) const;
  // Clones the first block of a file that has it. 0, or a positive errno.
  int clone_block(int from_fd) const;

 private:
  CloneProbe(UniqueFd fd, std::uint64_t block_bytes, CloneCall call)
      : fd_(std::move(fd)), block_bytes_(block_bytes), call_(std::move(call)) {}

  UniqueFd fd_;
  std::uint64_t block_bytes_;
  CloneCall call_;
};

// The same for two new files of one directory. 0: they cannot share extents, or a file cannot be made.
std::uint64_t shareable_block_bytes(int dir_fd, const CloneCall& call = clone_range);

// What the file system did not share.
struct RefusedRuns {
  CloneRuns runs;            // without runs: nothing was refused
  std::optional<Error> why;  // the first refusal
};

// Clones all runs into an open file, called `name`. Gives up with ECANCELED once `stopped` (may be null) is
// set. Errors, with a remedy, because these bytes exist nowhere else: those of the clone, refusals aside;
// EBADMSG for a source of another size; EACCES for one that must be private and is not.
Result<RefusedRuns> clone_runs(int fd, const std::string& name, const CloneRuns& runs, const CloneCall& call,
                               const std::atomic<bool>* stopped = nullptr);

// Opens a file that extents are shared with, or copied from. Errors: as clone_runs().
Result<UniqueFd> open_source(const ExtentFile& file);

// Clones for the files of a lane, in its own thread. What the file system refuses is copied. Bound to the
// lane's thread, except as Options says.
class ExtentCloner final : private SlotWork {
 public:
  struct Options {
    std::function<CloneRuns(std::uint32_t file)>
        runs;  // for a file that has been written; called by the thread
    // Called by the thread before that: waits until the sources are complete. May be null.
    std::function<Result<void>()> ready = nullptr;
    RunSums sums;  // of these files
    CloneCall call = clone_range;
    const std::atomic<bool>* stopped = nullptr;  // borrowed
    // Called by the thread for each file with refused clones, before it is copied. May be null.
    std::function<void(const Error&)> on_refusal = nullptr;
  };
  // For the lane's slots. Errors: those of SlotWorkers::start().
  static Result<std::unique_ptr<ExtentCloner>> start(Options options, const Lane& lane);

  // Clones into the file of the slot's chunk: slot.op() completes when done. `fd` and `name` are borrowed
  // until then. REQUIRES: the rest of the file was written.
  void begin(Slot& slot, int fd, const std::string& name, Reactor& reactor);
  // The result. Call once for each begin().
  Result<void> take(const Slot& slot, std::int32_t completion) { return workers_->take(slot, completion); }

  // When no begin() is under way: bytes that were refused, and copied.
  std::uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Target {
    int fd = -1;
    const std::string* name = nullptr;
  };
  ExtentCloner(Options options, std::uint32_t slots) : options_(std::move(options)), targets_(slots) {}
  Result<void> work(Slot& slot) override;

  const Options options_;
  std::atomic<std::uint64_t> copied_bytes_{0};
  std::vector<Target> targets_;           // by slot
  std::unique_ptr<SlotWorkers> workers_;  // last: their work uses the rest
};

}  // namespace sluice
