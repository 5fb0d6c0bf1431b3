// SPDX-License-Identifier: MIT
// Reads all contents of a checkpoint and compares every block with its sum. This is a restore without GPUs,
// by the same engine (source → checksum), except that it goes on after errors and reports all of them.
//
// For a directory, several lanes read the sets: one per pages set, at most one per CPU. A stream has one
// order, so one lane reads its files in that order. Thread-safe. The destructor stops what still runs and
// joins; nothing outlives it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "images/chain/chain.h"
#include "images/checkpoint.h"
#include "images/files/cause.h"
#include "images/files/image_source.h"
#include "images/pages.h"
#include "pipeline/lane_thread.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/fair_share.h"

namespace sluice {

enum class ProblemKind : std::uint8_t {
  BadBlock,     // differs from its sum
  BadFile,      // an image is damaged, or a pages file's size differs from its BO table
  BadSums,      // the sidecar is damaged or another dump's: its files were read without comparing
  Missing,      // a file that the others need is missing
  NotAllowed,   // the caller may not read it, or lacks the key
  Unsupported,  // a form of image that only the plugin that made it restores
  Unsigned,     // whole or not, it was made without the key that is set
  Unreadable,   // the disk, the mount or the system refuses: the contents are unknown
};
// For a failure with Error::err; `damaged` where it means damage.
ProblemKind problem_kind(int err, ProblemKind damaged);

struct VerifyProblem {
  ProblemKind kind = ProblemKind::BadBlock;
  std::string file;               // its name in the image directory
  std::uint64_t file_offset = 0;  // bytes; with `length` 0 the file as a whole
  std::uint64_t length = 0;
  std::string owner;  // owner of the contents: PagesSet::describe()
  PagesPlace place;   // only for a range
  std::string what;   // the reason in words; empty for a BadBlock
  int err = 0;        // the reason's errno
};

// More are not kept: sums that are all wrong would fill the memory.
inline constexpr std::size_t kMostProblems = 16384;

struct VerifyTotals {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;             // of the files, holes included
  std::uint64_t hole_bytes = 0;        // of these, not read: whole units of zeros
  std::uint64_t blocks = 0;            // compared
  std::uint64_t bad_blocks = 0;        // of these, wrong
  std::uint64_t problems = 0;          // of all kinds, kept or not
  std::uint64_t missing = 0;           // of these
  std::uint64_t unsupported = 0;       // of the problems
  std::uint64_t unsigned_images = 0;   // of the problems
  std::uint64_t unread = 0;            // of the problems, NotAllowed or Unreadable
  std::uint64_t unverified_bytes = 0;  // read without sums to compare with
  bool direct = true;                  // nothing passed through the page cache

  // Counts it.
  void add(ProblemKind kind);
};

struct VerifyOptions {
  std::uint64_t chunk_bytes = 0;    // a power of two
  std::uint64_t staging_bytes = 0;  // per lane
};

class Lane;

class Verification {
 public:
  // Starts. `source` is borrowed for the object's life; `checkpoint`: what was read of it.
  // Errors: EAGAIN (threads), those of ImageLayout::make().
  static Result<std::unique_ptr<Verification>> start(const ImageSource& source, const Checkpoint& checkpoint,
                                                     const VerifyOptions& options);
  ~Verification();

  // Waits for the end, `period` at most. Returns whether it has ended.
  bool wait_for(std::chrono::milliseconds period);
  std::uint64_t bytes_done() const;
  std::uint64_t bytes_total() const { return bytes_total_; }

  // What was found since the last call, of the first kMostProblems.
  std::vector<VerifyProblem> take_problems();
  VerifyTotals totals() const;
  // Remarks on how it was read, since the last call.
  std::vector<std::string> take_notes();

 private:
  // The pages files of one set.
  struct Item {
    int id = 0;
    PagesSet set;
    DumpId dump_id{};
    std::uint64_t bytes = 0;
    std::atomic<std::uint64_t> done{0};  // bytes
  };
  // What can be read of an item: its valid files, with their sums if there are any.
  struct Readable {
    PagesSet set;
    std::vector<SumTable> tables;
    std::vector<std::string> names = {};  // of the files
    std::vector<ExtentMap> maps = {};     // where the files' bytes are, if they are partial
  };
  class Source;
  class StreamSource;
  using IsKnown = std::function<bool(const BadBlock&)>;

  Verification(const ImageSource& source, const VerifyOptions& options)
      : source_(source), options_(options) {}
  Result<void> add(NumberedPages pages);
  void serve_files();
  void serve_stream();
  std::optional<Readable> look_at(const Item& item);
  std::optional<Sidecar> sums_of(const Item& item, const ImageLayout& layout);
  Result<void> follow_chain(const Item& item, const ImageLayout& layout, const Sidecar& sums,
                            Readable& readable);
  Result<std::shared_ptr<const Chain>> chain_for(const Needs& needs);
  void drop_bad_files(const Item& item, const ImageLayout& layout, Readable& readable);
  Result<ImageLayout> layout_of(const Readable& readable) const;
  Result<void> read_files(Item& item, Readable readable);
  Result<void> read_stream(Item& item, Readable readable, ByteStream& bytes);
  Result<void> compare(Item& item, Readable& readable, Lane& lane, Stage& source, const IsKnown& is_known);
  void report(VerifyProblem problem);
  void report(const Item& item, const std::string& file, ProblemKind damaged, const Error& error);

  const ImageSource& source_;
  VerifyOptions options_;
  FairShare disk_;
  Mutex chains_mutex_;
  std::map<Needs, std::shared_ptr<const Chain>> chains_ SLUICE_GUARDED_BY(chains_mutex_);
  std::vector<std::unique_ptr<Item>> items_;
  std::uint64_t bytes_total_ = 0;
  std::size_t lane_count_ = 0;
  std::atomic<std::size_t> next_item_{0};
  std::atomic<bool> cancelled_{false};
  mutable Mutex mutex_;
  std::condition_variable ended_;
  std::vector<VerifyProblem> problems_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ SLUICE_GUARDED_BY(mutex_);
  VerifyTotals totals_ SLUICE_GUARDED_BY(mutex_);
  std::size_t running_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::vector<LaneThread> lanes_;  // last: joined first
};

}  // namespace sluice
