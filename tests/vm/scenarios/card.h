// SPDX-License-Identifier: MIT
// An emulated card of this guest, as the PCI bus has it: bound to its driver and unbound, and told through
// its mailbox what it shall do (tests/card/control/mailbox.h; docs/internals/vm.md). Any thread; failures
// throw std::runtime_error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::vm_test {

class Card {
 public:
  // All of this guest: those with most VRAM first, those of a size by PCI address.
  static std::vector<Card> all();

  enum class Model { Mi210, Mi300x };
  Model model() const { return model_; }
  // Whether those of this guest can be divided.
  static bool have_dies() { return all().front().model() == Model::Mi300x; }
  const std::string& address() const { return address_; }  // "0000:01:00.0"
  std::uint64_t vram_bytes() const { return vram_bytes_; }

  bool bound() const;
  void bind() const;
  // One GPU for each of its dies (CPX), or one of all (SPX), which is what an MI210 stays. REQUIRES: bound,
  // and no process has the KFD.
  void divide(bool into_dies) const;
  // The driver's files in debugfs. Linux 6.1 has none under the render node's number. REQUIRES: bound.
  std::filesystem::path debug_folder() const;

  // The card's answer to a command; one of "error: ..." throws.
  std::string tell(const std::string& command) const;

  // A number of a file in its folder of sysfs; 0 without it.
  std::uint64_t number(const std::string& file) const;

 private:
  Card(std::filesystem::path folder, Model model);
  std::filesystem::path folder_;
  std::string address_;
  Model model_;
  std::uint64_t vram_bytes_ = 0;
};

}  // namespace sluice::vm_test
