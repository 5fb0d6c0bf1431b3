// SPDX-License-Identifier: MIT
// sluice map IMAGES: on which GPUs would these images be restored here, or on another machine whose KFD
// topology was copied? A restore's own choice (kfd/matching/tree_choice.h) of what this process sees: a
// container may see less. A copy does not tell how much VRAM is free.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "cli/checkpoint/image_directory.h"
#include "cli/commands.h"
#include "cli/refusal.h"
#include "cli/text.h"
#include "images/files/cause.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/pages.h"
#include "images/vram_need.h"
#include "kfd/device.h"
#include "kfd/driver.h"
#include "kfd/matching/gpu_map.h"
#include "kfd/matching/matching.h"
#include "kfd/matching/tree_choice.h"
#include "kfd/memory/vram_room.h"
#include "plugin/restore/gpus/gpu_match.h"
#include "plugin/restore/gpus/vram_ledger.h"
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
  std::map<std::uint32_t, kfd::LocalGpu> gpus;  // by gpu_id, as a restore sees them; empty for a copy
  std::map<std::uint32_t, std::uint64_t> vram;  // in all, by gpu_id; only GPUs that report it
  std::uint32_t record_bytes = 0;               // the driver's, of a BO (kfd/driver.h); 0: unknown

  std::optional<std::uint64_t> room(std::uint32_t gpu_id) const {
    const auto gpu = gpus.find(gpu_id);
    return gpu != gpus.end() ? gpu->second.room : std::nullopt;
  }
};

// The outcome for KFD images with the same topology, of processes that are bound by the others in the same
// way.
struct Mapping {
  std::vector<std::string> images;
  const kfd::Topology& source;
  kfd::TreeChoice choice;

  const kfd::Match* match() const { return std::get_if<kfd::Match>(&choice.outcome); }
  const kfd::Refusal& refusal() const { return std::get<kfd::Refusal>(choice.outcome); }
  std::string remedy() const {
    return remedy_in(choice.must_follow ? choice.refused().what : refusal().sentence);
  }
};

// What a restore will do with the images.
struct Forecast {
  std::vector<Mapping> mappings;
  std::vector<Error> homeless;  // one per render file without a GPU
  std::vector<Error> foreign;   // one per image with private data that the driver will not take
};

