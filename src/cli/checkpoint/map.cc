// SPDX-License-Identifier: MIT
// sluice map IMAGES: on which GPUs would these images be restored here, or on another machine whose KFD
// topology was copied? Rules, settings and choice are those of the plugin's restore
// (kfd/matching/matching.h), but running restores are not seen. A copy does not tell how much VRAM is free.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cli/checkpoint/image_directory.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "images/files.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "images/vram_need.h"
#include "kfd/device.h"
#include "kfd/driver.h"
#include "kfd/matching/gpu_map.h"
#include "kfd/matching/matching.h"
#include "kfd/vram_room.h"
#include "settings/config.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct MapArguments {
  std::string images;
  std::string sysfs = kfd::kTopologyPath;
  std::optional<std::string> gpu_map;
  bool json = false;
};

// The machine in question.
struct Local {
  kfd::Topology topology;
  std::map<std::uint32_t, kfd::VramUse> vram;  // by gpu_id; only GPUs that report it
  std::uint32_t record_bytes = 0;              // the driver's, of a BO (kfd/driver.h); 0: unknown
};

// The outcome for KFD images with the same topology: of one machine, seen the same way.
struct Mapping {
  std::vector<std::string> images;
  kfd::Topology source;
  bool shares_memory = false;
  kfd::MatchOutcome outcome;
};

// REQUIRES: the topology has it.
std::string gpu_name(const kfd::Topology& topology, std::uint32_t gpu_id) {
  return kfd::gpu_words(*topology.find_gpu(gpu_id));
}

// Names of `gpu_ids`; says so if these are all GPUs and several.
std::string gpu_names(const kfd::Topology& topology, const std::vector<std::uint32_t>& gpu_ids) {
  if (gpu_ids.size() > 1 && gpu_ids.size() == topology.gpu_count())
    return "all " + std::to_string(gpu_ids.size()) + " GPUs";
  std::string names;
  for (const std::uint32_t gpu_id : gpu_ids)
    names += (names.empty() ? "" : ", ") + gpu_name(topology, gpu_id);
  return names;
}

// A copy may be the topology folder itself, or one of its parents, up to /sys.
std::string topology_below(const std::string& directory) {
  for (const char* below :
       {"", "/topology", "/kfd/topology", "/class/kfd/kfd/topology", "/devices/virtual/kfd/kfd/topology",
        "/sys/class/kfd/kfd/topology", "/sys/devices/virtual/kfd/kfd/topology"}) {
    struct stat status {};
    if (::stat((directory + below + "/nodes").c_str(), &status) == 0) return directory + below;
  }
  return directory;
}

// As the tasks of a restored tree choose: the one that sees the most GPUs first, and the others get the same
// (plugin/restore/gpus/gpu_match.h).
class TreeChoice {
 public:
  TreeChoice(const Local& local, const kfd::MatchRules& rules, std::vector<kfd::MappedGpu> map,
             VramBytes need)
      : local_(local), rules_(rules), map_(std::move(map)), need_(std::move(need)) {
    for (const auto& [gpu_id, use] : local.vram) gpus_[gpu_id].room = use.room();
  }

  kfd::MatchOutcome choose(const kfd::Topology& source, bool shares_memory) {
    kfd::MatchOutcome outcome = match(source, agreed_);
    if (std::holds_alternative<kfd::Refusal>(outcome) && !agreed_.empty() && !shares_memory)
      return match(source, {});
    if (const auto* match = std::get_if<kfd::Match>(&outcome)) {
      for (const kfd::DeviceIds& pair : match->gpus) {
        const kfd::MappedGpu mapped{source.find_gpu(pair.user_gpu_id)->drm_render_minor, pair.actual_gpu_id};
        if (std::find(agreed_.begin(), agreed_.end(), mapped) == agreed_.end()) agreed_.push_back(mapped);
      }
    }
    return outcome;
  }

  std::uint64_t need(const kfd::Topology& source, std::uint32_t user_gpu_id) const {
    const auto found = need_.find(source.find_gpu(user_gpu_id)->drm_render_minor);
    return found != need_.end() ? found->second : 0;
  }

 private:
  kfd::MatchOutcome match(const kfd::Topology& source, std::span<const kfd::MappedGpu> agreed) const {
    return kfd::match_gpus(source, local_.topology, rules_,
                           kfd::tree_wishes(source, agreed, map_, need_, gpus_));
  }

  const Local& local_;
  const kfd::MatchRules& rules_;
  std::vector<kfd::MappedGpu> map_;
  VramBytes need_;
  std::map<std::uint32_t, kfd::LocalGpu> gpus_;
  std::vector<kfd::MappedGpu> agreed_;
};

