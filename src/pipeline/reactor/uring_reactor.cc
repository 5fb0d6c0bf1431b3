// SPDX-License-Identifier: MIT
// Every Op is submitted when it is started, not when the lane waits. The lane hashes megabytes between two
// waits, and the disk should work meanwhile. At megabytes per Op the extra system calls have no measurable
// cost. The submission queue never has more than the one or two entries being started.
#include "pipeline/reactor/uring_reactor.h"

#include <liburing.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"
#include "pipeline/reactor/thread_reactor.h"

namespace sluice {
namespace {

// io_uring accepts no larger fixed buffer.
constexpr std::uint64_t kMaxFixedBufferBytes = kGiB;
static_assert(kStream == static_cast<std::uint64_t>(-1), "io_uring's offset of what has none");
// A read or write ends at MAX_RW_COUNT (2 GiB minus a page) anyway; more comes back short.
constexpr std::size_t kMaxTransferBytes = static_cast<std::size_t>(kGiB);
// Limit of refusals (EAGAIN: no memory for a request; EBUSY: completions overflowed) while nothing of ours is
// in the kernel that could end and make room. Otherwise refusals do not count.
constexpr unsigned kMaxRefusals = 10'000;
constexpr auto kRefusedPause = std::chrono::microseconds(100);

// user_data: an Op's address, or, with one of these bits set, a Poll's. Both are aligned to 8.
constexpr std::uint64_t kPollTag = 1;
constexpr std::uint64_t kTimeoutTag = 2;
constexpr std::uint64_t kCancelTag = 4;
constexpr std::uint64_t kTagMask = 7;

// A poll and the timeout linked to it: two CQEs, in either order, the second of which ends the Op; more if it
// had to be cancelled. Not reused before.
struct alignas(8) Poll {
  Op* op = nullptr;
  __kernel_timespec timeout{};
  std::int32_t poll_result = 0;
  std::int32_t timeout_result = 0;
  std::int32_t cancel_result = -ENOENT;
  unsigned cqes_due = 2;
  bool unbounded = false;  // the kernel had no memory for its timeout
};

// A part of a registered range; its place in the table is the kernel's index for it.
struct FixedBuffer {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

std::int32_t outcome(const Poll& poll) {
  if (poll.poll_result >= 0) return 0;
  if (poll.poll_result != -ECANCELED) return poll.poll_result;
  if (poll.unbounded) return -ENOMEM;
  // Cancelled: by its timeout (-ETIME), or because the timeout itself was refused.
  return poll.timeout_result < 0 ? poll.timeout_result : -ECANCELED;
}

}  // namespace

struct UringReactor::Impl {
  explicit Impl(unsigned entry_count) : entries(entry_count), polls(entry_count), ready(entry_count) {
    free_polls.reserve(entry_count);
    for (Poll& poll : polls) free_polls.push_back(&poll);
  }
  ~Impl() {
    if (made) io_uring_queue_exit(&ring);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int open_ring();
  bool supports_our_operations();
  io_uring_sqe* next_sqe();
  bool submit();
  void cancel(Poll& poll);
  void reap();
  void push_ready(const Completion& completion);
  int fixed_index(const void* data, std::size_t bytes) const;

  const unsigned entries;
  io_uring ring{};
  bool made = false;
  int broken = 0;            // errno of what broke the ring
  std::size_t cqes_due = 0;  // CQEs that the kernel owes us
  std::vector<FixedBuffer> fixed;
  std::vector<Poll> polls;
  std::vector<Poll*> free_polls;

  // Finished Ops that wait() has not returned yet; first in, first out, at most `entries`.
  std::vector<Completion> ready;
  std::size_t ready_first = 0;
  std::size_t ready_count = 0;
};

// Newest first. SINGLE_ISSUER and DEFER_TASKRUN: 6.1; COOP_TASKRUN: 5.19. TASKRUN_FLAG lets peeking see
// deferred work.
int UringReactor::Impl::open_ring() {
  constexpr std::array<unsigned, 3> kSetups{
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
      IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
      0,
  };
  // The size of the submission queue also limits the io-wq workers. Two, because a poll and its timeout are
  // submitted together.
  const unsigned sq_entries = std::clamp(entries, 2U, 64U);
  int result = -ENOSYS;
  for (unsigned flags : kSetups) {  // unreached: another machine
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = std::max(2 * entries, sq_entries);
    result = io_uring_queue_init_params(sq_entries, &ring, &params);
    if (result != -EINVAL) break;
  }
  made = result == 0;
  return -result;
}

bool UringReactor::Impl::supports_our_operations() {
  // No completion lost on overflow, and nothing of an SQE (a poll's timespec) read after its submission: 5.5.
  constexpr unsigned kFeatures = IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE;
  if ((ring.features & kFeatures) != kFeatures) return false;  // unreached: another machine
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  constexpr std::array kOperations{IORING_OP_READ,         IORING_OP_WRITE,    IORING_OP_READ_FIXED,
                                   IORING_OP_WRITE_FIXED,  IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL,
                                   IORING_OP_LINK_TIMEOUT, IORING_OP_FSYNC};
  const bool all = std::all_of(kOperations.begin(), kOperations.end(), [probe](int operation) {
    return io_uring_opcode_supported(probe, operation) != 0;
  });
  io_uring_free_probe(probe);
  return all;
}

// Every start submits, so the queue is empty here, unless the ring is broken; then entries are reused.
io_uring_sqe* UringReactor::Impl::next_sqe() {
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
  assert(sqe != nullptr);
  return sqe;
}

// Whether the kernel accepted everything at once.
bool UringReactor::Impl::submit() {
  bool at_once = true;
  unsigned refusals = 0;
  while (broken == 0 && io_uring_sq_ready(&ring) > 0) {
    const int result = io_uring_submit(&ring);
    if (result > 0) {
      refusals = 0;
      at_once = at_once && io_uring_sq_ready(&ring) == 0;
    } else if (result == 0 || result == -EAGAIN || result == -EBUSY) {
      // Room comes from completions: take those that exist, else give the kernel's work a chance to end.
      (void)io_uring_get_events(&ring);
      reap();
      if (cqes_due > io_uring_sq_ready(&ring)) {
        std::this_thread::sleep_for(kRefusedPause);
      } else {
        if (++refusals > kMaxRefusals) broken = result == 0 ? EIO : -result;
        (void)::sched_yield();
      }
    } else if (result != -EINTR) {
      broken = -result;
    }
  }
  return at_once;
}

// Ends a poll without a timeout. If a kernel worker is just starting it, it is not found; then try again.
void UringReactor::Impl::cancel(Poll& poll) {
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&poll));
  poll.unbounded = true;
  while (broken == 0 && poll.cqes_due > 0 && poll.cancel_result != 0) {
    ++poll.cqes_due;
    ++cqes_due;
    io_uring_sqe* const sqe = next_sqe();
    io_uring_prep_cancel64(sqe, address | kPollTag, 0);
    io_uring_sqe_set_data64(sqe, address | kCancelTag);
    submit();
    (void)::sched_yield();
    reap();
  }
}

void UringReactor::Impl::push_ready(const Completion& completion) {
  assert(ready_count < ready.size());
  ready[(ready_first + ready_count++) % ready.size()] = completion;
}

// Moves completions to `ready`, without blocking.
void UringReactor::Impl::reap() {
  std::array<io_uring_cqe*, 32> cqes;
  for (;;) {
    const unsigned count = io_uring_peek_batch_cqe(&ring, cqes.data(), static_cast<unsigned>(cqes.size()));
    for (unsigned i = 0; i < count; ++i) {
      void* const data = io_uring_cqe_get_data(cqes[i]);
      const std::int32_t result = cqes[i]->res;
      const std::uint64_t tag = cqes[i]->user_data & kTagMask;
      if (tag == 0) {
        push_ready(Completion{static_cast<Op*>(data), result});
        continue;
      }
      Poll& poll = *reinterpret_cast<Poll*>(static_cast<std::byte*>(data) - tag);
      if (tag == kPollTag) poll.poll_result = result;
      if (tag == kTimeoutTag) poll.timeout_result = result;
      if (tag == kCancelTag) poll.cancel_result = result;
      if (--poll.cqes_due == 0) {
        push_ready(Completion{poll.op, outcome(poll)});
        free_polls.push_back(&poll);
      }
    }
    io_uring_cq_advance(&ring, count);
    cqes_due -= count;
    if (count < cqes.size()) return;
  }
}

// -1 unless [data, data + bytes) lies within one registered piece.
int UringReactor::Impl::fixed_index(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    if (begin >= fixed[i].begin && begin < fixed[i].end && bytes <= fixed[i].end - begin)
      return static_cast<int>(i);
  }
  return -1;
}

