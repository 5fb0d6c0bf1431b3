// SPDX-License-Identifier: MIT
// Reports as tables in Markdown, by themselves or put into a document. Pure functions.
//
// In a document "<!-- measured: NAME -->" begins and "<!-- end -->" ends, each on a line of its own, what is
// replaced: by the table of the scenario NAME, of "machine" or of "goals".
#pragma once

#include <string>

#include "plot/saved.h"

namespace sluice::bench {

// The machine, the goals, and a table for each scenario, a row for each case.
std::string markdown_of(const Saved& saved);

// `document` with what was measured in its places; those of what was not measured stay as they are.
std::string filled_in(const std::string& document, const Saved& saved);

}  // namespace sluice::bench