// One per topology, without outcomes.
std::vector<Mapping> topologies_of(const Checkpoint& checkpoint) {
  std::vector<Mapping> mappings;
  for (const auto& entry : checkpoint.kfd) {
    const kfd::KfdImage& image = entry.image;
    if (image.alias_of) continue;
    const std::string name = checkpoint.name_of(kfd_image_name(entry.id));
    const bool shares = std::any_of(image.bos.begin(), image.bos.end(),
                                    [](const kfd::BoEntry& bo) { return bo.shared != 0; });
    const auto known = std::find_if(mappings.begin(), mappings.end(), [&](const Mapping& mapping) {
      return mapping.source.nodes == image.topology.nodes;
    });
    if (known != mappings.end()) {
      known->images.push_back(name);
      known->shares_memory = known->shares_memory || shares;
    } else {
      mappings.push_back({{name}, image.topology, shares, {}});
    }
  }
  return mappings;
}

VramBytes need_of(const Checkpoint& checkpoint) {
  VramBytes need;
  for (const auto& [id, image] : checkpoint.kfd) add_vram(need, vram_of(image));
  for (const auto& [id, image] : checkpoint.render) add_vram(need, vram_of(image));
  return need;
}

void choose_all(std::vector<Mapping>& mappings, TreeChoice& choice) {
  std::vector<Mapping*> order;
  order.reserve(mappings.size());
  for (Mapping& mapping : mappings) order.push_back(&mapping);
  std::stable_sort(order.begin(), order.end(), [](const Mapping* a, const Mapping* b) {
    return a->source.gpu_count() > b->source.gpu_count();
  });
  for (Mapping* mapping : order) mapping->outcome = choice.choose(mapping->source, mapping->shares_memory);
}

std::string why_not(const std::vector<kfd::Mismatch>& mismatches) {
  if (mismatches.empty()) return "fits by itself";
  std::string text;
  for (const kfd::Mismatch& mismatch : mismatches) {
    text += (text.empty() ? "" : "; ") + mismatch.property + " " + mismatch.source + " -> " + mismatch.local;
    if (mismatch.variable != nullptr) text += std::string(" (") + mismatch.variable + "=0 allows this)";
  }
  return text;
}

// The free VRAM of a local GPU, in words.
std::string free_text(const Local& local, std::uint32_t gpu_id) {
  const auto use = local.vram.find(gpu_id);
  if (use == local.vram.end()) return "not known";
  return bytes_text(use->second.room()) + " of " + bytes_text(use->second.total_bytes);
}

std::string words_of(const kfd::Refusal& refusal) {
  return refusal.sentence + " [SL-T63]";
}

std::string text_of(const Mapping& mapping, const Local& local, const TreeChoice& choice) {
  std::string text;
  for (const std::string& image : mapping.images) text += (text.empty() ? "" : ", ") + image;
  if (const auto* match = std::get_if<kfd::Match>(&mapping.outcome)) {
    text +=
        match->identity ? ": every GPU is the same\n" : ": every GPU has a local one that stands in for it\n";
    Table table({"in the image", ">VRAM needed", "here", ">VRAM free", ""});
    for (const kfd::DeviceIds& pair : match->gpus) {
      const std::uint64_t need = choice.need(mapping.source, pair.user_gpu_id);
      const auto use = local.vram.find(pair.actual_gpu_id);
      const bool full = use != local.vram.end() && use->second.room() < need;
      table.add({gpu_name(mapping.source, pair.user_gpu_id), bytes_text(need),
                 gpu_name(local.topology, pair.actual_gpu_id), free_text(local, pair.actual_gpu_id),
                 full ? bytes_text(need - use->second.room()) + " are missing" : ""});
    }
    return text + table.text();
  }
  const auto& refusal = std::get<kfd::Refusal>(mapping.outcome);
  text += ": REFUSED: " + words_of(refusal) + '\n';
  Table table({"in the image", "here", "property: image -> here"});
  for (const kfd::SharedReason& reason : refusal.reasons())
    table.add({gpu_names(mapping.source, reason.sources), gpu_names(local.topology, reason.locals),
               why_not(reason.mismatches)});
  return table.empty() ? text : text + table.text();
}

