// SPDX-License-Identifier: MIT
#include "cli/show/show_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "images/files/cause.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Kinds& kinds) {
  Json object = Json::object();
  for (const auto& [kind, sum] : kinds) object[kind] = {{"bos", sum.bos}, {"bytes", sum.bytes}};
  return object;
}

Json gpus_json(const Survey& survey) {
  Json list = Json::array();
  for (const Gpu& gpu : survey.gpus) {
    Json links = Json::array();
    for (const GpuLink& link : gpu.links) {
      links.push_back({{"type", link.type},
                       {"gpu_id", link.to_gpu ? Json(link.peer) : Json()},
                       {"cpu_node", link.to_gpu ? Json() : Json(link.peer)}});
    }
    list.push_back({{"gpu_id", gpu.gpu_id},
                    {"name", gpu.name},
                    {"gfx", gpu.gfx},
                    {"pci", gpu.pci},
                    {"render_minor", gpu.render_minor},
                    {"vram_bytes", gpu.vram_bytes},
                    {"links", std::move(links)}});
  }
  return list;
}

Json bos_json(const Checkpoint& checkpoint) {
  Json list = Json::array();
  for (const auto& [id, image] : checkpoint.kfd) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const BoEntry& bo = image.bos[i];
      list.push_back({{"image", checkpoint.name_of(kfd_image_name(id))},
                      {"gpu_id", bo.gpu_id},
                      {"bo", i},
                      {"kind", kind_of(bo)},
                      {"address", bo.addr},
                      {"bytes", bo.bytes},
                      {"alloc_flags", bo.alloc_flags},
                      {"handle", bo.handle == kNoHandle ? Json() : Json(bo.handle)},
                      {"imported", bo.imports},
                      {"shared", bo.shared}});
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    for (std::size_t i = 0; i < image.bos.size(); ++i) {
      const RenderBo& bo = image.bos[i];
      list.push_back({{"image", checkpoint.name_of(render_image_name(id))},
                      {"gpu_id", image.gpu_id},
                      {"bo", i},
                      {"kind", kind_of(bo.gem)},
                      {"address", bo.gem.mappings.empty() ? 0 : bo.gem.mappings.front().address},
                      {"bytes", bo.gem.bytes},
                      {"alloc_flags", bo.gem.alloc_flags},
                      {"handle", bo.gem.handle},
                      {"imported", bo.imports},
                      {"shared", bo.shared}});
    }
  }
  return list;
}

}  // namespace

const char* result_of(const std::vector<Error>& faults) {
  if (faults.empty()) return "shown";
  const auto any = [&](Cause cause) {
    return std::any_of(faults.begin(), faults.end(),
                       [cause](const Error& fault) { return cause_of(fault.err) == cause; });
  };
  if (any(Cause::Damaged)) return "damaged";
  if (any(Cause::Missing)) return "incomplete";
  if (any(Cause::Unreadable) || any(Cause::NotAllowed)) return "unreadable";
  return any(Cause::Unsupported) ? "unsupported" : "unsigned";
}

std::string remedy_of(const std::vector<Error>& faults) {
  if (faults.empty()) return "";
  const std::string own = remedy_in(faults.front().what);
  return own.empty() ? sluice::remedy_of(faults.front().err) : own;
}

Json faults_json(const std::vector<Error>& faults) {
  Json list = Json::array();
  for (const Error& fault : faults) list.push_back(fault.what);
  return list;
}

Json show_json(const ImageDirectory& directory, const Survey& survey, bool list_bos) {
  const Checkpoint& checkpoint = directory.checkpoint;
  Json object = {{"command", "show"},
                 {"images", directory.path},
                 {"result", result_of(survey.faults)},
                 {"predump", checkpoint.is_predump()},
                 {"gpus", gpus_json(survey)}};
  Json processes = Json::array();
  for (const auto& [id, image] : checkpoint.kfd) {
    processes.push_back({{"image", checkpoint.name_of(kfd_image_name(id))},
                         {"pid", image.alias_of ? Json() : Json(image.pid)},
                         {"alias_of", image.alias_of ? Json(*image.alias_of) : Json()},
                         {"memory", json_of(kinds_of(image))},
                         {"objects", image.num_objects},
                         {"sluice_version", image.sluice_version},
                         {"kernel_release", image.kernel_release},
                         {"kfd_minor_version", image.kfd_minor_version},
                         {"bo_record_bytes", driver_records_of(image).bo_bytes},
                         {"dump_id", image.dump_id ? Json(hex(*image.dump_id)) : Json()}});
  }
  object["processes"] = std::move(processes);
  Json render = Json::array();
  for (const auto& [id, image] : checkpoint.render) {
    render.push_back(
        {{"image", checkpoint.name_of(render_image_name(id))},
         {"pid", image.pid ? Json(*image.pid) : Json()},
         {"gpu_id", image.gpu_id},
         {"render_minor", image.minor != RenderImage::kUnknownMinor ? Json(image.minor) : Json()},
         {"kfd_acquired", image.kfd_acquired ? Json(*image.kfd_acquired) : Json()},
         {"memory", json_of(kinds_of(image))}});
  }
  object["render_files"] = std::move(render);
  Json files = Json::array();
  for (const PagesFile& file : survey.files) {
    files.push_back({{"file", file.name},
                     {"of", file.owner},
                     {"bytes", file.bytes},
                     {"expected_bytes", file.expected_bytes},
                     {"disk_bytes", file.disk_bytes},
                     {"zero_bytes", file.zero_bytes},
                     {"sums", file.has_sums ? Json(*file.has_sums) : Json()},
                     {"has_parent", file.has_parent},
                     {"has_replicas", file.has_replicas}});
  }
  object["files"] = std::move(files);
  Json shared = Json::array();
  for (const auto& [number, memory] : survey.shared) {
    shared.push_back(
        {{"number", number}, {"bytes", memory.bytes}, {"made_by", memory.maker}, {"also", memory.holders}});
  }
  object["shared"] = std::move(shared);
  object["memory"] = json_of(survey.memory);
  object["bytes"] = survey.bytes;
  object["disk_bytes"] = survey.disk_bytes;
  object["zero_bytes"] = survey.zero_bytes;
  if (list_bos) object["bos"] = bos_json(checkpoint);
  object["faults"] = faults_json(survey.faults);
  object["remedy"] = remedy_of(survey.faults);
  return object;
}

}  // namespace sluice::cli
