// SPDX-License-Identifier: MIT
// An address space whose faults need not stop an engine. The driver sets the hubs so that an access without
// memory is reported and then goes to a dummy page (VM_L2_PROTECTION_FAULT_CNTL: …_ENABLE_DEFAULT; with
// vm_fault_stop=2 it does not): what is read there is 0, what is written there is lost, and the engine goes
// on.
#pragma once

#include <functional>

#include "memory/packet_space.h"

namespace sluice::card {

class DummyPageSpace {
 public:
  // Is told each access that failed; true: it goes on with the dummy page.
  using Failed = std::function<bool(const Fault&)>;
  // Whether a copy or fill that begins now fails, on demand.
  using Asked = std::function<bool()>;

  // `real` outlives this.
  DummyPageSpace(PacketSpace& real, Failed failed, Asked asked);
  DummyPageSpace(const DummyPageSpace&) = delete;
  DummyPageSpace& operator=(const DummyPageSpace&) = delete;

  const pkt_space* c() const { return &table_; }

 private:
  // Whether an access whose callback answered `result` is over: done, or failed for good (*answer).
  bool over(int result, int* answer);
  bool asked_for(std::uint64_t address, int* answer);
  int read(std::uint64_t va, std::byte* to, std::uint64_t bytes);
  int write(std::uint64_t va, const std::byte* from, std::uint64_t bytes);
  int copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes);
  int fill(std::uint64_t to, std::uint32_t dword, std::uint64_t bytes);
  int add64(std::uint64_t va, std::uint64_t value);
  int probe(std::uint64_t va, std::uint64_t bytes, int write);

  PacketSpace& real_;
  Failed failed_;
  Asked asked_;
  pkt_space table_{};
};

}  // namespace sluice::card