// REQUIRES: the topology has it.
std::string gpu_name(const kfd::Topology& topology, std::uint32_t gpu_id) {
  return kfd::gpu_words(*topology.find_gpu(gpu_id));
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

// Tasks choose in the order of CRIU's ids, the order of the tree, as long as they do not overtake each other.
class Tree {
 public:
  Tree(const Checkpoint& checkpoint, kfd::TreeGpus gpus, const Local& local, const kfd::MatchRules& rules)
      : checkpoint_(checkpoint), gpus_(std::move(gpus)), local_(local), rules_(rules) {
    for (const auto& [id, image] : checkpoint.kfd) {
      if (!image.alias_of) processes_.emplace(id, &image);
    }
  }

  Forecast foretell() {
    std::multimap<int, const RenderImage*> files;  // nullptr: a KFD's
    for (const auto& [id, process] : processes_) files.emplace(id, nullptr);
    for (const auto& [id, image] : checkpoint_.render) files.emplace(id, &image);
    for (const auto& [id, image] : files)
      image != nullptr ? (void)choose_for_file(id, *image) : (void)choose(id);
    for (const auto& [id, process] : processes_) note(id, *process);
    return std::move(forecast_);
  }

 private:
  const kfd::TreeChoice& choose(int process) {
    const auto chosen = choices_.find(process);
    if (chosen != choices_.end()) return chosen->second;
    kfd::TreeChoice choice = kfd::choose_gpus(process_of(*processes_.at(process)), gpus_, std::move(agreed_),
                                              {local_.topology, local_.gpus}, rules_);
    agreed_ = choice.agreed;
    return choices_.emplace(process, std::move(choice)).first->second;
  }

  // The task's KFD process tells the GPUs, or any other.
  void choose_for_file(int id, const RenderImage& image) {
    auto process = std::find_if(processes_.begin(), processes_.end(),
                                [&](const auto& each) { return each.second->pid == image.pid; });
    if (process == processes_.end()) process = processes_.begin();
    const kfd::RenderFile file = file_of(image);
    if (process != processes_.end() &&
        (std::holds_alternative<kfd::Refusal>(choose(process->first).outcome) ||
         kfd::find_gpu_of(file, process->second->topology) != nullptr)) {
      return;
    }
    const auto pair = kfd::choose_without_kfd(file, agreed_, local_.topology);
    if (pair) {
      (void)kfd::agree(agreed_, *pair);
    } else {
      forecast_.homeless.push_back(
          {pair.error().err, checkpoint_.name_of(render_image_name(id)) + ": " + pair.error().what});
    }
  }

  void note(int id, const KfdImage& image) {
    const std::string name = checkpoint_.name_of(kfd_image_name(id));
    kfd::TreeChoice& choice = choices_.at(id);
    const auto same =
        std::find_if(forecast_.mappings.begin(), forecast_.mappings.end(), [&](const Mapping& mapping) {
          return mapping.source.nodes == image.topology.nodes && mapping.choice.follows == choice.follows &&
                 mapping.choice.must_follow == choice.must_follow;
        });
    if (same != forecast_.mappings.end()) {
      same->images.push_back(name);
    } else {
      forecast_.mappings.push_back({{name}, image.topology, std::move(choice)});
    }
    const auto checked = check_private_data(image, local_.topology.gpu_count(), local_.record_bytes);
    if (!checked) forecast_.foreign.push_back({checked.error().err, name + ": " + checked.error().what});
  }

  const Checkpoint& checkpoint_;
  kfd::TreeGpus gpus_;
  const Local& local_;
  const kfd::MatchRules& rules_;
  std::map<int, const KfdImage*> processes_;  // by id, without further files of one process
  std::map<int, kfd::TreeChoice> choices_;    // the same
  std::vector<kfd::MappedGpu> agreed_;
  Forecast forecast_;
};

// As a restore's survey reads them: in the order of the images' names.
std::vector<kfd::Topology> topologies_of(const Checkpoint& checkpoint) {
  std::map<std::string, const KfdImage*> images;
  for (const auto& [id, image] : checkpoint.kfd) {
    if (!image.alias_of) images.emplace(checkpoint.name_of(kfd_image_name(id)), &image);
  }
  std::vector<kfd::Topology> topologies;
  for (const auto& [name, image] : images) kfd::add_topology(topologies, image->topology);
  return topologies;
}

VramBytes need_of(const Checkpoint& checkpoint) {
  VramBytes need;
  for (const auto& [id, image] : checkpoint.kfd) add_vram(need, vram_of(image));
  for (const auto& [id, image] : checkpoint.render) add_vram(need, vram_of(image));
  return need;
}

// What a restore fails with, and the remedy; nothing if it does not. Records are compared before there are
// tasks.
std::optional<std::pair<std::string, std::string>> refusal_of(const Forecast& forecast) {
  const auto refused = [](const std::vector<Error>& errors) {
    return std::pair(errors.front().what, remedy_in(errors.front().what));
  };
  if (!forecast.foreign.empty() && forecast.foreign.front().err == EINVAL) return refused(forecast.foreign);
  for (const Mapping& mapping : forecast.mappings) {
    if (mapping.match() == nullptr) return std::pair(mapping.choice.refused().what, mapping.remedy());
  }
  if (!forecast.foreign.empty()) return refused(forecast.foreign);
  if (!forecast.homeless.empty()) return refused(forecast.homeless);
  return std::nullopt;
}

// The free VRAM of a local GPU, in words.
std::string free_text(const Local& local, std::uint32_t gpu_id) {
  const auto vram = local.vram.find(gpu_id);
  const auto room = local.room(gpu_id);
  return room && vram != local.vram.end() ? bytes_text(*room) + " of " + bytes_text(vram->second)
                                          : "not known";
}

std::uint64_t need_on(const Mapping& mapping, std::uint32_t user_gpu_id, const VramBytes& need) {
  const auto found = need.find(mapping.source.find_gpu(user_gpu_id)->drm_render_minor);
  return found != need.end() ? found->second : 0;
}

std::string text_of(const Mapping& mapping, const Local& local, const VramBytes& needed) {
  std::string text;
  for (const std::string& image : mapping.images) text += (text.empty() ? "" : ", ") + image;
  if (const kfd::Match* match = mapping.match()) {
    text = broken_line(text + (match->identity ? ": every GPU is the same"
                                               : ": every GPU has a local one that stands in for it"));
    Table table({"in the image", ">VRAM needed", "here", ">VRAM free", ""});
    for (const kfd::DeviceIds& pair : match->gpus) {
      const std::uint64_t need = need_on(mapping, pair.user_gpu_id, needed);
      const auto room = local.room(pair.actual_gpu_id);
      table.add({gpu_name(mapping.source, pair.user_gpu_id), bytes_text(need),
                 gpu_name(local.topology, pair.actual_gpu_id), free_text(local, pair.actual_gpu_id),
                 room && *room < need ? bytes_text(need - *room) + " are missing" : ""});
    }
    return text + table.text();
  }
  std::istringstream lines(text + ": REFUSED: " + mapping.refusal().text() + '\n' +
                           mapping.choice.refused().what);
  text.clear();
  for (std::string line; std::getline(lines, line);) text += broken_line(line);
  return text;
}

// The local GPUs that replace none.
std::string text_of_others(const std::vector<Mapping>& mappings, const Local& local) {
  Table table({"not chosen", "PCI", ">VRAM free"});
  for (const kfd::Node& gpu : local.topology.nodes) {
    const auto chosen = [&](const Mapping& mapping) {
      const kfd::Match* match = mapping.match();
      return match != nullptr && std::any_of(match->gpus.begin(), match->gpus.end(), [&](const auto& pair) {
               return pair.actual_gpu_id == gpu.gpu_id;
             });
    };
    if (gpu.is_gpu() && std::none_of(mappings.begin(), mappings.end(), chosen))
      table.add({kfd::gpu_words(gpu), kfd::pci_address(gpu), free_text(local, gpu.gpu_id)});
  }
  return table.empty() ? "" : table.text();
}

template <class Number>
Json json_of(const std::optional<Number>& number) {
  return number ? Json(*number) : Json();
}

Json json_of(const Mapping& mapping, const Local& local, const VramBytes& needed) {
  Json object = {{"images", mapping.images}};
  if (const kfd::Match* match = mapping.match()) {
    Json pairs = Json::array();
    for (const kfd::DeviceIds& pair : match->gpus) {
      pairs.push_back({{"gpu_id", pair.user_gpu_id},
                       {"local_gpu_id", pair.actual_gpu_id},
                       {"need_bytes", need_on(mapping, pair.user_gpu_id, needed)},
                       {"room_bytes", json_of(local.room(pair.actual_gpu_id))}});
    }
    object.update({{"result", "fits"}, {"identity", match->identity}, {"gpus", std::move(pairs)}});
    return object;
  }
  const kfd::Refusal& refusal = mapping.refusal();
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
  object.update({{"result", "refused"},
                 {"message", refusal.sentence},
                 {"remedy", mapping.remedy()},
                 {"candidates", std::move(candidates)}});
  return object;
}

Json json_of(const Local& local) {
  Json gpus = Json::array();
  for (const kfd::Node& gpu : local.topology.nodes) {
    if (!gpu.is_gpu()) continue;
    const auto vram = local.vram.find(gpu.gpu_id);
    gpus.push_back({{"gpu_id", gpu.gpu_id},
                    {"render_minor", gpu.drm_render_minor},
                    {"pci", kfd::pci_address(gpu)},
                    {"room_bytes", json_of(local.room(gpu.gpu_id))},
                    {"vram_bytes", vram != local.vram.end() ? Json(vram->second) : Json()}});
  }
  return gpus;
}

// Asking needs CRIU's rights. Without an answer sizes are not compared.
std::uint32_t local_record_bytes() {
  const auto kfd = kfd::kfd_device_number();
  const auto answer = kfd ? kfd::ask_bo_record_bytes(*kfd) : Result<std::uint32_t>(kfd.error());
  return answer ? *answer : 0;
}

// What running restores have reserved needs CRIU's rights, too; nobody has reserved anything without a
// ledger.
Local local_of(kfd::Topology topology, bool here) {
  Local local{std::move(topology), {}, {}, here ? local_record_bytes() : 0};
  if (!here) return local;
  std::unique_ptr<plugin::VramLedger> ledger;
  if (plugin::VramLedger::exists()) {
    if (auto opened = plugin::VramLedger::open()) ledger = std::move(*opened);
  }
  const auto kfd_device = kfd::kfd_device_number();
  kfd::VramMeter vram(kfd_device ? *kfd_device : 0);
  local.gpus = plugin::local_gpus(local.topology, ledger.get(), vram);
  for (const auto& [gpu_id, gpu] : local.gpus) {
    if (const auto use = vram.use(*local.topology.find_gpu(gpu_id))) local.vram[gpu_id] = use->total_bytes;
  }
  return local;
}

Json json_of(const std::string& images, const Forecast& forecast, const Local& local, const VramBytes& need) {
  const auto refusal = refusal_of(forecast);
  Json object = {{"command", "map"}, {"images", images}, {"result", refusal ? "refused" : "fits"}};
  if (refusal) object.update({{"message", refusal->first}, {"remedy", refusal->second}});
  Json mappings = Json::array(), homeless = Json::array(), foreign = Json::array();
  for (const Mapping& mapping : forecast.mappings) mappings.push_back(json_of(mapping, local, need));
  for (const Error& file : forecast.homeless) homeless.push_back(file.what);
  for (const Error& image : forecast.foreign) foreign.push_back(image.what);
  object.update({{"local_gpus", local.topology.gpu_count()},
                 {"local", json_of(local)},
                 {"mappings", std::move(mappings)},
                 {"render_files", std::move(homeless)},
                 {"foreign_images", std::move(foreign)},
                 {"bo_record_bytes", local.record_bytes != 0 ? Json(local.record_bytes) : Json()}});
  return object;
}

Result<std::vector<kfd::MappedGpu>> resolve(const std::string& text,
                                            const std::vector<kfd::Topology>& sources,
                                            const kfd::Topology& local) {
  SLUICE_TRY_ASSIGN(const kfd::GpuMap map, kfd::GpuMap::parse(text));
  return map.resolve(sources, local);
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
  const Local local = local_of(std::move(*topology), here);
  std::vector<kfd::Topology> topologies = topologies_of(directory.checkpoint);
  kfd::TreeGpus gpus{need_of(directory.checkpoint), {}, {}};
  if (const std::string text = arguments.gpu_map.value_or(config.gpu_map.value_or("")); !text.empty()) {
    auto resolved = resolve(text, topologies, local.topology);
    if (!resolved)
      return refuse("map", arguments.json, ExitCode::Refused, resolved.error().what,
                    remedy_in(resolved.error().what));
    gpus.map = std::move(*resolved);
  }
  if (!topologies.empty()) gpus.widest = std::move(topologies.front());
  const VramBytes need = gpus.need;
  const Forecast forecast = Tree(directory.checkpoint, std::move(gpus), local, config.match_rules).foretell();
  const bool fits = !refusal_of(forecast);
  if (arguments.json) {
    print_json(json_of(arguments.images, forecast, local, need));
  } else {
    std::string text;
    for (const Mapping& mapping : forecast.mappings) text += text_of(mapping, local, need);
    for (const auto* refused : {&forecast.homeless, &forecast.foreign}) {
      for (const Error& file : *refused) text += broken_line("REFUSED: " + file.what);
    }
    if (fits && forecast.mappings.empty()) text += "every render file has its GPU here\n";
    if (fits && !forecast.mappings.empty()) text += text_of_others(forecast.mappings, local);
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
