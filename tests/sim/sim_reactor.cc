// SPDX-License-Identifier: MIT
#include "sim/sim_reactor.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/units.h"
#include "support/seeds.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kDirectAlignment = 512;  // every direct file system asks for at least this

}  // namespace

int SimReactor::buffered(int fd) {
  UniqueFd& own = buffered_[fd];
  if (!own) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    own = UniqueFd(::open(path.c_str(), (::fcntl(fd, F_GETFL) & O_ACCMODE) | O_CLOEXEC));
    if (!own) test::fail("cannot open the file behind a descriptor");
  }
  return own.get();
}

void SimReactor::check_alignment(int fd, const void* data, std::size_t bytes, std::uint64_t offset) {
  if (offset == kStream || (::fcntl(fd, F_GETFL) & O_DIRECT) == 0) return;
  if (!is_aligned(reinterpret_cast<std::uintptr_t>(data), kDirectAlignment) ||
      !is_aligned(bytes, kDirectAlignment) || !is_aligned(offset, kDirectAlignment)) {
    test::fail("direct I/O that is not aligned");
  }
}

void SimReactor::start(Pending pending, std::uint64_t latency_ns) {
  if (pending.op->in_flight) test::fail("an Op was started twice");
  pending.op->in_flight = true;
  ++in_flight_;
  pending.due_ns = now_ns_ + latency_ns;
  pending.order = started_++;
  const auto later = [](const Pending& a, const Pending& b) {
    return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.order > b.order;
  };
  pending_.push_back(pending);
  std::push_heap(pending_.begin(), pending_.end(), later);
}

void SimReactor::read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) {
  check_alignment(fd, buffer.data(), buffer.size(), offset);
  std::memset(buffer.data(), 0xee, buffer.size());  // whoever looks before the completion sees this
  start(Pending{0, 0, Kind::Read, 0, &op, fd, buffer.data(), buffer.size(), offset, 0, {}},
        rng_.between(1, latency_ns_max_));
}

void SimReactor::write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) {
  check_alignment(fd, buffer.data(), buffer.size(), offset);
  start(Pending{0, 0, Kind::Write, 0, &op, fd, const_cast<std::byte*>(buffer.data()), buffer.size(), offset,
                0, sum_of(buffer)},
        rng_.between(1, latency_ns_max_));
}

void SimReactor::sync_data(Op& op, int fd) {
  start(Pending{0, 0, Kind::Sync, 0, &op, fd, nullptr, 0, 0, 0, {}}, rng_.between(1, latency_ns_max_));
}

void SimReactor::poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) {
  poll(op, fd, POLLIN, timeout);
}

void SimReactor::poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) {
  poll(op, fd, POLLOUT, timeout);
}

void SimReactor::poll(Op& op, int fd, short events, std::chrono::nanoseconds timeout) {
  start(Pending{0, 0, Kind::Poll, events, &op, fd, nullptr, 0, 0, 0, {}},
        std::min(rng_.between(1, latency_ns_max_), static_cast<std::uint64_t>(timeout.count())));
}

void SimReactor::post(Op& op, std::int32_t result) {
  after(op, 0, result);
}

void SimReactor::after(Op& op, std::uint64_t latency_ns, std::int32_t result) {
  start(Pending{0, 0, Kind::Result, 0, &op, -1, nullptr, 0, 0, result, {}}, latency_ns);
}

std::int32_t SimReactor::carry_out(const Pending& pending) {
  if (pending.kind == Kind::Result) return pending.result;
  if (pending.kind == Kind::Poll) {
    pollfd look{pending.fd, pending.events, 0};
    return ::poll(&look, 1, 0) > 0 ? 0 : -ETIME;
  }
  if (transfers_++ == faults_.fail_op) {
    fault_fired_ = true;
    return -faults_.fail_errno;
  }
  if (pending.kind == Kind::Sync) return 0;
  if (rng_.percent(faults_.stall_percent)) return rng_.percent(50) ? -EAGAIN : -EINTR;
  std::size_t bytes = pending.bytes;
  if (bytes > 1 && rng_.percent(faults_.short_percent))
    bytes = static_cast<std::size_t>(rng_.between(1, bytes - 1));
  const auto offset = static_cast<off_t>(pending.offset);
  const bool stream = pending.offset == kStream;
  if (pending.kind == Kind::Read && stream) {
    const ssize_t got = ::read(pending.fd, pending.data, bytes);
    return got < 0 ? -errno : static_cast<std::int32_t>(got);
  }
  if (pending.kind == Kind::Read) {
    return static_cast<std::int32_t>(::pread(buffered(pending.fd), pending.data, bytes, offset));
  }
  if (sum_of(std::span<const std::byte>(pending.data, pending.bytes)) != pending.sum) {
    test::fail("a buffer changed while it was being written");
  }
  if (stream) {
    const ssize_t taken = ::write(pending.fd, pending.data, bytes);
    return taken < 0 ? -errno : static_cast<std::int32_t>(taken);
  }
  if (::pwrite(buffered(pending.fd), pending.data, bytes, offset) != static_cast<ssize_t>(bytes)) {
    test::fail("the file could not be written");
  }
  const std::size_t end = static_cast<std::size_t>(pending.offset) + bytes;
  if (written_.size() < end) written_.resize(end);
  for (std::size_t at = end - bytes; at < end; ++at) ++written_[at];
  return static_cast<std::int32_t>(bytes);
}

Result<std::size_t> SimReactor::wait(std::span<Completion> out) {
  if (pending_.empty()) test::fail("the loop waits with nothing in flight");
  if (on_step) on_step();
  if (broke_ || steps_++ == faults_.break_wait) {
    broke_ = true;
    return make_error(EIO, "the simulated ring broke");
  }
  const auto later = [](const Pending& a, const Pending& b) {
    return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.order > b.order;
  };
  // At least one; then those of the same instant, and sometimes a few more that "were already there".
  const std::size_t most = std::min<std::size_t>(out.size(), rng_.between(1, 4));
  std::size_t count = 0;
  while (count < most && !pending_.empty()) {
    std::pop_heap(pending_.begin(), pending_.end(), later);
    const Pending pending = pending_.back();
    pending_.pop_back();
    now_ns_ = std::max(now_ns_, pending.due_ns);
    out[count++] = Completion{pending.op, carry_out(pending)};
    pending.op->in_flight = false;
    --in_flight_;
  }
  return count;
}

}  // namespace sluice::sim
