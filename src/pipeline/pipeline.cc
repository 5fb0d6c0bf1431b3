// SPDX-License-Identifier: MIT
#include "pipeline/pipeline.h"

#include <algorithm>
#include <cassert>
#include <new>

namespace sluice {
namespace {

// A stage's answer. Lack of memory is a failure like any other: what is in flight must come to rest.
template <class Call>
auto answer_of(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "out of memory"};  // a text that needs no allocation
  }
}

}  // namespace

const PipelineStats::StageStats& PipelineStats::slowest() const {
  return *std::max_element(stage.begin(), stage.begin() + stages,
                           [](const StageStats& a, const StageStats& b) { return a.busy_ns < b.busy_ns; });
}

Pipeline::Pipeline(const ImageLayout& layout, std::span<Slot> slots, std::span<Stage* const> route,
                   Reactor& reactor, std::uint32_t cursors)
    : layout_(layout),
      slots_(slots),
      route_(route.begin(), route.end()),
      reactor_(reactor),
      walk_(layout.chunk_count(), cursors) {
  assert(!slots_.empty() && !route_.empty() && route_.size() <= kMaxStages);
  order_.reserve(slots_.size());
  completions_.resize(slots_.size() * kOpsPerSlot);
  stats_.stages = static_cast<std::uint32_t>(route_.size());
  for (std::size_t i = 0; i < route_.size(); ++i) stats_.stage[i].name = route_[i]->name();
  for (Slot& slot : slots_) {
    assert(slot.state == SlotState::Free && slot.buffer.size() >= layout_.chunk_bytes());
    slot.zero_units.assign(
        static_cast<std::size_t>((layout_.chunk_bytes() + kZeroUnitBytes - 1) / kZeroUnitBytes), false);
    for (std::uint32_t tag = 0; tag < kOpsPerSlot; ++tag) slot.ops[tag] = Op{&slot, tag, false};
  }
}

Result<PipelineStats> Pipeline::run(const ProgressFn& progress, const std::function<bool()>& cancelled) {
  const std::uint64_t began_ns = reactor_.now_ns();
  while ((!failed_ && done_ < layout_.chunk_count()) || in_stages_ > 0) {
    if (!failed_ && cancelled && cancelled()) fail(Error{ECANCELED, "cancelled"});
    const std::uint64_t done_before = done_;
    offer();
    assert(in_stages_ > 0 || failed_);  // the progress argument of the header
    if (in_stages_ > 0) {
      if (auto waited = wait_and_advance(); !waited)
        return std::move(waited).error();  // the ring itself broke
    }
    if (progress && done_ != done_before) progress(done_, layout_.chunk_count());
  }
  assert(reactor_.in_flight() == 0);
  for (std::size_t i = 0; i < route_.size() && !failed_; ++i) {
    if (auto finished = route_[i]->finish(); !finished) fail(std::move(finished).error());
  }
  if (failed_) return error_;
  stats_.elapsed_ns = reactor_.now_ns() - began_ns;
  return stats_;
}

// Slots on the route first, in the order of the walk. Then free slots take the next chunks, lowest slot
// first, until the first stage refuses one. So order_ stays sorted. A stage that takes one chunk at a time
// reuses the same few slots, whose memory is still in the caches.
void Pipeline::offer() {
  bool accepts = true;
  for (std::size_t i = 0; i < order_.size() && !failed_; ++i) {
    Slot& slot = *order_[i];
    if (slot.state != SlotState::Ready) continue;
    const bool taken = offer(slot);
    if (slot.stage == 0) accepts = taken;
  }
  for (Slot& slot : slots_) {
    if (failed_ || !accepts || walk_.ended()) return;
    if (slot.state != SlotState::Free) continue;
    slot.state = SlotState::Ready;
    slot.stage = 0;
    slot.chunk = layout_.chunk(walk_.next());
    slot.number = taken_++;
    std::fill(slot.zero_units.begin(), slot.zero_units.end(), false);
    order_.push_back(&slot);
    accepts = offer(slot);
  }
}

