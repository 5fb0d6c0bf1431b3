// SPDX-License-Identifier: MIT
// What a check finds, and the version of criu for which it holds. Value types.
#pragma once

#include <string>
#include <tuple>
#include <vector>

namespace sluice::cli {

// A Problem makes a dump fail. A Warning makes it slower, or unsafe in a stated way. An Option makes it fail
// unless criu's command line has an option for it.
enum class Weight { Good, Option, Warning, Problem };

struct Finding {
  Weight weight = Weight::Good;
  std::string subject;  // "criu", "plugin", ...: fixed words, also used in the JSON
  std::string text;
  std::string remedy;  // the remedy; empty for Good
  std::string code;    // identifies the reason, fixed, used in the JSON; empty: the subject does
};
using Findings = std::vector<Finding>;

// The output of criu --version.
struct CriuVersion {
  int major = 0, minor = 0, patch = 0;

  bool operator<(const CriuVersion& other) const {
    return std::tie(major, minor, patch) < std::tie(other.major, other.minor, other.patch);
  }
};

}  // namespace sluice::cli
