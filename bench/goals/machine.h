// SPDX-License-Identifier: MIT
// The machine that figures were measured on, as far as a reader needs it to judge them. Plain values; what
// cannot be found out is empty.
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
  std::string virtualisation;  // the hypervisor's vendor and product; empty: none that can be seen
  std::string file_system;     // of the directory, with its mount options: "ext4 (rw,relatime)"
  std::string disk;            // name, model or driver of the block device beneath: "vda (virtio_blk)"
  std::string rotational;      // "yes" or "no", as the kernel says
  std::string scheduler;       // the I/O scheduler in use: "none"
  std::string date;            // UTC, ISO 8601
  std::string commit;          // what was built
};

// This machine and the disk beneath `directory`.
Machine machine_of(const std::filesystem::path& directory);

nlohmann::ordered_json json_of(const Machine& machine);
// Two lines for people.
std::string text_of(const Machine& machine);

// What other processes (and a hypervisor's other guests) take of the processors.
class OthersMeter {
 public:
  OthersMeter();
  // Cores kept busy, on average since the meter was made, by all but this process and its children.
  double cores() const;

 private:
  double busy_, own_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace sluice::bench
