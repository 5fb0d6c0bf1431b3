// SPDX-License-Identifier: MIT
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "plot/plot.h"

namespace sluice::bench {
namespace {

struct PlotRequest {
  std::filesystem::path report, trace, out = ".", document;
};

int draw_trace(const PlotRequest& request) {
  const auto written = plot_trace(request.trace, request.out);
  if (!written) return failed(written.error().what);
  (void)std::puts((request.out / *written).c_str());
  return 0;
}

int draw(const PlotRequest& request) {
  const auto written = plot(request.report, request.out, request.document);
  if (!written) return failed(written.error().what);
  for (const std::string& name : *written) (void)std::puts((request.out / name).c_str());
  return 0;
}

}  // namespace

void add_plot_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "plot", "tables and figures of a JSON report, of goals or a scenario, or of a trace (with gnuplot)");
  const auto request = std::make_shared<PlotRequest>();
  CLI::Option_group* what = command->add_option_group("what");
  what->add_option("FILE", request->report, "what --json has written");
  what->add_option("--trace", request->trace, "what SLUICE_TRACE has written beside images");
  what->require_option(1);
  command->add_option("--out", request->out, "the directory for the SVG files and tables.md; default: here");
  command
      ->add_option("--into", request->document,
                   "a Markdown document that has places for the tables, instead of tables.md")
      ->check(CLI::ExistingFile)
      ->excludes("--trace");
  command->callback(
      [request, &status] { status = request->trace.empty() ? draw(*request) : draw_trace(*request); });
}

}  // namespace sluice::bench
