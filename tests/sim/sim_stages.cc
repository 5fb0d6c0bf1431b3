// SPDX-License-Identifier: MIT
#include "sim/sim_stages.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "support/seeds.h"

namespace sluice::sim {

Result<Submit> SimCopy::submit(Slot& slot) {
  if (running_ == options_.depth) return Submit::Busy;
  if (slot.chunk.index == options_.bad_chunk) test::fail("a corrupt chunk came to the copy stage");
  ++running_;
  if (direction_ == Direction::Dump) std::memset(slot.buffer.data(), 0xdb, slot.buffer.size());
  slot.failed_result = 0;
  slot.live_ops = static_cast<std::uint32_t>(rng_.between(1, kOpsPerSlot));
  for (std::uint32_t i = 0; i < slot.live_ops; ++i) {
    const bool fails = ops_++ == options_.fail_op;
    fault_fired_ = fault_fired_ || fails;
    reactor_.after(slot.ops[i], rng_.between(1, options_.latency_ns_max), fails ? -EREMOTEIO : 0);
  }
  return Submit::Started;
}

Result<Progress> SimCopy::advance(Slot& slot, Op& /*op*/, std::int32_t result) {
  if (result < 0) slot.failed_result = result;
  if (--slot.live_ops > 0) return Progress::Pending;
  --running_;
  if (slot.failed_result < 0)
    return make_error(-slot.failed_result, "copy of chunk " + std::to_string(slot.chunk.index));
  test::move_chunk(direction_, layout_, bos_, slot);
  if (direction_ == Direction::Restore) std::memset(slot.buffer.data(), 0xdc, slot.buffer.size());
  return Progress::Done;
}

Result<UniqueFd> StreamPeer::open() {
  std::array<int, 2> ends{};
  const bool narrow = rng_.percent(50);
  const int made = narrow ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data())
                          : ::pipe2(ends.data(), O_CLOEXEC);
  if (made != 0) return make_error(errno, "a stream");
  if (narrow) {
    for (const int end : ends) {
      const int bytes = 1;  // the least that the kernel gives
      (void)::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
  }
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  end_ = std::move(direction_ == Direction::Dump ? reader : writer);
  if (::fcntl(end_.get(), F_SETFL, O_NONBLOCK) != 0) return make_error(errno, "a stream");
  return std::move(direction_ == Direction::Dump ? writer : reader);
}

void StreamPeer::step() {
  if (!end_ || rng_.percent(30)) return;
  if (direction_ == Direction::Dump) {
    (void)take();
  } else {
    give();
  }
}

void StreamPeer::drain() {
  while (direction_ == Direction::Dump && end_ && take()) {
  }
}

bool StreamPeer::take() {
  test::Bytes some(rng_.between(1, 128 * kKiB));
  const ssize_t got = ::read(end_.get(), some.data(), some.size());
  if (got < 0) return false;
  bytes_.insert(bytes_.end(), some.begin(), some.begin() + got);
  if (got == 0 || (manner_ == Manner::Dies && bytes_.size() >= at_)) end_.reset();
  return got > 0;
}

void StreamPeer::give() {
  const std::uint64_t total = manner_ == Manner::EndsEarly ? at_ : bytes_.size();
  const std::uint64_t most = std::min(rng_.between(1, 128 * kKiB), total - given_);
  if (most > 0) {
    const ssize_t gave = ::write(end_.get(), &bytes_[given_], most);
    if (gave < 0) return;
    given_ += static_cast<std::uint64_t>(gave);
  }
  if (given_ < total) return;
  if (manner_ == Manner::HasMore && ::write(end_.get(), "", 1) != 1) return;
  end_.reset();
}

}  // namespace sluice::sim
