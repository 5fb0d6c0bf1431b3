// SPDX-License-Identifier: MIT
// Chunks on their way into an open file, or out of one: the common part of FileWriter and FileReader.
//
// A chunk has runs: stretches between units that are not moved, because they are zeros that become holes, or
// holes, or in the parent. Up to kOpsPerSlot runs are in flight at once. An Op that has finished one takes
// the next.
//
// How short I/O is resumed (alignment 4096): a write of [8192, 73728) of a buffer returns 10000. Bytes up to
// 18192 are in the file, but a direct write cannot start there. It resumes at 16384, the boundary at or
// below, and so writes [16384, 18192) twice, the same bytes. A result below one alignment unit is no progress
// and counts as a stall; so do EAGAIN and EINTR. A buffered file has alignment 1: it resumes at 18192.
//
// Thread-bound to the lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot.h"
#include "pipeline/stage.h"
#include "pipeline/store/direct_io.h"
#include "pipeline/store/fair_share.h"

namespace sluice {

class ExtentCloner;
class SharedReader;

// For all files of a lane.
struct FileOptions {
  IoMode io_mode = IoMode::Auto;
  bool holes = true;  // dump only: leave zero units unwritten
  bool sync = true;   // dump only: make a complete file durable before it is closed
  // Dump only: write into the blocks of an existing file of that name, if it is_private() and has no other
  // link. Nothing has to be allocated, and disks and file systems rewrite faster than they write. It becomes
  // the temporary file, durably, before its first byte changes. It gets no holes: zero units are written,
  // too.
  bool reuse = false;
  // Dump only: clones parts of other files into a written file. Borrowed; null: nothing.
  ExtentCloner* cloner = nullptr;
  FairShare* share = nullptr;  // of the lanes that use this disk at the same time; borrowed
  unsigned turn = 0;           // of this one among them
  // Restore only: of the lanes that read the same files at the same time; borrowed; null: the lane is alone.
  SharedReader* reader = nullptr;
  std::uint32_t most_on_disk = UINT32_MAX;  // chunks of this lane, at once; at least 1
};

class FileRuns {
 public:
  virtual ~FileRuns() = default;

  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }
  // Whether the file is moved directly, except for what a reader takes from the page cache.
  bool direct() const { return alignment_ > 1; }
  // Whether no other chunk may begin now.
  bool busy() const { return alone_ != nullptr; }

  // Whether anything of the slot's chunk will be moved, as far as known before begin().
  virtual bool moves_any(const Slot& slot) const;
  // Starts on the slot's chunk. The file owns the buffer until advance() answers Done or an error.
  // REQUIRES: !busy().
  void begin(Slot& slot);
  // As Stage::advance(). Errors: those of the transfer, with the file's name and range, when all Ops of the
  // slot are at rest.
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result);

 protected:
  // How messages describe a failed transfer, and the meaning of one that moves nothing.
  struct Terms {
    const char* verb;
    int nothing;              // positive errno
    const char* why_nothing;  // continues the message
  };
  // `reactor`: borrowed.
  FileRuns(std::string name, Reactor& reactor, const Terms& terms);

  // Before the first run of a chunk.
  virtual void prepare(Slot& /*slot*/) {}
  // The next run at or after slot.cursor, as [op.begin, op.end); moves the cursor past it. False at the
  // chunk's end.
  virtual bool next_run(Slot& slot, Op& op) const;
  // The boundary at which the rest of the Op's run may resume.
  virtual std::uint64_t alignment_of(const Slot& /*slot*/, const Op& /*op*/) const { return alignment_; }
  // The rest of the Op's run, for messages: "NAME [1, 2)".
  virtual std::string describe(const Slot& slot, const Op& op) const;
  // Starts to move `bytes`, which begin at op.begin and are rounded up to the alignment. `at`: in the file,
  // in bytes.
  virtual void transfer(Slot& slot, Op& op, std::span<std::byte> bytes, std::uint64_t at) = 0;
  // Once for a completion: whether it was no transfer yet, so that transfer() is due again.
  virtual bool only_waited(const Slot& /*slot*/, const Op& /*op*/) { return false; }

  std::string name_;
  Reactor& reactor_;
  UniqueFd fd_;
  std::uint64_t alignment_ = 1;  // of file ranges, lengths and addresses, bytes
  bool every_unit_ = false;      // zero units are moved, too
  const Slot* alone_ = nullptr;  // no other chunk may begin until this one is done

 private:
  bool is_gap(const Slot& slot, std::uint64_t at) const;
  bool start_next(Slot& slot, Op& op);
  void start(Slot& slot, Op& op);

  const Terms terms_;
};

}  // namespace sluice
