// SPDX-License-Identifier: MIT
// sluice show IMAGES: what is in a checkpoint. From its metadata images, the sizes and holes of its pages
// files, and the statistics beside them; contents are not read. What there is to tell is found in
// show_survey.h and show_statistics.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/image_directory.h"
#include "cli/show_json.h"
#include "cli/show_statistics.h"
#include "cli/show_survey.h"
#include "cli/show_text.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string images;
  bool bos = false;
  bool stats = false;
  bool json = false;
};

// Faults are told last, where they are seen.
ExitCode tell_faults(const std::vector<std::string>& faults) {
  (void)std::fflush(stdout);
  for (const std::string& fault : faults) (void)std::fprintf(stderr, "sluice show: %s\n", fault.c_str());
  return faults.empty() ? ExitCode::Done : ExitCode::Failed;
}

ExitCode show_statistics(const ImageDirectory& directory, const Options& options) {
  std::vector<std::string> faults;
  const std::vector<Statistics> all = read_statistics(directory.fd.get(), faults);
  if (options.json) {
    Json list = Json::array();
    for (const Statistics& one : all) list.push_back({{"file", one.name}, {"statistics", one.content}});
    print_json(
        {{"command", "show"}, {"images", directory.path}, {"stats", std::move(list)}, {"faults", faults}});
    return faults.empty() ? ExitCode::Done : ExitCode::Failed;
  }
  (void)std::fputs(statistics_text(all).c_str(), stdout);
  return tell_faults(faults);
}

ExitCode show(const Options& options) {
  const auto opened = open_images(options.images);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("show", options.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);
  if (options.stats) return show_statistics(directory, options);
  const Survey all = survey(directory);
  if (options.json) {
    print_json(show_json(directory, all, options.bos));
    return all.faults.empty() ? ExitCode::Done : ExitCode::Failed;
  }
  (void)std::fputs(show_text(directory, all, options.bos).c_str(), stdout);
  return tell_faults(all.faults);
}

}  // namespace

void add_show(CLI::App& app, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("show", "What is in a checkpoint: GPUs, processes, memory, files, sharing");
  add_images_argument(*command, "IMAGES", options->images, "the image directory of a dump (criu dump -D)");
  command->add_flag("--bos", options->bos, "list every BO");
  command->add_flag("--stats", options->stats,
                    "instead: how fast the dump and the last restore were, by GPU");
  add_json_flag(*command, options->json);
  command->footer(
      "Reads metadata only and looks for missing files and wrong sizes; whether the\n"
      "contents are whole, sluice verify says.\n\n"
      "Example: sluice show --stats /var/lib/checkpoints/job\n\n"
      "Exit status: 0 all files are there, with their sizes, 1 something is missing,\n"
      "damaged or unreadable, 2 wrong usage, 3 there are no images.");
  command->callback([options, &run] { run = [options] { return show(*options); }; });
}

}  // namespace sluice::cli
