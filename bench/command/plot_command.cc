// SPDX-License-Identifier: MIT
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "plot/plot.h"

namespace sluice::bench {
namespace {

struct PlotRequest {
  std::filesystem::path report, out = ".", document;
};

int draw(const PlotRequest& request) {
  if (!request.document.empty()) {
    if (const auto filled = fill_in(request.report, request.document); !filled)
      return failed(filled.error().what);
  }
  const auto written = plot(request.report, request.out);
  if (!written) return failed(written.error().what);
  for (const std::string& name : *written) (void)std::puts((request.out / name).c_str());
  return 0;
}

}  // namespace

void add_plot_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "plot", "tables and figures of a JSON report, of goals or a scenario (with gnuplot)");
  const auto request = std::make_shared<PlotRequest>();
  command->add_option("FILE", request->report, "what --json has written")->required();
  command->add_option("--out", request->out, "the directory for tables.md and the SVG files; default: here");
  command->add_option("--into", request->document, "a Markdown document that has places for the tables")
      ->check(CLI::ExistingFile);
  command->callback([request, &status] { status = draw(*request); });
}

}  // namespace sluice::bench
