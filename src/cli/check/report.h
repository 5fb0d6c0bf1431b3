// SPDX-License-Identifier: MIT
// `sluice check --report`: what somebody needs who looks for a fault, as text. Only looks, as all of check.
#pragma once

#include <string>

namespace sluice::cli {

// Versions, settings and the topology of this machine; `findings`, the text of check; and lines of the logs
// in `directory`, where there is one: those of the plugin, and CRIU's errors. Nothing of any process' memory,
// no key, no serial number of a GPU.
std::string report_text(const std::string& findings, const std::string& directory);

}  // namespace sluice::cli
