// SPDX-License-Identifier: MIT
// A reactor one of whose reads or writes is not what it says: the bytes are damaged, another place's, an
// older dump's, a part of what was asked for, or nowhere. The lie is told as success. Thread-bound.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "corruption/damage.h"
#include "support/forwarding_reactor.h"
#include "support/rng.h"

namespace sluice::corruption_test {

enum class Lie : std::uint8_t {
  ReadFlipped,      // a bit
  ReadMisdirected,  // another place of the file
  ReadStale,        // the place in an older dump's file of this name
  ReadZeros,
  ReadPartial,  // behind a point the buffer is what it was before
  ReadShort,    // and says so: no lie
  WriteFlipped,
  WriteMisdirected,
  WriteLost,
  WriteTorn,   // up to a point
  WriteShort,  // and says so
};
inline constexpr std::array<const char*, 11> kLies{
    "read: a bit",  "read: misdirected",  "read: stale", "read: zeros", "read: partial", "read: short",
    "write: a bit", "write: misdirected", "write: lost", "write: torn", "write: short"};
inline constexpr Lie kFirstWriteLie = Lie::WriteFlipped;
inline bool is_short(Lie lie) {
  return lie == Lie::ReadShort || lie == Lie::WriteShort;
}

class LyingReactor final : public test::ForwardingReactor {
 public:
  // Lies in the `at`-th read, or write, from 0. `older`: for ReadStale, borrowed.
  LyingReactor(Reactor& inner, Lie lie, std::uint64_t at, const DirectoryCopy& older, std::uint64_t seed)
      : ForwardingReactor(inner), lie_(lie), at_(at), older_(older), rng_(seed) {}

  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override;
  void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) override;
  Result<std::size_t> wait(std::span<Completion> out) override;

  // Reads, or writes, so far: those that it would lie in.
  std::uint64_t seen() const { return seen_; }

  // Where it lied: the file by the name that it gets. Nothing: that many reads or writes did not come.
  const std::vector<Place>& told() const { return told_; }

 private:
  bool is_turn(bool write);
  void spoil(std::span<std::byte> got);

  Lie lie_;
  std::uint64_t at_;
  std::uint64_t seen_ = 0;
  const DirectoryCopy& older_;
  test::Rng rng_;
  std::vector<Place> told_;
  const Op* op_ = nullptr;  // the one that was lied about, in flight
  int fd_ = -1;
  std::span<std::byte> buffer_;     // of a read
  test::Bytes before_;              // what it held
  std::int32_t answer_ = 0;         // of a write
  std::vector<std::byte> instead_;  // bytes of a write
};

}  // namespace sluice::corruption_test
