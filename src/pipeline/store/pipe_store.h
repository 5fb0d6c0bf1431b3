// SPDX-License-Identifier: MIT
// The store stage of a lane whose files are streams: writes them to pipes (dump), or reads them from pipes
// (restore). The other end is a foreign program: an image streamer, which may be slow, stall, or die.
//
// A pipe has one order and no offsets: only the slot with the next chunk is accepted, and one is in flight at
// a time. Order, short transfers and a slow other end need nothing more. Files of the layout come one after
// another, each in its own pipe, opened at its first chunk and closed after its last. On dump that is the
// file's end; on restore the pipe has been read to its end by then, which must be the layout's. Zeros are
// transferred like all other bytes.
//
// The stage never blocks within a transfer: a pipe that is not ready is polled, kPipeTick at a time. So an
// abandoned lane comes to rest even if the other end is stuck. Bytes are written and read, never spliced.
// Spliced pages belong to the pipe's reader for as long as it likes, but the staging memory is needed again.
// The cost is in docs/measurements/performance.md.
//
// Thread-bound to the lane. SIGPIPE must be ignored or blocked there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice {

// Our end of a new pipe for the file of that name. May block for as long as the other end's program likes.
using OpenPipe = std::function<Result<UniqueFd>(const std::string& name)>;

// Limit of one transfer. It is small enough that the other end works on one while we copy the next, and that
// it stays in the processor's caches.
inline constexpr std::uint64_t kPipeTransferBytes = 256 * kKiB;
// The requested capacity of a pipe; if the system refuses, the pipe keeps its own. It is what everybody may
// have (fs.pipe-max-size by default): more takes CAP_SYS_RESOURCE, without which a pipe keeps 64 KiB.
inline constexpr int kPipeBytes = 1 * kMiB;
// Limit of one poll of a pipe.
inline constexpr std::chrono::milliseconds kPipeTick{100};

class PipeStore final : public Stage {
 public:
  // `names`: one per file of the layout. Borrows layout and reactor.
  PipeStore(Direction direction, OpenPipe open, std::vector<std::string> names, const ImageLayout& layout,
            Reactor& reactor);

  const char* name() const override { return "store"; }
  // Errors: those of `open`.
  Result<Submit> submit(Slot& slot) override;
  // Errors, with the file's name and range: EPIPE if the pipe has no reader any more; ENODATA for a file that
  // ends early, EBADMSG for one that is too long; ECANCELED once abandoned.
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  void abandon() override { abandoned_ = true; }

 private:
  // What the Op does.
  enum class Doing : std::uint8_t { Nothing, Polling, Transferring };

  Result<void> open_next(std::uint32_t file);
  void go_on(Op& op);
  void poll(Op& op);
  void transfer(Op& op);
  Result<Progress> take_bytes(Slot& slot, Op& op, std::uint64_t bytes);
  Result<Progress> fail(const Slot& slot, const Op& op, int err, const char* why);

  Direction direction_;
  OpenPipe open_;
  std::vector<std::string> names_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  UniqueFd pipe_;  // of the current file
  std::uint64_t next_chunk_ = 0;
  std::uint64_t chunks_left_ = 0;  // of that file
  Doing doing_ = Doing::Nothing;
  bool abandoned_ = false;
  std::byte beyond_{};  // restore: receives a byte after the file's end, an error
};

}  // namespace sluice
