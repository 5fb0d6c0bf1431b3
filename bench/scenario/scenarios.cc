// SPDX-License-Identifier: MIT
#include <array>

#include "scenario/scenario.h"

namespace sluice::bench {

std::span<const Scenario> scenarios() {
  static constexpr std::array<Scenario, 3> kAll = {{
      {"limits", "the raw ceilings of this machine: disk, memory, checksum", run_limits},
      {"dump", "copy, checksum and durable write beside the raw disk", run_dump},
      {"restore", "read, verification and copy beside the raw disk", run_restore},
  }};
  return kAll;
}

}  // namespace sluice::bench
