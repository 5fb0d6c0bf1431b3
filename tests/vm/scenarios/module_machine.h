// SPDX-License-Identifier: MIT
// A machine with the virtual GPUs of our module, loaded with a description and unloaded again, and a look
// into it. At most one is loaded. AMD's driver has the same name: where it is loaded it goes first, for good.
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "control.h"
#include "scenario_machine.h"

namespace sluice::vm_test {

class ModuleMachine final : public Machine {
 public:
  ModuleMachine() = default;
  ~ModuleMachine() override;  // unloads, errors lost
  ModuleMachine(const ModuleMachine&) = delete;
  ModuleMachine& operator=(const ModuleMachine&) = delete;

  void load(const Gpus& wanted) override;
  bool loaded() const override { return control_ != nullptr; }
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

  std::uint32_t kfd_version() const override;
  bool lists_handles() const override;
  bool changes_handles() const override;
  bool has_svm() const override { return true; }
  std::uint32_t bo_record_bytes() const override;

  // What only our module has: errors on demand, traces, all of a process' state.
  vamdgpu::Control& control() const;

 private:
  std::unique_ptr<vamdgpu::Control> control_;
  UniqueFd changes_;  // for eventually()
};

}  // namespace sluice::vm_test
