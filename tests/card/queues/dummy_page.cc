// SPDX-License-Identifier: MIT
#include "queues/dummy_page.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "memory/memory.h"

namespace sluice::card {

namespace {

DummyPageSpace& me(void* self) {
  return *static_cast<DummyPageSpace*>(self);
}

std::uint64_t to_end_of_page(std::uint64_t va, std::uint64_t bytes) {
  return std::min(bytes, kPageBytes - va % kPageBytes);
}

}  // namespace

DummyPageSpace::DummyPageSpace(PacketSpace& real, Failed failed, Asked asked)
    : real_(real), failed_(std::move(failed)), asked_(std::move(asked)) {
  table_.self = this;
  table_.read = [](void* self, std::uint64_t va, void* to, std::uint64_t bytes) {
    return me(self).read(va, static_cast<std::byte*>(to), bytes);
  };
  table_.write = [](void* self, std::uint64_t va, const void* from, std::uint64_t bytes) {
    return me(self).write(va, static_cast<const std::byte*>(from), bytes);
  };
  table_.copy = [](void* self, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    return me(self).copy(to, from, bytes);
  };
  table_.fill = [](void* self, std::uint64_t to, std::uint32_t dword, std::uint64_t bytes) {
    return me(self).fill(to, dword, bytes);
  };
  table_.add64 = [](void* self, std::uint64_t va, std::uint64_t value) { return me(self).add64(va, value); };
  table_.probe = [](void* self, std::uint64_t va, std::uint64_t bytes, int write) {
    return me(self).probe(va, bytes, write);
  };
}

bool DummyPageSpace::over(int result, int* answer) {
  *answer = 0;
  if (result == 0) return true;
  const std::optional<Fault> fault = real_.take_fault();
  if (fault && failed_(*fault)) return false;
  *answer = 1;
  return true;
}

bool DummyPageSpace::asked_for(std::uint64_t address, int* answer) {
  if (!asked_()) return false;
  const AddressSpace& space = real_.space();
  Fault fault;
  fault.hub = space.hub();
  fault.access = Access::kWrite;
  fault.vmid = space.vmid();
  fault.pasid = space.pasid();
  fault.address = address;
  *answer = failed_(fault) ? 0 : 1;
  return true;
}

int DummyPageSpace::add64(std::uint64_t va, std::uint64_t value) {
  int answer = 0;
  (void)over(real_.c()->add64(real_.c()->self, va, value), &answer);
  return answer;
}

int DummyPageSpace::probe(std::uint64_t va, std::uint64_t bytes, int write) {
  int answer = 0;
  (void)over(real_.c()->probe(real_.c()->self, va, bytes, write), &answer);
  return answer;
}

// The whole at once; only where that fails, page by page.

int DummyPageSpace::read(std::uint64_t va, std::byte* to, std::uint64_t bytes) {
  const pkt_space* real = real_.c();
  int answer = 0;
  if (over(real->read(real->self, va, to, bytes), &answer)) return answer;
  while (bytes > 0) {
    const std::uint64_t piece = to_end_of_page(va, bytes);
    if (real->read(real->self, va, to, piece) != 0) std::memset(to, 0, piece);
    va += piece;
    to += piece;
    bytes -= piece;
  }
  (void)real_.take_fault();
  return 0;
}

int DummyPageSpace::write(std::uint64_t va, const std::byte* from, std::uint64_t bytes) {
  const pkt_space* real = real_.c();
  int answer = 0;
  if (over(real->write(real->self, va, from, bytes), &answer)) return answer;
  while (bytes > 0) {
    const std::uint64_t piece = to_end_of_page(va, bytes);
    (void)real->write(real->self, va, from, piece);
    va += piece;
    from += piece;
    bytes -= piece;
  }
  (void)real_.take_fault();
  return 0;
}

int DummyPageSpace::copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
  const pkt_space* real = real_.c();
  int answer = 0;
  if (asked_for(to, &answer) || over(real->copy(real->self, to, from, bytes), &answer)) return answer;
  while (bytes > 0) {
    const std::uint64_t piece = to_end_of_page(to, to_end_of_page(from, bytes));
    if (real->copy(real->self, to, from, piece) != 0) {
      const std::optional<Fault> fault = real_.take_fault();
      if (fault && fault->access == Access::kRead) (void)real->fill(real->self, to, 0, piece);
    }
    to += piece;
    from += piece;
    bytes -= piece;
  }
  (void)real_.take_fault();
  return 0;
}

int DummyPageSpace::fill(std::uint64_t to, std::uint32_t dword, std::uint64_t bytes) {
  const pkt_space* real = real_.c();
  int answer = 0;
  if (asked_for(to, &answer) || over(real->fill(real->self, to, dword, bytes), &answer)) return answer;
  while (bytes > 0) {
    const std::uint64_t piece = to_end_of_page(to, bytes);
    (void)real->fill(real->self, to, dword, piece);
    dword = std::rotr(dword, static_cast<int>(8 * (piece % 4)));  // where the next page goes on
    to += piece;
    bytes -= piece;
  }
  (void)real_.take_fault();
  return 0;
}

}  // namespace sluice::card
