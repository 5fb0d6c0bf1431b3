// SPDX-License-Identifier: MIT
// The virtual GPUs of the guest: the kernel module, loaded with a description and unloaded again, and a look
// into it. At most one exists. Thread-bound; failures throw std::runtime_error.
#pragma once

#include <memory>

#include "control.h"
#include "pipeline/unique_fd.h"
#include "process.h"

namespace sluice::vm_test {

class GuestMachine {
 public:
  GuestMachine() = default;
  ~GuestMachine();  // unloads, errors lost
  GuestMachine(const GuestMachine&) = delete;
  GuestMachine& operator=(const GuestMachine&) = delete;

  // Loads the module with options of vamdgpu-load: {"--gpus", "2"}.
  void load(const Strings& options);
  bool loaded() const { return control_ != nullptr; }
  // Unloads it. False when the kernel refuses: something is still open.
  bool unload();

  // REQUIRES: loaded().
  vamdgpu::Control& control() { return *control_; }

 private:
  std::unique_ptr<vamdgpu::Control> control_;
  UniqueFd changes_;  // for eventually()
};

}  // namespace sluice::vm_test