Result<std::unique_ptr<UringReactor>> UringReactor::make(unsigned entries) {
  assert(entries > 0);
  auto impl = std::make_unique<Impl>(entries);
  if (const int err = impl->open_ring(); err != 0) return make_error(err, "io_uring_setup");
  if (!impl->supports_our_operations())
    return make_error(ENOSYS, "probe io_uring for the operations that are needed");
  // A fork of the host must not share the ring's memory.
  if (const int err = -io_uring_ring_dontfork(&impl->ring); err != 0)
    return make_error(err, "io_uring: dontfork");
  return std::unique_ptr<UringReactor>(new UringReactor(std::move(impl)));
}

UringReactor::UringReactor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UringReactor::~UringReactor() {
  assert(in_flight_ == 0 || impl_->broken != 0);
}

Result<void> UringReactor::register_buffer(std::span<std::byte> memory) {
  assert(in_flight_ == 0 && impl_->fixed.empty());
  std::vector<iovec> pieces;
  std::vector<FixedBuffer> fixed;
  for (std::size_t at = 0; at < memory.size();) {
    const std::size_t bytes = std::min<std::size_t>(memory.size() - at, kMaxFixedBufferBytes);
    pieces.push_back(iovec{&memory[at], bytes});
    const auto begin = reinterpret_cast<std::uintptr_t>(&memory[at]);
    fixed.push_back(FixedBuffer{begin, begin + bytes});
    at += bytes;
  }
  const int result =
      io_uring_register_buffers(&impl_->ring, pieces.data(), static_cast<unsigned>(pieces.size()));
  if (result < 0) return make_error(-result, "registering the staging arena with io_uring");
  impl_->fixed = std::move(fixed);
  return {};
}

