// SPDX-License-Identifier: MIT
// The machine that was measured, as far as readers need it to judge the figures. Plain values; unknown ones
// are empty.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::bench {

struct Machine {
  std::string cpu;  // model name
  unsigned cores = 0;
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  std::string virtualisation;  // the hypervisor's vendor and product; empty: none visible
  std::string file_system;     // of the directory, with its mount options: "ext4 (rw,relatime)"
  std::string disk;            // name, model or driver of the block device below: "vda (virtio_blk)"
  std::string rotational;      // "yes" or "no", from the kernel
  std::string scheduler;       // the I/O scheduler in use: "none"
  std::string date;            // UTC, ISO 8601
  std::string commit;          // of the build
};

// This machine and the disk below `directory`.
Machine machine_of(const std::filesystem::path& directory);

nlohmann::ordered_json json_of(const Machine& machine);
// Two lines for people.
std::string text_of(const Machine& machine);

// How much of the processors other processes (and a hypervisor's other guests) use.
class OthersMeter {
 public:
  OthersMeter();
  // Cores busy, on average since the meter was made, except for this process and its children.
  double cores() const;

 private:
  double busy_, own_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace sluice::bench
