// SPDX-License-Identifier: MIT
// Lines for a log that only its owner may write to: they are queued where they arise, and logged by whoever
// has the log (plugin/host/criu_host.h: CRIU's main thread inside a hook; the `sluice` command: standard
// error).
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