std::string UringReactor::features() const {
  // unreached: another machine
  if ((impl_->ring.flags & IORING_SETUP_DEFER_TASKRUN) != 0) return "SINGLE_ISSUER, DEFER_TASKRUN";
  return (impl_->ring.flags & IORING_SETUP_COOP_TASKRUN) != 0 ? "COOP_TASKRUN" : "plain";
}

void UringReactor::read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) {
  move(op, fd, buffer, offset, {IORING_OP_READ, IORING_OP_READ_FIXED});
}

void UringReactor::write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) {
  move(op, fd, buffer, offset, {IORING_OP_WRITE, IORING_OP_WRITE_FIXED});
}

void UringReactor::move(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset,
                        MoveCodes codes) {
  if (!start(op, 1)) return;  // unreached: a guard
  io_uring_sqe* const sqe = impl_->next_sqe();
  const auto bytes = static_cast<unsigned>(std::min(buffer.size(), kMaxTransferBytes));
  const int index = impl_->fixed_index(buffer.data(), bytes);
  io_uring_prep_rw(index >= 0 ? codes.fixed : codes.plain, sqe, fd, buffer.data(), bytes, offset);
  if (index >= 0) sqe->buf_index = static_cast<std::uint16_t>(index);
  io_uring_sqe_set_data(sqe, &op);
  impl_->submit();
}

