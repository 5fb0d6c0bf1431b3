// SPDX-License-Identifier: MIT
// The slot's Op: [op.begin, op.end) of the buffer is yet to be moved. On restore a file's last chunk has one
// more read when that range is empty, of a byte that must not be there.
#include "pipeline/store/pipe_store.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/format.h"

namespace sluice {
namespace {

// Consecutive transfers that moved nothing although the pipe was ready.
constexpr std::uint32_t kMostEmptyMoves = 100;

}  // namespace

PipeStore::PipeStore(Direction direction, OpenPipe open, std::vector<std::string> names,
                     const ImageLayout& layout, Reactor& reactor)
    : direction_(direction),
      open_(std::move(open)),
      names_(std::move(names)),
      layout_(layout),
      reactor_(reactor) {
  assert(names_.size() == layout.file_count());
}

Result<Submit> PipeStore::submit(Slot& slot) {
  if (doing_ != Doing::Nothing || slot.chunk.index != next_chunk_) return Submit::Busy;
  if (!pipe_) SLUICE_TRY(open_next(slot.chunk.file));
  Op& op = slot.op();
  op.begin = 0;
  op.end = slot.chunk.length;
  op.stalled = 0;
  go_on(op);
  return Submit::Started;
}

Result<void> PipeStore::open_next(std::uint32_t file) {
  SLUICE_TRY_ASSIGN(UniqueFd pipe, open_(names_[file]));
  const int flags = ::fcntl(pipe.get(), F_GETFL);
  if (flags < 0 || ::fcntl(pipe.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(pipe.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return make_error(errno, "set up the stream of " + names_[file]);
  }
  (void)::fcntl(pipe.get(), F_SETPIPE_SZ, kPipeBytes);  // faster if allowed, correct if not
  pipe_ = std::move(pipe);
  chunks_left_ = layout_.chunks_of_file(file);
  return {};
}

// Trying costs less than a poll that need not wait.
void PipeStore::go_on(Op& op) {
  pollfd now{pipe_.get(), static_cast<short>(direction_ == Direction::Dump ? POLLOUT : POLLIN), 0};
  if (::poll(&now, 1, 0) > 0) {
    transfer(op);
  } else {
    poll(op);
  }
}

void PipeStore::poll(Op& op) {
  doing_ = Doing::Polling;
  if (direction_ == Direction::Dump) {
    reactor_.poll_writable(op, pipe_.get(), kPipeTick);
  } else {
    reactor_.poll_readable(op, pipe_.get(), kPipeTick);
  }
}

void PipeStore::transfer(Op& op) {
  doing_ = Doing::Transferring;
  const std::span<std::byte> part =
      op.slot->buffer.subspan(static_cast<std::size_t>(op.begin),
                              static_cast<std::size_t>(std::min(op.end - op.begin, kPipeTransferBytes)));
  if (direction_ == Direction::Dump) {
    reactor_.write(op, pipe_.get(), part, kStream);
  } else {
    reactor_.read(op, pipe_.get(), part.empty() ? std::span(&beyond_, 1) : part, kStream);
  }
}

Result<Progress> PipeStore::advance(Slot& slot, Op& op, std::int32_t result) {
  const Doing did = std::exchange(doing_, Doing::Nothing);
  if (abandoned_) return fail(slot, op, ECANCELED, "the lane has failed");
  if (did == Doing::Polling) {
    if (result == -ETIME) {
      op.stalled = 0;
      poll(op);
    } else if (result < 0) {
      return fail(slot, op, -result, "wait for the other end");
    } else {
      transfer(op);
    }
    return Progress::Pending;
  }
  if (result == -EAGAIN || result == -EINTR) {
    if (++op.stalled == kMostEmptyMoves)  // unreached: a race
      return fail(slot, op, -result, "the pipe is ready but moves nothing");
    poll(op);
    return Progress::Pending;
  }
  if (result == -EPIPE) return fail(slot, op, EPIPE, "the reader of the stream has gone");
  if (result < 0) return fail(slot, op, -result, "");
  return take_bytes(slot, op, static_cast<std::uint64_t>(result));
}

Result<Progress> PipeStore::take_bytes(Slot& slot, Op& op, std::uint64_t bytes) {
  const bool at_end = op.begin == op.end;  // restore only
  if (at_end && bytes > 0)
    return fail(slot, op, EBADMSG,
                "the stream has more bytes than its BO table asks for; use another checkpoint [SL-C11]");
  if (!at_end && bytes == 0) {
    if (direction_ == Direction::Dump) return fail(slot, op, EIO, "the pipe takes no bytes");
    return fail(
        slot, op, ENODATA,
        "the stream ends early; see what the image streamer has said, or use another checkpoint [SL-C12]");
  }
  op.begin += bytes;
  op.stalled = 0;
  const bool last = chunks_left_ == 1;
  if (op.begin < op.end || (last && !at_end && direction_ == Direction::Restore)) {
    go_on(op);
    return Progress::Pending;
  }
  ++next_chunk_;
  if (--chunks_left_ == 0) pipe_.reset();
  return Progress::Done;
}

Result<Progress> PipeStore::fail(const Slot& slot, const Op& op, int err, const char* why) {
  const std::uint64_t begin = slot.chunk.file_offset + op.begin;
  const std::uint64_t end = slot.chunk.file_offset + op.end;
  std::string text =
      formatted("{} {} [{}, {}) of the image stream{}{}", direction_ == Direction::Dump ? "write" : "read",
                names_[slot.chunk.file], begin, end, *why != '\0' ? ": " : "", why);
  pipe_.reset();  // the other end notices at once
  return make_error(err, std::move(text));
}

}  // namespace sluice
