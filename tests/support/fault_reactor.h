// SPDX-License-Identifier: MIT
// A real reactor that fails, shortens or empties the n-th read or write, or whose n-th wait() fails as if the
// ring had broken. A sync counts where operations fail: it moves nothing that could be less. Everything else
// is forwarded. After a broken wait() the destructor lets the real reactor come to rest, so that the kernel
// is done with the memory before the test frees it. Thread-bound.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "support/forwarding_reactor.h"

namespace sluice::test {

enum class Fault { Error, Short, Interrupted, Nothing, BrokenRing };

class FaultReactor final : public ForwardingReactor {
 public:
  // `err`: for Error.
  FaultReactor(std::unique_ptr<Reactor> inner, Fault fault, std::uint64_t at, int err)
      : ForwardingReactor(*inner), inner_(std::move(inner)), fault_(fault), at_(at), err_(err) {}
  ~FaultReactor() override {
    std::array<Completion, 16> ignored;
    while (inner_->in_flight() > 0 && inner_->wait(ignored)) {
    }
  }

  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override {
    if (const auto result = inject()) return post(op, *result);
    ForwardingReactor::read(op, fd, shorten_ ? buffer.first(shorter(buffer.size())) : buffer, offset);
  }
  void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) override {
    if (const auto result = inject()) return post(op, *result);
    ForwardingReactor::write(op, fd, shorten_ ? buffer.first(shorter(buffer.size())) : buffer, offset);
  }
  void sync_data(Op& op, int fd) override {
    const auto result = fault_ == Fault::Error ? inject() : nullptr;
    if (result != nullptr) return post(op, *result);
    ForwardingReactor::sync_data(op, fd);
  }
  Result<std::size_t> wait(std::span<Completion> out) override {
    if (fault_ == Fault::BrokenRing && (fired_ || seen_++ == at_)) {
      fired_ = true;
      return make_error(EIO, "the ring broke");
    }
    return ForwardingReactor::wait(out);
  }

  bool fired() const { return fired_; }

 private:
  // A page at most, so that direct I/O takes it too.
  static std::size_t shorter(std::size_t bytes) { return bytes > 8192 ? 4096 : bytes; }

  // What to answer instead of a transfer; nothing: transfer, shortened if shorten_.
  const std::int32_t* inject() {
    shorten_ = false;
    if (fault_ == Fault::BrokenRing || seen_++ != at_) return nullptr;
    fired_ = true;
    shorten_ = fault_ == Fault::Short;
    answer_ = fault_ == Fault::Error ? -err_ : fault_ == Fault::Interrupted ? -EINTR : 0;
    return shorten_ ? nullptr : &answer_;
  }

  std::unique_ptr<Reactor> inner_;
  Fault fault_;
  std::uint64_t at_;
  int err_;
  std::uint64_t seen_ = 0;
  std::int32_t answer_ = 0;
  bool shorten_ = false;
  bool fired_ = false;
};

}  // namespace sluice::test
