// SPDX-License-Identifier: MIT
#include "control/control.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <vector>

namespace sluice::card {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlank = " \t\r\n";
  while (true) {
    const std::size_t begin = text.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(kBlank), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

bool set_fence(std::string_view word, Faults& faults) {
  if (word == "pass") {
    faults.fence = Faults::Fence::kPass;
  } else if (word == "hold") {
    faults.fence = Faults::Fence::kHold;
  } else if (word == "hang") {
    faults.fence = Faults::Fence::kHang;
  } else {
    return false;
  }
  return true;
}

bool set_number(std::string_view word, std::uint64_t* number) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return false;
  *number = value;
  return true;
}

bool set_switch(std::string_view word, bool* value) {
  if (word != "on" && word != "off") return false;
  *value = word == "on";
  return true;
}

}  // namespace

std::string Control::run(std::string_view command) {
  if (trace_.on()) trace_.line("control: " + std::string(command.substr(0, kLongest)));
  const std::vector<std::string_view> words = words_of(command);
  const auto is = [&words](std::string_view first, std::string_view second) {
    return words.size() >= 2 && words[0] == first && words[1] == second;
  };
  bool done = false;
  if (words.size() == 1 && words[0] == "counters") return "ok" + counter_text();
  if (words.size() == 2 && words[0] == "fence") {
    done = set_fence(words[1], faults_);
  } else if (words.size() == 3 && is("sdma", "rate")) {
    done = set_number(words[2], &faults_.sdma_bytes_per_s);
  } else if (words.size() == 3 && is("sdma", "hold")) {
    done = set_switch(words[2], &faults_.hold_copies);
  } else if (words.size() == 2 && is("sdma", "fault")) {
    faults_.sdma_fault = done = true;
  } else if (words.size() == 3 && is("queue", "refuse-preemption")) {
    done = set_switch(words[2], &faults_.refuse_preemption);
  } else if (words.size() == 3 && is("queue", "waves")) {
    done = set_number(words[2], &faults_.stops_with_waves);
  } else if (words.size() == 3 && is("shaders", "hold")) {
    std::uint64_t instructions = 0;
    done = set_number(words[2], &instructions);
    if (done) faults_.shader_instructions_left = instructions;
  } else if (words.size() == 2 && is("shaders", "go")) {
    faults_.shader_instructions_left.reset();
    done = true;
  } else if (words.size() == 2 && is("vram", "lost")) {
    // Any pattern that nobody takes for memory that was cleared.
    std::memset(vram_.data(), 0xa5, vram_.size());
    done = true;
  }
  return done ? "ok"
              : "error: not a command: fence, sdma, queue, shaders, vram and counters are, as control.h has "
                "them";
}

std::string Control::counter_text() const {
  const struct {
    const char* name;
    std::uint64_t value;
  } all[] = {
      {"register_reads", counters_.register_reads},
      {"register_writes", counters_.register_writes},
      {"unknown_registers", counters_.unknown_registers},
      {"doorbells", counters_.doorbells},
      {"stray_doorbells", counters_.stray_doorbells},
      {"interrupts", counters_.interrupts},
      {"lost_interrupts", counters_.lost_interrupts},
      {"vm_faults", counters_.vm_faults},
      {"pm4_packets", counters_.pm4_packets},
      {"user_packets", counters_.user_packets},
      {"sdma_packets", counters_.sdma_packets},
      {"sdma_bytes", counters_.sdma_bytes},
      {"runlists", counters_.runlists},
      {"queues_mapped", counters_.queues_mapped},
      {"queues_unmapped", counters_.queues_unmapped},
      {"queues_stopped", counters_.queues_stopped},
      {"shader_instructions", counters_.shader_instructions},
      {"shader_holds", counters_.shader_holds},
      {"waves_saved", counters_.waves_saved},
      {"waves_resumed", counters_.waves_resumed},
  };
  static_assert(sizeof all / sizeof *all == sizeof(Counters) / sizeof(std::uint64_t), "one is missing");
  std::string text;
  for (const auto& each : all) text += std::string(" ") + each.name + "=" + std::to_string(each.value);
  return text;
}

}  // namespace sluice::card
