// SPDX-License-Identifier: MIT
// The store stage of a lane whose files are streams: writes them into pipes (dump), or reads them out of
// pipes (restore). The other end is somebody else's program: an image streamer, which may be slow, stall, or
// die.
//
// A pipe has one order and no offsets: the slot whose chunk comes next is taken, every other refused, and one
// is under way at a time; order, short transfers and a slow other end need nothing more. Files of the layout
// come one after another, each in a pipe of its own, opened when its first chunk's turn comes and closed
// behind its last: on dump that is its end, on restore it has been read to its end by then, which must be
// where the layout has it. Zeros travel like all other bytes.
//
// The stage never waits within a transfer: a pipe that is not ready is polled, kPipeTick at a time, so that a
// lane which is abandoned comes to rest although the other end stands still. Bytes are written and read,
// never spliced: pages that were spliced belong to the pipe's reader, for as long as he likes, and the
// lane's staging memory is needed again (docs/performance.md has what that costs).
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
#include "pipeline/reactor.h"
#include "pipeline/stage.h"

namespace sluice {

// Our end of a new pipe for the file of that name. May block as long as the other end's program likes.
using OpenPipe = std::function<Result<UniqueFd>(const std::string& name)>;

// One transfer is at most this long: small enough that the other end works on one while we copy the next, and
// that it stays in the processor's caches in between.
inline constexpr std::uint64_t kPipeTransferBytes = 256 * kKiB;
// What a pipe is asked to hold; it keeps what it has where the system allows no more.
inline constexpr int kPipeBytes = 4 * kMiB;
// How long a poll of a pipe takes at most.
inline constexpr std::chrono::milliseconds kPipeTick{100};

class PipeStore final : public Stage {
 public:
  // `names`: one per file of the layout. Borrows layout and reactor.
  PipeStore(Direction direction, OpenPipe open, std::vector<std::string> names, const ImageLayout& layout,
            Reactor& reactor);

  const char* name() const override { return "store"; }
  // Errors: those of `open`.
  Result<Submit> submit(Slot& slot) override;
  // Errors, with the file's name and range: EPIPE when nobody reads the pipe any more; ENODATA for a file
  // that ends early, EBADMSG for one that does not end; ECANCELED once abandoned.
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  void abandon() override { abandoned_ = true; }

 private:
  // What the one Op under way does.
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
  UniqueFd pipe_;  // of the file under way
  std::uint64_t next_chunk_ = 0;
  std::uint64_t chunks_left_ = 0;  // of that file
  Doing doing_ = Doing::Nothing;
  bool abandoned_ = false;
  std::byte beyond_{};  // restore: where a byte behind the file's end would come to
};

}  // namespace sluice
