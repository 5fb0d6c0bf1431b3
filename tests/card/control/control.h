// SPDX-License-Identifier: MIT
// What a test tells the card and asks it, one line each way: faults on demand and counters.
//
//   fence pass|hold|hang           fences of the kernel's rings (Faults::Fence)
//   sdma rate BYTES                bytes a second of processes, by each ring of a copy engine; 0: no limit
//   sdma hold on|off               jobs of processes wait in their IBs, those of the driver do not
//   sdma fault                     the next copy or fill of the kernel's SDMA rings is a VM fault
//   queue refuse-preemption on|off
//   queue waves N                  the next N unmappings of compute queues of processes leave words of waves
//   shaders hold N                 kernels stand after N more instructions; their waves can be saved
//   shaders go                     and go on
//   vram lost                      overwrites all of VRAM, as a reset of the GPU may
//   counters                       "ok register_reads=12 …", all of Counters
//
// The answer is "ok", with what was asked for, or "error: " and why; never more than one line. A command that
// is not one changes nothing. One thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "control/trace.h"
#include "faults.h"

namespace sluice::card {

class Control {
 public:
  static constexpr std::size_t kLongest = 1024;  // of a command, and of an answer

  // All outlive this.
  Control(Faults& faults, const Counters& counters, std::span<std::byte> vram, Trace& trace)
      : faults_(faults), counters_(counters), vram_(vram), trace_(trace) {}

  std::string run(std::string_view command);

 private:
  std::string counter_text() const;

  Faults& faults_;
  const Counters& counters_;
  std::span<std::byte> vram_;
  Trace& trace_;
};

}  // namespace sluice::card
