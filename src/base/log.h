// SPDX-License-Identifier: MIT
// Lines for a log that only its owner may write to. Code without a log queues lines; the owner logs them
// later. In the plugin the owner is CRIU's main thread inside a hook (plugin/host/criu_host.h).
#pragma once

#include <string>
#include <vector>

namespace sluice {

// CRIU's log levels (criu/include/log.h); the values are its own.
enum class Level : unsigned { Error = 1, Warning = 2, Info = 3, Debug = 4 };

struct LogLine {
  Level level = Level::Info;
  std::string text;
};
using LogLines = std::vector<LogLine>;

}  // namespace sluice