// The local GPUs that replace none.
std::string text_of_others(const std::vector<Mapping>& mappings, const Local& local) {
  Table table({"not chosen", "PCI", ">VRAM free"});
  for (const kfd::Node& gpu : local.topology.nodes) {
    const auto chosen = [&](const Mapping& mapping) {
      const auto* match = std::get_if<kfd::Match>(&mapping.outcome);
      return match != nullptr && std::any_of(match->gpus.begin(), match->gpus.end(), [&](const auto& pair) {
               return pair.actual_gpu_id == gpu.gpu_id;
             });
    };
    if (gpu.is_gpu() && std::none_of(mappings.begin(), mappings.end(), chosen))
      table.add({kfd::gpu_words(gpu), kfd::pci_address(gpu), free_text(local, gpu.gpu_id)});
  }
  return table.empty() ? "" : table.text();
}

Json room_of(const Local& local, std::uint32_t gpu_id) {
  const auto use = local.vram.find(gpu_id);
  return use != local.vram.end() ? Json(use->second.room()) : Json();
}

Json json_of(const Mapping& mapping, const Local& local, const TreeChoice& choice) {
  Json object = {{"images", mapping.images}};
  if (const auto* match = std::get_if<kfd::Match>(&mapping.outcome)) {
    Json pairs = Json::array();
    for (const kfd::DeviceIds& pair : match->gpus) {
      pairs.push_back({{"gpu_id", pair.user_gpu_id},
                       {"local_gpu_id", pair.actual_gpu_id},
                       {"need_bytes", choice.need(mapping.source, pair.user_gpu_id)},
                       {"room_bytes", room_of(local, pair.actual_gpu_id)}});
    }
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
      {{"result", "refused"}, {"message", words_of(refusal)}, {"candidates", std::move(candidates)}});
  return object;
}

Json json_of(const Local& local) {
  Json gpus = Json::array();
  for (const kfd::Node& gpu : local.topology.nodes) {
    if (!gpu.is_gpu()) continue;
    const auto use = local.vram.find(gpu.gpu_id);
    gpus.push_back({{"gpu_id", gpu.gpu_id},
                    {"render_minor", gpu.drm_render_minor},
                    {"pci", kfd::pci_address(gpu)},
                    {"room_bytes", room_of(local, gpu.gpu_id)},
                    {"vram_bytes", use != local.vram.end() ? Json(use->second.total_bytes) : Json()}});
  }
  return gpus;
}

// Render files of a tree without a KFD process go to the GPU of the same gpu_id, as in a restore.
std::vector<std::string> homeless_render_files(const Checkpoint& checkpoint, const kfd::Topology& local) {
  std::vector<std::string> homeless;
  if (!checkpoint.kfd.empty()) return homeless;
  for (const auto& [id, image] : checkpoint.render) {
    if (local.find_gpu(image.gpu_id) == nullptr)
      homeless.push_back(
          checkpoint.name_of(render_image_name(id)) + " belongs to " + gpu_words(image.gpu_id) +
          ", which is not here; without a KFD process in the images no other can stand in for it [SL-T64]");
  }
  return homeless;
}

// Images whose private data the driver there will not take, and why.
std::vector<std::string> foreign_images(const Checkpoint& checkpoint, const Local& local) {
  std::vector<std::string> foreign;
  for (const auto& [id, image] : checkpoint.kfd) {
    if (image.alias_of || image.priv_data.empty()) continue;  // a pre-dump's has none
    if (const auto checked = check_private_data(image, local.topology.gpu_count(), local.record_bytes);
        !checked)
      foreign.push_back(kfd_image_name(id) + ": " + checked.error().what);
  }
  return foreign;
}

// Asking needs CRIU's rights. Without an answer sizes are not compared.
std::uint32_t local_record_bytes() {
  const auto kfd = kfd::kfd_device_number();
  const auto answer = kfd ? kfd::ask_bo_record_bytes(*kfd) : Result<std::uint32_t>(kfd.error());
  return answer ? *answer : 0;
}

