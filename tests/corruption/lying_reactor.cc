// SPDX-License-Identifier: MIT
#include "corruption/lying_reactor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/unique_fd.h"
#include "base/units.h"
#include "corruption/basics.h"
#include "pipeline/slot.h"

namespace sluice::corruption_test {

using test::Bytes;

namespace {

constexpr std::uint64_t kSector = 512;

// The name that the file gets, or has.
std::string name_of(int fd) {
  std::array<char, 4096> path{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  std::string name(path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  name.erase(0, name.rfind('/') + 1);
  if (name.ends_with(".tmp")) name.resize(name.size() - 4);
  return name;
}

std::uint64_t bytes_of(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 ? static_cast<std::uint64_t>(st.st_size) : 0;
}

// Whole sectors, fewer than `bytes`; 0 where there are none.
std::uint64_t fewer(std::uint64_t bytes, test::Rng& rng) {
  return bytes <= kSector ? 0 : rng.between(0, (bytes - 1) / kSector) * kSector;
}

}  // namespace

bool LyingReactor::is_turn(bool write) {
  if (write != (lie_ >= kFirstWriteLie)) return false;
  return seen_++ == at_;
}

void LyingReactor::read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) {
  if (is_turn(false)) {
    told_.push_back({name_of(fd), offset, offset + buffer.size()});
    if (lie_ == Lie::ReadShort) {
      if (buffer.size() > kPage) buffer = buffer.first(std::max(fewer(buffer.size(), rng_), kPage));
    } else {
      op_ = &op;
      fd_ = fd;
      buffer_ = buffer;
      before_.assign(buffer.begin(), buffer.end());
    }
  }
  ForwardingReactor::read(op, fd, buffer, offset);
}

void LyingReactor::write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) {
  if (!is_turn(true)) return ForwardingReactor::write(op, fd, buffer, offset);
  told_.push_back({name_of(fd), offset, offset + buffer.size()});
  op_ = &op;
  answer_ = static_cast<std::int32_t>(buffer.size());
  switch (lie_) {
    case Lie::WriteFlipped: {
      instead_.resize(buffer.size() + kBufferAlignment);
      void* memory = instead_.data();
      std::size_t room = instead_.size();
      auto* const bytes = static_cast<std::byte*>(std::align(kBufferAlignment, buffer.size(), memory, room));
      std::copy(buffer.begin(), buffer.end(), bytes);
      bytes[rng_.between(0, buffer.size() - 1)] ^= std::byte{1} << rng_.between(0, 7);
      return ForwardingReactor::write(op, fd, {bytes, buffer.size()}, offset);
    }
    case Lie::WriteMisdirected: {
      const std::uint64_t last = align_down(bytes_of(fd) - std::min(bytes_of(fd), buffer.size()), kPage);
      const std::uint64_t elsewhere = rng_.between(0, last / kPage) * kPage;
      told_.push_back({told_[0].file, elsewhere, elsewhere + buffer.size()});
      return ForwardingReactor::write(op, fd, buffer, elsewhere);
    }
    case Lie::WriteLost:
      return post(op, answer_);
    case Lie::WriteTorn: {
      const std::uint64_t bytes = fewer(buffer.size(), rng_);
      if (bytes == 0) return post(op, answer_);
      return ForwardingReactor::write(op, fd, buffer.first(bytes), offset);
    }
    default:
      op_ = nullptr;
      if (buffer.size() > kPage) buffer = buffer.first(std::max(fewer(buffer.size(), rng_), kPage));
      return ForwardingReactor::write(op, fd, buffer, offset);
  }
}

Result<std::size_t> LyingReactor::wait(std::span<Completion> out) {
  SLUICE_TRY_ASSIGN(const std::size_t count, ForwardingReactor::wait(out));
  for (Completion& completion : out.first(count)) {
    if (completion.op != op_) continue;
    op_ = nullptr;
    if (lie_ >= kFirstWriteLie) {
      completion.result = answer_;
    } else if (completion.result > 0) {
      spoil(buffer_.first(static_cast<std::size_t>(completion.result)));
    }
  }
  return count;
}

void LyingReactor::spoil(std::span<std::byte> got) {
  const std::uint64_t offset = told_[0].begin;
  switch (lie_) {
    case Lie::ReadFlipped:
      got[rng_.between(0, got.size() - 1)] ^= std::byte{1} << rng_.between(0, 7);
      return;
    case Lie::ReadMisdirected: {
      const UniqueFd plain(::open(("/proc/self/fd/" + std::to_string(fd_)).c_str(), O_RDONLY | O_CLOEXEC));
      const std::uint64_t last = bytes_of(fd_) - std::min<std::uint64_t>(bytes_of(fd_), got.size());
      const std::uint64_t elsewhere = rng_.between(0, last / kSector) * kSector;
      (void)!::pread(plain.get(), got.data(), got.size(), static_cast<off_t>(elsewhere));
      return;
    }
    case Lie::ReadStale: {
      const auto older = older_.files().find(told_[0].file);
      if (older == older_.files().end() || older->second.bytes.size() < offset + got.size()) return;
      std::copy_n(older->second.bytes.begin() + static_cast<long>(offset), got.size(), got.begin());
      return;
    }
    case Lie::ReadZeros:
      std::fill(got.begin(), got.end(), std::byte{0});
      return;
    default: {
      const std::uint64_t good = fewer(got.size(), rng_);
      std::copy(before_.begin() + static_cast<long>(good), before_.begin() + static_cast<long>(got.size()),
                got.begin() + static_cast<long>(good));
    }
  }
}

}  // namespace sluice::corruption_test
