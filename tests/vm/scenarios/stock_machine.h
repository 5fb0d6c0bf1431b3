// SPDX-License-Identifier: MIT
// A machine whose GPUs are emulated cards that this kernel's own amdgpu drives. The cards are plugged in, and
// bound to the driver, for good: a machine is those of them that a device cgroup shows (hidden_gpus.h). The
// driver is loaded once in a boot, because that takes longer than most scenarios.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "card.h"
#include "kernel_calls.h"
#include "scenario_machine.h"

namespace sluice::vm_test {

class StockMachine final : public Machine {
 public:
  // Whether this guest has cards.
  static bool possible();
  // Before our module is loaded, which has its name. Does nothing where it is not loaded. REQUIRES: our
  // module is not loaded.
  static void remove_driver();

  StockMachine() = default;
  ~StockMachine() override;
  StockMachine(const StockMachine&) = delete;
  StockMachine& operator=(const StockMachine&) = delete;

  void load(const Gpus& wanted) override;
  bool loaded() const override { return !cards_.empty(); }
  // Leaves the driver and its cards as they are.
  bool unload() override;

  std::vector<std::uint32_t> gpu_ids() const override;
  std::uint64_t vram_bytes() const override;
  Usage usage() const override;
  std::optional<ProcessSeen> process(pid_t pid) const override;
  std::uint64_t criu_calls(std::uint32_t op) const override;
  std::uint64_t copies_begun(unsigned gpu) const override;

  void set_engine_rate(unsigned gpu, std::uint64_t bytes_per_s) override;
  void hold_copies(unsigned gpu) override;
  void let_copies_end() override;
  bool holds_a_copy(unsigned gpu) const override;

  // Kernels of its cards stand after so many more instructions, until let_kernels_go(). REQUIRES: loaded().
  void hold_kernels(std::uint64_t instructions);
  void let_kernels_go();
  // A counter of the cards (tests/card/faults.h), of all together.
  std::uint64_t counted(const std::string& counter) const;

  std::uint32_t kfd_version() const override;
  bool lists_handles() const override;
  bool changes_handles() const override { return false; }  // up to 7.2 it is an invalid ioctl (drm_ioctl.c)
  bool has_svm() const override;
  std::uint32_t bo_record_bytes() const override;

 private:
  // The cards do again what they do by themselves.
  void end_meddling();

  std::vector<Card> cards_;  // those that are bound, by render minor
  std::optional<CriuOperations> operations_;
  bool meddled_ = false;
};

}  // namespace sluice::vm_test