void UringReactor::sync_data(Op& op, int fd) {
  if (!start(op, 1)) return;  // unreached: a guard
  io_uring_sqe* const sqe = impl_->next_sqe();
  io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
  io_uring_sqe_set_data(sqe, &op);
  impl_->submit();
}

void UringReactor::poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) {
  poll(op, fd, POLLIN, timeout);
}

void UringReactor::poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) {
  poll(op, fd, POLLOUT, timeout);
}

void UringReactor::poll(Op& op, int fd, unsigned events, std::chrono::nanoseconds timeout) {
  if (!start(op, 2)) return;
  Poll& poll = *impl_->free_polls.back();
  impl_->free_polls.pop_back();
  const std::int64_t ns = std::max<std::int64_t>(timeout.count(), 0);
  poll = Poll{&op, {ns / kNsPerSecond, ns % kNsPerSecond}};
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&poll));

  io_uring_sqe* const poll_sqe = impl_->next_sqe();
  io_uring_prep_poll_add(poll_sqe, fd, events);
  io_uring_sqe_set_data64(poll_sqe, address | kPollTag);
  poll_sqe->flags |= IOSQE_IO_LINK;
  io_uring_sqe* const timeout_sqe = impl_->next_sqe();
  io_uring_prep_link_timeout(timeout_sqe, &poll.timeout, 0);
  io_uring_sqe_set_data64(timeout_sqe, address | kTimeoutTag);
  // Without memory for the second, the kernel starts the first alone, and refuses a timeout that comes later.
  if (!impl_->submit()) impl_->cancel(poll);
}

void UringReactor::post(Op& op, std::int32_t result) {
  if (!start(op, 0)) return;
  impl_->push_ready(Completion{&op, result});
}

Result<std::size_t> UringReactor::wait(std::span<Completion> out) {
  Impl& impl = *impl_;
  assert(in_flight_ > 0 && !out.empty());
  if (impl.broken == 0) impl.reap();
  while (impl.broken == 0 && impl.ready_count == 0) {
    assert(impl.cqes_due > 0);
    const int result = io_uring_submit_and_wait(&impl.ring, 1);
    if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) impl.broken = -result;
    impl.reap();
  }
  if (impl.broken != 0) return make_error(impl.broken, "io_uring_enter");
  const std::size_t count = std::min(out.size(), impl.ready_count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = impl.ready[impl.ready_first];
    impl.ready_first = (impl.ready_first + 1) % impl.ready.size();
    out[i].op->in_flight = false;
  }
  impl.ready_count -= count;
  in_flight_ -= count;
  return count;
}

std::uint64_t UringReactor::now_ns() {
  return monotonic_ns();
}

// False if the ring is broken: the Op stays in flight and wait() returns the reason.
bool UringReactor::start(Op& op, std::size_t cqes) {
  assert(!op.in_flight && in_flight_ < impl_->entries);
  op.in_flight = true;
  ++in_flight_;
  if (impl_->broken != 0) return false;
  impl_->cqes_due += cqes;
  return true;
}

Result<std::unique_ptr<Reactor>> make_reactor(unsigned entries, std::span<std::byte> arena,
                                              std::string& note) {
  auto uring = UringReactor::make(entries);
  if (uring) {
    if (auto registered = (*uring)->register_buffer(arena); !registered) {
      note = formatted(
          "I/O buffers cannot be registered with io_uring, so plain ones are used: {}; raise ulimit -l "
          "[SL-C13]",
          registered.error().what);
    }
    return std::unique_ptr<Reactor>(std::move(*uring));
  }
  // As many as the usual number of requests at the disk; more threads would only take turns.
  constexpr unsigned kMaxWorkers = 16;
  SLUICE_TRY_ASSIGN(auto threads, ThreadReactor::make(std::min(entries, kMaxWorkers), entries));
  note = formatted("io_uring is unavailable, so threads do the I/O, more slowly: {}; allow io_uring [SL-C14]",
                   uring.error().what);
  return std::unique_ptr<Reactor>(std::move(threads));
}

}  // namespace sluice
