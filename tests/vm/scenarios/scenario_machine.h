// SPDX-License-Identifier: MIT
// The machine that a scenario runs on, with either driver: this kernel's own amdgpu on emulated cards
// (stock_machine.h), or our module with its virtual GPUs (module_machine.h). Which of the two: drivers.h.
//
// Scenarios say what they need and look through this interface; what only our module can do is in
// ModuleMachine. Thread-bound; failures throw std::runtime_error.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "process.h"

namespace sluice::vm_test {

// The GPUs that a scenario wants.
struct Gpus {
  unsigned number = 2;
  // Each has at least so much VRAM. Our module's have just that, and as much GTT unless said otherwise.
  unsigned vram_mib = 64;
  unsigned gtt_mib = 0;
  // More GPUs than that do not matter.
  bool more_do_not_matter = false;
  // 0: the machine that all scenarios start on. Others have GPUs of the same kind with other gpu_ids and
  // other minors than any with a lower number.
  unsigned machine = 0;
  // Of machine 0, with the order of its GPUs turned round: each has the minor and the node of the other.
  bool reversed = false;
  // Of the same kind, with less VRAM than the GPUs of machine 0.
  bool small = false;
  // Options of vamdgpu-load, for scenarios that run on our module where they need them; and those that make
  // its machine like the one of AMD's driver.
  Strings ours = {};
  Strings ours_too = {};
};

// What is in use. Two of these are compared: a scenario leaves nothing behind. There may be less than before,
// because the kernel may still have closed files of an earlier scenario then.
struct Usage {
  std::map<std::string, std::uint64_t> numbers;
  bool is_within(const Usage& most) const;
};
std::string describe(const Usage& usage);

struct QueueSeen {
  std::uint32_t id = 0, gpu_id = 0, type = 0;
  std::uint64_t ring_bytes = 0;
  auto operator<=>(const QueueSeen&) const = default;
};

// A process of the KFD, as the kernel shows it.
struct ProcessSeen {
  std::set<std::uint32_t> gpu_ids;              // that it can use
  std::map<std::uint32_t, std::uint64_t> vram;  // gpu_id -> bytes
  std::vector<QueueSeen> queues;                // sorted

  // Those where it has VRAM.
  std::set<std::uint32_t> gpus_with_vram() const;
};

class Machine {
 public:
  virtual ~Machine() = default;

  // Makes it so. What is as wanted already stays as it is.
  virtual void load(const Gpus& wanted) = 0;
  virtual bool loaded() const = 0;
  // The end of a scenario. False when the kernel refuses: something is still in use.
  virtual bool unload() = 0;

  // ---- looking. REQUIRES: loaded().
  // By render minor, ascending.
  virtual std::vector<std::uint32_t> gpu_ids() const = 0;
  virtual std::uint64_t vram_bytes() const = 0;  // of a GPU
  virtual Usage usage() const = 0;
  // Nothing: the KFD knows no such process.
  virtual std::optional<ProcessSeen> process(pid_t pid) const = 0;
  // How often a CRIU operation of the KFD was asked for since load().
  virtual std::uint64_t criu_calls(std::uint32_t op) const = 0;
  // How many jobs the copy engines of a GPU have been given so far.
  virtual std::uint64_t copies_begun(unsigned gpu) const = 0;

  // ---- meddling. GPUs are counted by render minor, from 0.
  virtual void set_engine_rate(unsigned gpu, std::uint64_t bytes_per_s) = 0;  // 0: as fast as it goes
  // Copies of this GPU do not end before let_copies_end().
  virtual void hold_copies(unsigned gpu) = 0;
  virtual void let_copies_end() = 0;
  // Whether one of them is in the engine.
  virtual bool holds_a_copy(unsigned gpu) const = 0;

  // ---- what its kernel has
  // Minor number of the KFD's version: 1.<this>.
  virtual std::uint32_t kfd_version() const = 0;
  virtual bool lists_handles() const = 0;
  virtual bool changes_handles() const = 0;
  virtual bool has_svm() const = 0;
  // Bytes of private data that CHECKPOINT keeps with a BO.
  virtual std::uint32_t bo_record_bytes() const = 0;
};

}  // namespace sluice::vm_test
