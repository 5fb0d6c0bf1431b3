// SPDX-License-Identifier: MIT
#include "pipeline/store/file_runs.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/units.h"

namespace sluice {
namespace {

// Consecutive completions without progress before an operation is given up.
constexpr std::uint32_t kMaxStalls = 100;

// Accounts for `result` bytes of [op.begin, op.end). True: the run continues, at op.begin. False: it has
// ended; then `failure` is its -errno, `nothing` if no byte came, 0 if all have come.
bool goes_on(Op& op, std::int32_t result, std::uint64_t alignment, std::int32_t nothing,
             std::int32_t& failure) {
  if (result > 0) {
    const std::uint64_t reached = op.begin + static_cast<std::uint64_t>(result);
    if (reached >= op.end) return false;
    if (const std::uint64_t resume = align_down(reached, alignment); resume > op.begin) {
      op.begin = resume;
      op.stalled = 0;
      return true;
    }
  }
  // A few bytes again and again, never enough, are a stall, too.
  const bool stalls = result > 0 || result == -EAGAIN || result == -EINTR;
  if (stalls && ++op.stalled < kMaxStalls) return true;
  failure = result < 0 ? result : nothing;
  return false;
}

}  // namespace

FileRuns::FileRuns(std::string name, Reactor& reactor, const Terms& terms)
    : name_(std::move(name)), reactor_(reactor), terms_(terms) {}

bool FileRuns::is_gap(const Slot& slot, std::uint64_t at) const {
  const auto unit = static_cast<std::size_t>(at / kZeroUnitBytes);
  return (!every_unit_ && slot.zero_units[unit]) || (!slot.known_units.empty() && slot.known_units[unit]);
}

bool FileRuns::moves_any(const Slot& slot) const {
  std::uint64_t at = 0;
  while (at < slot.chunk.length && is_gap(slot, at)) at += kZeroUnitBytes;
  return at < slot.chunk.length;
}

bool FileRuns::next_run(Slot& slot, Op& op) const {
  const std::uint64_t length = slot.chunk.length;
  while (slot.cursor < length && is_gap(slot, slot.cursor)) slot.cursor += kZeroUnitBytes;
  if (slot.cursor >= length) return false;
  op.begin = slot.cursor;
  while (slot.cursor < length && !is_gap(slot, slot.cursor)) slot.cursor += kZeroUnitBytes;
  op.end = std::min(slot.cursor, length);
  return true;
}

std::string FileRuns::describe(const Slot& slot, const Op& op) const {
  return name_ + " [" + std::to_string(slot.chunk.file_offset + op.begin) + ", " +
         std::to_string(slot.chunk.file_offset + op.end) + ")";
}

void FileRuns::begin(Slot& slot) {
  slot.cursor = 0;
  slot.live_ops = 0;
  slot.failed_op = nullptr;
  slot.failed_result = 0;
  prepare(slot);
  for (Op& op : slot.ops) {
    if (!start_next(slot, op)) break;
  }
  if (slot.live_ops > 0) return;
  slot.op().begin = slot.op().end = 0;  // nothing to move
  slot.live_ops = 1;
  reactor_.post(slot.op(), 0);
}

bool FileRuns::start_next(Slot& slot, Op& op) {
  if (!next_run(slot, op)) return false;
  op.stalled = 0;
  ++slot.live_ops;
  start(slot, op);
  return true;
}

// Moves the rest of the Op's run. At the end of the file, that is a whole unit of the alignment.
void FileRuns::start(Slot& slot, Op& op) {
  const std::uint64_t end = align_up(op.end, alignment_of(slot, op));
  transfer(slot, op,
           slot.buffer.subspan(static_cast<std::size_t>(op.begin), static_cast<std::size_t>(end - op.begin)),
           slot.chunk.file_offset + op.begin);
}

Result<Progress> FileRuns::advance(Slot& slot, Op& op, std::int32_t result) {
  if (op.begin < op.end) {
    if (only_waited(slot, op) && slot.failed_op == nullptr) {
      start(slot, op);
      return Progress::Pending;
    }
    std::int32_t failure = 0;
    if (goes_on(op, result, alignment_of(slot, op), -terms_.nothing, failure) && slot.failed_op == nullptr) {
      start(slot, op);
      return Progress::Pending;
    }
    // The first failure counts. Its Op is not started again, so its range stays for the message.
    if (failure != 0 && slot.failed_op == nullptr) {
      slot.failed_op = &op;
      slot.failed_result = failure;
    }
  }
  --slot.live_ops;
  if (slot.failed_op == nullptr && op.begin < op.end) (void)start_next(slot, op);
  if (slot.live_ops > 0) return Progress::Pending;
  if (alone_ == &slot) alone_ = nullptr;
  if (slot.failed_op == nullptr) return Progress::Done;

  std::string text = std::string(terms_.verb) + " " + describe(slot, *slot.failed_op);
  if (slot.failed_result == -terms_.nothing) text += terms_.why_nothing;
  return make_error(-slot.failed_result, std::move(text), Topic::Images);
}

}  // namespace sluice
