// SPDX-License-Identifier: MIT
// What the kernel had to say since a mark: a scenario after which the log holds a warning has failed.
//
// Source: Documentation/ABI/testing/dev-kmsg. Thread-bound.
#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace sluice::vm_test {

class KernelLog {
 public:
  KernelLog();  // the mark is here. Throws std::system_error without /dev/kmsg

  // Lines since the mark, or the last call, of the levels warning and worse, and those that tell of a bug on
  // any level. What a host that is busy causes is left out.
  std::vector<std::string> complaints();
  // The same without what AMD's driver says of every emulated card that it is bound to.
  std::vector<std::string> complaints_of_binding();

 private:
  UniqueFd file_;
  bool in_known_report_ = false;
};

}  // namespace sluice::vm_test
