// SPDX-License-Identifier: MIT
// How often the KFD of this kernel was asked for each CRIU operation, counted by a probe in the kernel:
// nobody who asks is changed or slowed down by it.
//
// Source: Documentation/trace/kprobetrace.rst, histogram.rst. Thread-bound; failures throw
// std::runtime_error.
#pragma once

#include <cstdint>
#include <map>

namespace sluice::vm_test {

class CriuOperations {
 public:
  CriuOperations();  // counts from here on. REQUIRES: amdgpu is loaded

  std::uint64_t count(std::uint32_t op) const;

 private:
  std::map<std::uint32_t, std::uint64_t> before_;
};

}  // namespace sluice::vm_test
