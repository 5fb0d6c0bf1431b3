// SPDX-License-Identifier: MIT
// Draws what was measured: tables.md, and SVG files by gnuplot; and a trace of SLUICE_TRACE's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pipeline/result.h"

namespace sluice::bench {

// Reads the JSON of `goals` or of a scenario and writes into the directory `out`, which is made where it is
// not there; the names of the files written. Errors: those of read_saved(), ENOENT (no gnuplot; tables.md is
// written all the same), EIO (gnuplot failed, or writing did).
Result<std::vector<std::string>> plot(const std::filesystem::path& file, const std::filesystem::path& out);

// Draws one trace; the name of the file written into `out`, which is that of the trace with the ending .svg.
// Errors: those of read_trace(), timeline() and plot().
Result<std::string> plot_trace(const std::filesystem::path& trace, const std::filesystem::path& out);

// Puts the tables of plot() into a Markdown document that has places for them (plot/tables.h).
Result<void> fill_in(const std::filesystem::path& file, const std::filesystem::path& document);

}  // namespace sluice::bench
