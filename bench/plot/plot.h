// SPDX-License-Identifier: MIT
// Draws what was measured: tables, and SVG files by gnuplot; and a trace of SLUICE_TRACE's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

// Reads the JSON of `goals` or of a scenario and writes its figures into the directory `out`, which is made
// where it is not there. The tables go into `document`, a Markdown file that has places for them
// (plot/tables.h), or without one into `out`/tables.md. Returns the names of the files written into `out`.
// Errors: those of read_saved(), ENOENT (no gnuplot; the tables are written all the same), EIO (gnuplot
// failed, or writing did), or the document's own.
Result<std::vector<std::string>> plot(const std::filesystem::path& file, const std::filesystem::path& out,
                                      const std::filesystem::path& document = {});

// Draws one trace; the name of the file written into `out`, which is that of the trace with the ending .svg.
// Errors: those of read_trace(), timeline() and plot().
Result<std::string> plot_trace(const std::filesystem::path& trace, const std::filesystem::path& out);

}  // namespace sluice::bench
