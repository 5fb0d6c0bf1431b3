// SPDX-License-Identifier: MIT
#include "plugin/dump/plan/dump_plan.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/format.h"
#include "images/pages.h"
#include "kfd/uapi.h"

namespace sluice::plugin {

namespace {

using Sizes = std::map<BoPlace, std::uint64_t>;  // bytes of BOs

// The first BO of the lowest rank creates the memory.
int rank(const SurveyedFile& file, const SurveyedBo& bo) {
  if (!bo.can_create) return 4;
  if (std::holds_alternative<RenderImage>(file.image)) return 2;
  if (bo.looks_imported) return 3;
  return bo.ipc == Ipc::Exported ? 0 : 1;  // RESTORE gives back the handle only to the one that makes it
}

class Sharing {
 public:
  explicit Sharing(std::vector<SurveyedFile>& files) : files_(files) {}

  // Nothing if it has one user. Errors: EINVAL, E2BIG.
  Result<std::optional<SharedMemory>> decide(const MemoryTable::Memory& memory) {
    const BoRef creator = *std::min_element(memory.bos.begin(), memory.bos.end(), [this](BoRef a, BoRef b) {
      return rank(file(a), bo(a)) < rank(file(b), bo(b));
    });
    if (!bo(creator).can_create) {
      return Error{EINVAL, words(memory.bos.front()) +
                               " is memory of another GPU where no process of the tree allocated it; dump "
                               "the process that did in the same tree [SL-D15]"};
    }
    SLUICE_TRY(check_exporter(memory));
    if (!memory.is_shared()) {
      set(creator, 0, 0, false);
      return std::optional<SharedMemory>();
    }
    if (last_number_ == kMostSharedBos) {
      return Error{E2BIG,
                   formatted("{} is shared, and so are {} other BOs, the limit; share fewer BOs [SL-D16]",
                             words(creator), last_number_)};
    }
    SharedMemory shared{++last_number_, bo(creator).handle, words(creator)};
    if (is_kfd(creator)) {
      const auto importer =
          std::find_if(memory.bos.begin(), memory.bos.end(), [this](BoRef one) { return !is_kfd(one); });
      shared.handle = importer != memory.bos.end() ? bo(*importer).handle : shared.number;
    }
    for (const BoRef one : memory.bos) set(one, shared.number, shared.handle, !(one == creator));
    return std::optional(std::move(shared));
  }

 private:
  SurveyedFile& file(BoRef ref) const { return files_[ref.file]; }
  const SurveyedBo& bo(BoRef ref) const { return file(ref).bos[ref.bo]; }
  // Memory that came by an IPC handle is some process's; another one cannot be asked whether it still has it.
  Result<void> check_exporter(const MemoryTable::Memory& memory) const {
    const auto imported = std::find_if(memory.bos.begin(), memory.bos.end(),
                                       [this](BoRef one) { return bo(one).ipc == Ipc::Imported; });
    const bool has_exporter = std::any_of(memory.bos.begin(), memory.bos.end(), [this](BoRef one) {
      return is_kfd(one) && !bo(one).looks_imported;
    });
    if (imported == memory.bos.end() || has_exporter) return {};
    return Error{EINVAL, words(*imported) +
                             " is memory of a process outside this dump, imported by its IPC handle, and "
                             "would become a copy; dump both processes as one tree, or let this one close "
                             "it [SL-D99]"};
  }
  bool is_kfd(BoRef ref) const { return std::holds_alternative<KfdImage>(file(ref).image); }
  std::string words(BoRef ref) const { return describe_bo(file(ref), bo(ref)); }

  void set(BoRef ref, std::uint32_t number, std::uint32_t handle, bool imports) const {
    const std::uint32_t entry = bo(ref).number;
    if (auto* const process = std::get_if<KfdImage>(&file(ref).image)) {
      process->bos[entry].shared = number;
      process->bos[entry].imports = imports;
      if (number != 0) process->bos[entry].handle = handle;
    } else {
      RenderBo& own = std::get<RenderImage>(file(ref).image).bos[entry];
      own.shared = number;
      own.imports = imports;
    }
  }