ExitCode map(const MapArguments& arguments) {
  const settings::Config config = read_settings("map");
  const auto opened = open_images(arguments.images, config, !arguments.json);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("map", arguments.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);
  if (directory.checkpoint.is_predump()) return refuse("map", arguments.json, only_a_predump(directory));
  if (!directory.checkpoint.faults().empty()) {
    return refuse("map", arguments.json, no_images(directory.checkpoint.faults().front()));
  }
  auto topology = kfd::read_topology(topology_below(arguments.sysfs));
  const bool here = arguments.sysfs == kfd::kTopologyPath;
  if (!topology) {
    return refuse(
        "map", arguments.json,
        {ExitCode::Failed, topology.error().what,
         here ? "this machine has no KFD: load the amdgpu driver, or name with --sysfs a copy of another "
                "machine's /sys/class/kfd/kfd/topology (cp -rL)"
              : "--sysfs wants a copy of a machine's /sys/class/kfd/kfd/topology (cp -rL)"});
  }
  Local local{std::move(*topology), {}, here ? local_record_bytes() : 0};
  for (const kfd::Node& gpu : local.topology.nodes) {
    if (!here || !gpu.is_gpu()) continue;
    if (const auto use = kfd::vram_use(gpu.drm_render_minor)) local.vram[gpu.gpu_id] = *use;
  }
  std::vector<Mapping> mappings = topologies_of(directory.checkpoint);
  std::vector<kfd::MappedGpu> map;
  if (const std::string text = arguments.gpu_map.value_or(config.gpu_map.value_or("")); !text.empty()) {
    std::vector<const kfd::Topology*> sources;
    sources.reserve(mappings.size());
    for (const Mapping& mapping : mappings) sources.push_back(&mapping.source);
    const auto resolved = [&]() -> Result<std::vector<kfd::MappedGpu>> {
      SLUICE_TRY_ASSIGN(const kfd::GpuMap parsed, kfd::GpuMap::parse(text));
      return parsed.resolve(sources, local.topology);
    }();
    if (!resolved) {
      return refuse("map", arguments.json,
                    {ExitCode::Refused, resolved.error().what,
                     "correct the map: a restore with it fails; --gpu-map '' shows the GPUs of both sides"});
    }
    map = *resolved;
  }
  TreeChoice choice(local, config.match_rules, std::move(map), need_of(directory.checkpoint));
  choose_all(mappings, choice);
  const std::vector<std::string> homeless = homeless_render_files(directory.checkpoint, local.topology);
  const std::vector<std::string> foreign = foreign_images(directory.checkpoint, local);
  bool fits = homeless.empty() && foreign.empty();
  for (const Mapping& mapping : mappings) fits = fits && std::holds_alternative<kfd::Match>(mapping.outcome);
  if (arguments.json) {
    Json list = Json::array();
    for (const Mapping& mapping : mappings) list.push_back(json_of(mapping, local, choice));
    print_json({{"command", "map"},
                {"images", arguments.images},
                {"result", fits ? "fits" : "refused"},
                {"local_gpus", local.topology.gpu_count()},
                {"local", json_of(local)},
                {"mappings", std::move(list)},
                {"render_files", homeless},
                {"foreign_images", foreign},
                {"bo_record_bytes", local.record_bytes != 0 ? Json(local.record_bytes) : Json()}});
  } else {
    std::string text;
    for (const Mapping& mapping : mappings) text += text_of(mapping, local, choice);
    for (const auto* refused : {&homeless, &foreign}) {
      for (const std::string& file : *refused) text += "REFUSED: " + file + '\n';
    }
    if (fits && mappings.empty()) text += "every render file has its GPU here\n";
    if (fits && !mappings.empty()) text += text_of_others(mappings, local);
    (void)std::fputs(text.c_str(), stdout);
  }
  return fits ? ExitCode::Done : ExitCode::Refused;
}

}  // namespace

void add_map(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<MapArguments>();
  CLI::App* command = app.add_subcommand("map", "Which local GPUs a restore would use, or why it would fail");
  add_images_argument(*command, "IMAGES", arguments->images, kImagesHelp);
  command
      ->add_option("--sysfs", arguments->sysfs,
                   "use the topology that was copied to DIR instead of this machine's")
      ->type_name("DIR");
  command
      ->add_option("--gpu-map", arguments->gpu_map,
                   "try this map, as SLUICE_GPU_MAP has it, instead of the settings'")
      ->type_name("MAP");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Obeys SLUICE_GPU_MAP and the KFD_*_CHECK switches of the environment and of\n"
      "/etc/criu/sluice.conf, as a restore does, and names the switch that would allow\n"
      "what it refuses. Of GPUs that fit equally it names the one that a restore would\n"
      "use now: the same GPU while its VRAM has room, else the emptiest. To ask about\n"
      "another machine, copy its /sys/class/kfd/kfd/topology (cp -rL) and name the copy\n"
      "with --sysfs.\n\n"
      "Example: sluice map --sysfs topology-of-node7 /var/lib/checkpoints/job\n\n"
      "Exit status: 0 the GPUs fit, 1 failed (no topology, damaged images), 2 wrong\n"
      "usage, 3 the restore would be refused, or there are no images.");
  command->callback([arguments, &run] { run = [arguments] { return map(*arguments); }; });
}

}  // namespace sluice::cli