// False if the stage refused, or failed.
bool Pipeline::offer(Slot& slot) {
  const std::uint64_t now_ns = reactor_.now_ns();  // before: a stage may do all its work in submit()
  Result<Submit> answer = answer_of([&] { return route_[slot.stage]->submit(slot); });
  if (!answer) {
    fail(std::move(answer).error());
    return false;
  }
  if (*answer == Submit::Busy) {
    ++stats_.stage[slot.stage].refused;
    return false;
  }
  slot.state = SlotState::Running;
  slot.entered_ns = now_ns;
  if (running_[slot.stage]++ == 0) busy_since_ns_[slot.stage] = slot.entered_ns;
  ++in_stages_;
  return true;
}

Result<void> Pipeline::wait_and_advance() {
  assert(reactor_.in_flight() > 0);
  SLUICE_TRY_ASSIGN(const std::size_t count, reactor_.wait(completions_));
  for (std::size_t i = 0; i < count; ++i) {
    Op& op = *completions_[i].op;
    Slot& slot = *op.slot;
    assert(slot.state == SlotState::Running && !op.in_flight);
    Result<Progress> progress =
        answer_of([&] { return route_[slot.stage]->advance(slot, op, completions_[i].result); });
    if (progress && *progress == Progress::Pending) continue;
    leave_stage(slot);
    if (!progress) {
      fail(std::move(progress).error());
    } else if (++slot.stage == route_.size()) {
      slot.state = SlotState::Free;
      ++done_;
      ++stats_.chunks;
      stats_.bytes += slot.chunk.length;
      for (std::size_t unit = 0; unit < slot.zero_units.size(); ++unit) {
        const std::uint64_t begin = unit * kZeroUnitBytes;
        if (slot.zero_units[unit] && begin < slot.chunk.length) {
          stats_.zero_bytes += std::min(kZeroUnitBytes, slot.chunk.length - begin);
        }
      }
    }
  }
  std::erase_if(order_, [](const Slot* slot) { return slot->state == SlotState::Free; });
  return {};
}

void Pipeline::leave_stage(Slot& slot) {
  for (const Op& op : slot.ops) assert(!op.in_flight);
  const std::uint64_t now_ns = reactor_.now_ns();
  PipelineStats::StageStats& stats = stats_.stage[slot.stage];
  stats.slot_ns += now_ns - slot.entered_ns;
  if (trace_ != nullptr) trace_->add({slot.entered_ns, now_ns, slot.chunk.index, slot.index, slot.stage});
  if (--running_[slot.stage] == 0) stats.busy_ns += now_ns - busy_since_ns_[slot.stage];
  --in_stages_;
  slot.state = SlotState::Ready;
}

void Pipeline::fail(Error error) {
  if (failed_) return;
  failed_ = true;
  error_ = std::move(error);
  for (Stage* const stage : route_) stage->abandon();
}

void Pipeline::check_invariants() const {
  std::size_t free = 0;
  std::size_t on_route = 0;
  std::size_t running = 0;
  for (const Slot& slot : slots_) {
    free += slot.state == SlotState::Free ? 1 : 0;
    on_route += slot.state != SlotState::Free ? 1 : 0;
    running += slot.state == SlotState::Running ? 1 : 0;
    const bool op_in_flight =
        std::any_of(slot.ops.begin(), slot.ops.end(), [](const Op& op) { return op.in_flight; });
    assert(slot.state == SlotState::Running || !op_in_flight);  // I3
    (void)op_in_flight;
  }
  assert(free + on_route == slots_.size());  // I1
  assert(on_route == order_.size());
  assert(running == in_stages_);
  assert(std::is_sorted(order_.begin(), order_.end(),
                        [](const Slot* a, const Slot* b) { return a->number < b->number; }));
  (void)free, (void)on_route, (void)running;
}

}  // namespace sluice