  std::vector<SurveyedFile>& files_;
  std::uint32_t last_number_ = 0;
};

Result<std::map<ino_t, SharedMemory>> decide_sharing(Survey& survey) {
  std::map<ino_t, SharedMemory> all;
  Sharing sharing(survey.files);
  for (const auto& [dmabuf, memory] : survey.memory.all()) {
    if (memory.bos.empty()) continue;  // a descriptor of other memory
    SLUICE_TRY_ASSIGN(auto shared, sharing.decide(memory));
    if (shared) all.emplace(dmabuf, std::move(*shared));
  }
  return all;
}

// CRIU restores a file in the process of the lowest pid that holds it; KFD needs it in its own process.
Result<void> check_restorer(const SurveyedFile& render, const SurveyedFile& process) {
  const auto own = render.restorer.innermost;
  const auto kfds = process.restorer.innermost;
  if (!own || !kfds || *own == *kfds) return {};
  return Error{
      EINVAL,
      formatted(
          "{}, the file that the KFD uses for process {}, would be restored in process {}, which holds it, "
          "too; let process {} close it [SL-D50]",
          render.name, *kfds, *own, *own)};
}

// A render file has its GPU's name from the KFD process of its holders.
Result<void> name_gpus(std::vector<SurveyedFile>& files) {
  for (SurveyedFile& render : files) {
    auto* const image = std::get_if<RenderImage>(&render.image);
    if (image == nullptr) continue;
    for (const SurveyedFile& process : files) {
      const auto* const its = std::get_if<KfdImage>(&process.image);
      if (its == nullptr || !share_any(render.holders, process.holders)) continue;
      const kfd::Node* const gpu = its->topology.find_render_minor(image->minor);
      if (gpu != nullptr) image->gpu_id = gpu->gpu_id;
    }
    if (render.acquired_by) SLUICE_TRY(check_restorer(render, files[*render.acquired_by]));
  }
  return {};
}

// The BOs that a restored process can map again: those of files that are restored in it.
std::map<pid_t, Sizes> mappable(const std::vector<SurveyedFile>& files) {
  std::map<pid_t, Sizes> all;
  for (const SurveyedFile& file : files) {
    Sizes& sizes = all[file.restorer.pid];
    if (const auto* const process = std::get_if<KfdImage>(&file.image)) {
      for (const SurveyedBo& bo : file.bos) sizes.emplace(bo.place, process->bos[bo.number].bytes);
    } else if (const auto* const render = std::get_if<RenderImage>(&file.image)) {
      for (const RenderBo& bo : render->bos)
        if (bo.mmap_offset != 0) sizes.emplace(BoPlace{render->minor, bo.mmap_offset}, bo.gem.bytes);
    }
  }
  return all;
}

bool has(const Sizes& sizes, const BoPlace& place) {
  const auto after = sizes.upper_bound(place);
  if (after == sizes.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return begin.render_minor == place.render_minor && place.offset - begin.offset < bytes;
}

// Kernels before 6.18 do not list a render node's BOs; only mapped ones show.
Result<void> check_maps(const Survey& survey) {
  const std::map<pid_t, Sizes> known = mappable(survey.files);
  for (const auto& [pid, maps] : survey.maps) {
    const auto own = known.find(pid);
    for (const proc::DeviceMap& map : maps) {
      if (own != known.end() && has(own->second, {minor(map.device), map.offset})) continue;
      return Error{EINVAL, formatted("process {} maps at {:#x} a BO of renderD{} that none of its files "
                                     "lists; it must keep the file "
                                     "open that the BO comes from, or needs Linux 6.18 or newer [SL-D54]",
                                     pid, map.address, minor(map.device))};
    }
  }
  return {};
}

// A restore must be able to tell the private data's records apart.
Result<void> check_imports(const std::vector<SurveyedFile>& files) {
  for (const SurveyedFile& file : files) {
    const auto* const image = std::get_if<KfdImage>(&file.image);
    if (image == nullptr) continue;
    const auto checked = check_private_data(*image, image->topology.gpu_count(), 0);
    if (!checked) return explain(file.name, checked.error());
  }
  return {};
}

// One for each GPU of a KFD process, in the order of its BOs, or one for a render file.
std::vector<LaneContents> lanes_of(SurveyedFile& file, const DumpPolicy& policy) {
  std::vector<PagesSet> sets;
  std::size_t bos = 0;
  if (const auto* const process = std::get_if<KfdImage>(&file.image)) {
    sets = pages_of(*process);
    bos = process->bos.size();
  } else if (const auto* const render = std::get_if<RenderImage>(&file.image)) {
    if (PagesSet set = pages_of(*render); !set.bos.empty()) sets.push_back(std::move(set));
    bos = render->bos.size();
  }
  std::vector<UniqueFd> dmabufs(bos);
  for (SurveyedBo& bo : file.bos) dmabufs[bo.number] = std::move(bo.dmabuf);
  std::vector<LaneContents> lanes;
  for (PagesSet& set : sets) {
    const std::uint32_t minor =
        set.drm_minor ? *set.drm_minor
                      : std::get<KfdImage>(file.image).topology.find_gpu(set.gpu_id)->drm_render_minor;
    set.predump = policy.job_runs;
    lanes.emplace_back(std::move(set), dmabufs, minor);
  }
  return lanes;
}

}  // namespace

std::vector<std::uint32_t> PlannedFile::shared(bool imports) const {
  std::vector<std::uint32_t> numbers;
  const auto add = [&](const auto& bos) {
    for (const auto& bo : bos)
      if (bo.shared != 0 && bo.imports == imports) numbers.push_back(bo.shared);
  };
  if (const auto* const process = std::get_if<KfdImage>(&image)) add(process->bos);
  if (const auto* const render = std::get_if<RenderImage>(&image)) add(render->bos);
  return numbers;
}

const SharedMemory* DumpPlan::shared_of(ino_t dmabuf) const {
  const auto found = shared.find(memory.key_of(dmabuf));
  return found != shared.end() ? &found->second : nullptr;
}

Result<DumpPlan> plan_dump(Survey survey, const DumpPolicy& policy) {
  DumpPlan plan;
  SLUICE_TRY(check_maps(survey));
  SLUICE_TRY_ASSIGN(plan.shared, decide_sharing(survey));
  SLUICE_TRY(name_gpus(survey.files));
  SLUICE_TRY(check_imports(survey.files));
  for (SurveyedFile& file : survey.files) {
    plan.lanes.push_back(lanes_of(file, policy));
    plan.files.push_back({std::move(file.image), std::move(file.name), std::move(file.holders), file.fd,
                          std::move(file.own), file.began_ns});
  }
  plan.memory = std::move(survey.memory);
  plan.orphans = std::move(survey.orphans);
  plan.not_restored = std::move(survey.not_restored);
  return plan;
}

}  // namespace sluice::plugin
