// SPDX-License-Identifier: MIT
#include "cli/refusal.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace sluice::cli {

ExitCode refuse(const char* command, bool json, ExitCode exit_code, const std::string& message,
                const std::string& remedy, const char* cause) {
  const std::string words = printable(message);
  if (json) {
    nlohmann::ordered_json object = {{"command", command},
                                     {"result", exit_code == ExitCode::Refused ? "refused" : "failed"},
                                     {"message", words},
                                     {"remedy", remedy}};
    if (cause != nullptr) object["cause"] = cause;
    print_json(object);
  } else {
    (void)std::fprintf(stderr, "sluice %s: %s\n", command, words.c_str());
    if (words.find(remedy) == std::string::npos)
      (void)std::fprintf(stderr, "  %s\n", printable(remedy).c_str());
  }
  return exit_code;
}

}  // namespace sluice::cli
