// SPDX-License-Identifier: MIT
// sluice map IMAGES: would these images be restored on this machine's GPUs, or on those of another machine
// whose KFD topology was copied? By the same rules and settings as the plugin's restore (kfd/matching.h).
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "cli/commands.h"
#include "cli/image_directory.h"
#include "cli/text.h"
#include "images/files.h"
#include "images/pages.h"
#include "kfd/matching.h"
#include "plugin/config.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct MapArguments {
  std::string images;
  std::string sysfs = kfd::kTopologyPath;
  bool json = false;
};

// The outcome for the KFD images that have one topology: those of one machine and one view of it.
struct Mapping {
  std::vector<std::string> images;
  kfd::Topology source;
  kfd::MatchOutcome outcome;
};

// REQUIRES: the topology has it.
std::string gpu_name(const kfd::Topology& topology, std::uint32_t gpu_id) {
  return kfd::gpu_id_text(gpu_id) + " renderD" + std::to_string(topology.find_gpu(gpu_id)->drm_render_minor);
}

// A copy may be of the topology folder itself, or of one above it, up to /sys.
std::string topology_below(const std::string& directory) {
  for (const char* below :
       {"", "/topology", "/kfd/topology", "/class/kfd/kfd/topology", "/devices/virtual/kfd/kfd/topology",
        "/sys/class/kfd/kfd/topology", "/sys/devices/virtual/kfd/kfd/topology"}) {
    struct stat status {};
    if (::stat((directory + below + "/nodes").c_str(), &status) == 0) return directory + below;
  }
  return directory;
}

std::vector<Mapping> map_all(const Checkpoint& checkpoint, const kfd::Topology& local,
                             const kfd::MatchRules& rules) {
  std::vector<Mapping> mappings;
  for (const auto& entry : checkpoint.kfd) {
    const kfd::KfdImage& image = entry.image;
    if (image.alias_of) continue;
    const std::string name = kfd_image_name(entry.id);
    const auto known = std::find_if(mappings.begin(), mappings.end(), [&](const Mapping& mapping) {
      return mapping.source.nodes == image.topology.nodes;
    });
    if (known != mappings.end()) {
      known->images.push_back(name);
    } else {
      mappings.push_back({{name}, image.topology, kfd::match_gpus(image.topology, local, rules)});
    }
  }
  return mappings;
}

std::string why_not(const kfd::PairReport& report) {
  if (report.mismatches.empty()) return "fits by itself";
  std::string text;
  for (const kfd::Mismatch& mismatch : report.mismatches) {
    text += (text.empty() ? "" : "; ") + mismatch.property + " " + mismatch.source + " -> " + mismatch.local;
    if (mismatch.variable != nullptr) text += std::string(" (") + mismatch.variable + "=0 allows this)";
  }
  return text;
}

std::string text_of(const Mapping& mapping, const kfd::Topology& local) {
  std::string text;
  for (const std::string& image : mapping.images) text += (text.empty() ? "" : ", ") + image;
  if (const auto* match = std::get_if<kfd::Match>(&mapping.outcome)) {
    text +=
        match->identity ? ": every GPU is the one it was\n" : ": every GPU has one that stands in for it\n";
    Table table({"in the image", "here"});
    for (const kfd::DeviceIds& pair : match->gpus)
      table.add({gpu_name(mapping.source, pair.user_gpu_id), gpu_name(local, pair.actual_gpu_id)});
    return text + table.text();
  }
  const auto& refusal = std::get<kfd::Refusal>(mapping.outcome);
  text += ": REFUSED: " + refusal.sentence + '\n';
  Table table({"in the image", "here", "property: image -> here"});
  for (const kfd::PairReport& pair : refusal.pairs)
    table.add({gpu_name(mapping.source, pair.pair.user_gpu_id), gpu_name(local, pair.pair.actual_gpu_id),
               why_not(pair)});
  return table.empty() ? text : text + table.text();
}

Json json_of(const Mapping& mapping) {
  Json object = {{"images", mapping.images}};
  if (const auto* match = std::get_if<kfd::Match>(&mapping.outcome)) {
    Json pairs = Json::array();
    for (const kfd::DeviceIds& pair : match->gpus)
      pairs.push_back({{"gpu_id", pair.user_gpu_id}, {"local_gpu_id", pair.actual_gpu_id}});
    object.update({{"result", "fits"}, {"identity", match->identity}, {"gpus", std::move(pairs)}});
    return object;
  }
  const auto& refusal = std::get<kfd::Refusal>(mapping.outcome);
  Json candidates = Json::array();
  for (const kfd::PairReport& pair : refusal.pairs) {
    Json mismatches = Json::array();
    for (const kfd::Mismatch& mismatch : pair.mismatches) {
      mismatches.push_back({{"property", mismatch.property},
                            {"image", mismatch.source},
                            {"here", mismatch.local},
                            {"switch", mismatch.variable != nullptr ? Json(mismatch.variable) : Json()}});
    }
    candidates.push_back({{"gpu_id", pair.pair.user_gpu_id},
                          {"local_gpu_id", pair.pair.actual_gpu_id},
                          {"mismatches", std::move(mismatches)}});
  }
  object.update(
      {{"result", "refused"}, {"message", refusal.sentence}, {"candidates", std::move(candidates)}});
  return object;
}

