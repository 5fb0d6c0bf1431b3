// SPDX-License-Identifier: MIT
#pragma once

namespace sluice::plugin_test {

// Seconds.
inline constexpr char kLinkAheadVariable[] = "SLUICE_TEST_LINK_AHEAD";

}  // namespace sluice::plugin_test
