// SPDX-License-Identifier: MIT
// sluice show IMAGES: what a checkpoint contains, from its metadata images, the sizes and holes of its pages
// files, and the statistics. Contents are not read. The facts come from show_survey.h and show_statistics.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/checkpoint/image_directory.h"
#include "cli/commands.h"
#include "cli/show/show_json.h"
#include "cli/show/show_statistics.h"
#include "cli/show/show_survey.h"
#include "cli/show/show_text.h"
#include "images/files/cause.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ShowArguments {
  std::string images;
  bool bos = false;
  bool stats = false;
  bool json = false;
};

// Faults are printed last, where they are seen, with a remedy for the first.
ExitCode tell_faults(const std::vector<Error>& faults) {
  (void)std::fflush(stdout);
  for (const Error& fault : faults)
    (void)std::fprintf(stderr, "sluice show: %s%s\n", printable(fault.what).c_str(),
                       has_id(fault.what) ? "" : " [SL-T33]");
  const std::string remedy = remedy_of(faults);
  if (!faults.empty() && faults.front().what.find(remedy) == std::string::npos)
    (void)std::fprintf(stderr, "  %s\n", remedy.c_str());
  return faults.empty() ? ExitCode::Done : ExitCode::Failed;
}

ExitCode show_statistics(const ImageDirectory& directory, const ShowArguments& arguments) {
  std::vector<Error> faults;
  const std::vector<Statistics> all = read_statistics(*directory.source, faults);
  if (arguments.json) {
    Json list = Json::array();
    for (const Statistics& one : all) list.push_back({{"file", one.name}, {"statistics", one.content}});
    print_json({{"command", "show"},
                {"images", directory.path},
                {"result", result_of(faults)},
                {"stats", std::move(list)},
                {"faults", faults_json(faults)},
                {"remedy", remedy_of(faults)}});
    return faults.empty() ? ExitCode::Done : ExitCode::Failed;
  }
  if (!all.empty() || faults.empty()) (void)std::fputs(statistics_text(all).c_str(), stdout);
  return tell_faults(faults);
}

ExitCode show(const ShowArguments& arguments) {
  const settings::Config config = read_settings("show");
  const auto opened = open_images(arguments.images, config, !arguments.json);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("show", arguments.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);
  if (arguments.stats) return show_statistics(directory, arguments);
  const Checkpoint& checkpoint = directory.checkpoint;
  if (checkpoint.kfd.empty() && checkpoint.render.empty() && checkpoint.dmabufs.empty())
    return refuse("show", arguments.json, no_images(checkpoint.faults().front()));
  const Survey all = survey(directory);
  if (arguments.json) {
    print_json(show_json(directory, all, arguments.bos));
    return all.faults.empty() ? ExitCode::Done : ExitCode::Failed;
  }
  (void)std::fputs(show_text(directory, all, arguments.bos).c_str(), stdout);
  return tell_faults(all.faults);
}

}  // namespace

void add_show(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<ShowArguments>();
  CLI::App* command =
      app.add_subcommand("show", "What is in a checkpoint: GPUs, processes, memory, files, sharing");
  add_images_argument(*command, "IMAGES", arguments->images, kImagesHelp);
  command->add_flag("--bos", arguments->bos, "list every BO");
  command->add_flag("--stats", arguments->stats,
                    "instead: how fast the dump and the last restore were, by GPU");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Reads metadata only, and looks for missing files and wrong sizes. sluice verify\n"
      "checks whether the contents are whole.\n\n"
      "Example: sluice show --stats /var/lib/checkpoints/job\n\n"
      "Exit status: 0 all files are there, with their sizes, 1 something is missing,\n"
      "damaged or unreadable, 2 wrong usage, 3 there are no images.");
  command->callback([arguments, &run] { run = [arguments] { return show(*arguments); }; });
}

}  // namespace sluice::cli
