// SPDX-License-Identifier: MIT
// The machine that a scenario runs on: its GPUs are emulated cards that this kernel's own amdgpu drives. The
// cards are plugged in, and bound to the driver, for good: a machine is those of them that a device cgroup
// shows (hidden_gpus.h). The driver is loaded once in a boot, because that takes longer than most scenarios.
//
// Thread-bound; failures throw std::runtime_error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "card.h"
#include "kernel_calls.h"
#include "process.h"

namespace sluice::vm_test {

// The GPUs that a scenario wants.
struct Gpus {
  unsigned number = 2;
  // Each has at least so much VRAM.
  unsigned vram_mib = 64;
  // 0: the machine that all scenarios start on. Others have GPUs of the same kind with other gpu_ids and
  // other minors than any with a lower number.
  unsigned machine = 0;
  // Of the same kind, with less VRAM than the GPUs of machine 0.
  bool small = false;
  // What an MI300X is: one GPU, a GPU for each die (then `number` counts cards), or what this kernel
  // restores: one GPU, or the first of the dies.
  enum class Each { Usual, Whole, Dies } each = Each::Usual;
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
  Machine() = default;
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Makes it so. What is as wanted already stays as it is.
  void load(const Gpus& wanted);
  bool loaded() const { return !cards_.empty(); }
  // The end of a scenario. The driver and its cards stay as they are.
  void unload();

  // ---- looking. REQUIRES: loaded().
  // By render minor, ascending.
  std::vector<std::uint32_t> gpu_ids() const;
  std::uint64_t vram_bytes() const;             // of a GPU
  std::uint64_t free_vram(unsigned gpu) const;  // of a card
  Usage usage() const;
  // Nothing: the KFD knows no such process.
  std::optional<ProcessSeen> process(pid_t pid) const;
  // How often a CRIU operation of the KFD was asked for since load().
  std::uint64_t criu_calls(std::uint32_t op) const;
  // How many jobs the copy engines of a GPU have been given so far.
  std::uint64_t copies_begun(unsigned gpu) const;
  // A counter of the cards (tests/card/faults.h), of all together.
  std::uint64_t counted(const std::string& counter) const;

  // ---- meddling. GPUs are counted by render minor, from 0; where they are divided, cards are.
  void set_engine_rate(unsigned gpu, std::uint64_t bytes_per_s);  // 0: as fast as it goes
  // Copies of this GPU do not end before let_copies_end().
  void hold_copies(unsigned gpu);
  void let_copies_end();
  // Whether one of them is in the engine.
  bool holds_a_copy(unsigned gpu) const;
  // Kernels of its cards stand after so many more instructions, until let_kernels_go().
  void hold_kernels(std::uint64_t instructions);
  void let_kernels_go();

 private:
  // The cards do again what they do by themselves.
  void end_meddling();

  std::vector<Card> cards_;  // by render minor
  std::optional<CriuOperations> operations_;
  bool meddled_ = false;
};

// The driver is not Linux's own, but one that somebody gave (scripts/vm --modules).
bool driver_is_given();

// ---- what this kernel has. The first two REQUIRE a loaded machine, because a given driver is asked.
// EXPORT_DMABUF of the KFD.
bool kfd_exports();
// The BOs of a render file are listed, with their GPU maps.
bool kernel_lists_handles();
bool kernel_has_svm();
// Bytes of private data that CHECKPOINT keeps with a BO.
std::uint32_t bo_record_bytes();

}  // namespace sluice::vm_test