// Render files of a tree without a KFD process go to the GPU of the same gpu_id, as the restore has it.
std::vector<std::string> homeless_render_files(const Checkpoint& checkpoint, const kfd::Topology& local) {
  std::vector<std::string> homeless;
  if (!checkpoint.kfd.empty()) return homeless;
  for (const auto& [id, image] : checkpoint.render) {
    if (local.find_gpu(image.gpu_id) == nullptr)
      homeless.push_back(
          render_image_name(id) + " belongs to " + gpu_words(image.gpu_id) +
          ", which is not here; without a KFD process in the images no other can stand in for it");
  }
  return homeless;
}

ExitCode map(const MapArguments& arguments) {
  const auto opened = open_images(arguments.images);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("map", arguments.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);
  if (!directory.checkpoint.faults().empty()) {
    return refuse("map", arguments.json,
                  {ExitCode::Failed, directory.checkpoint.faults().front().what,
                   "the image is damaged or incomplete: restore from another checkpoint"});
  }
  const auto local = kfd::read_topology(topology_below(arguments.sysfs));
  if (!local) {
    return refuse(
        "map", arguments.json,
        {ExitCode::Failed, local.error().what,
         arguments.sysfs == kfd::kTopologyPath
             ? "this machine has no KFD: load the amdgpu driver, or name with --sysfs a copy of another "
               "machine's /sys/class/kfd/kfd/topology (cp -rL)"
             : "--sysfs wants a copy of a machine's /sys/class/kfd/kfd/topology (cp -rL)"});
  }
  plugin::LogLines warnings;
  const plugin::Config config =
      plugin::parse_config(plugin::environment_and_file(plugin::kConfigFile, warnings), warnings);
  for (const plugin::LogLine& line : warnings)
    (void)std::fprintf(stderr, "sluice map: %s\n", line.text.c_str());

  const std::vector<Mapping> mappings = map_all(directory.checkpoint, *local, config.match_rules);
  const std::vector<std::string> homeless = homeless_render_files(directory.checkpoint, *local);
  bool fits = homeless.empty();
  for (const Mapping& mapping : mappings) fits = fits && std::holds_alternative<kfd::Match>(mapping.outcome);
  if (arguments.json) {
    Json list = Json::array();
    for (const Mapping& mapping : mappings) list.push_back(json_of(mapping));
    print_json({{"command", "map"},
                {"images", arguments.images},
                {"result", fits ? "fits" : "refused"},
                {"local_gpus", local->gpu_count()},
                {"mappings", std::move(list)},
                {"render_files", homeless}});
  } else {
    std::string text;
    for (const Mapping& mapping : mappings) text += text_of(mapping, *local);
    for (const std::string& file : homeless) text += "REFUSED: " + file + '\n';
    if (fits && mappings.empty()) text += "every render file has its GPU here\n";
    (void)std::fputs(text.c_str(), stdout);
  }
  return fits ? ExitCode::Done : ExitCode::Refused;
}

}  // namespace

void add_map(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<MapArguments>();
  CLI::App* command =
      app.add_subcommand("map", "Which GPUs here the images' GPUs would be restored on, or why not");
  add_images_argument(*command, "IMAGES", arguments->images, "the image directory of a dump (criu dump -D)");
  command
      ->add_option("--sysfs", arguments->sysfs,
                   "instead of this machine: one whose topology was copied to DIR")
      ->type_name("DIR");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Obeys the KFD_*_CHECK switches of the environment and of /etc/criu/sluice.conf,\n"
      "as a restore does, and names the switch that would allow what it refuses. To ask\n"
      "for another machine, copy its /sys/class/kfd/kfd/topology (cp -rL) and name the\n"
      "copy with --sysfs.\n\n"
      "Example: sluice map --sysfs topology-of-node7 /var/lib/checkpoints/job\n\n"
      "Exit status: 0 the GPUs fit, 1 failed (no topology, damaged images), 2 wrong\n"
      "usage, 3 the restore would be refused, or there are no images.");
  command->callback([arguments, &run] { run = [arguments] { return map(*arguments); }; });
}

}  // namespace sluice::cli
