// SPDX-License-Identifier: MIT
#include "plugin/dump/survey/survey.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "drm/target_file.h"
#include "kfd/uapi.h"
#include "plugin/dump/survey/kfd_survey.h"
#include "plugin/dump/survey/orphaned_memory.h"
#include "plugin/dump/survey/queue_losses.h"
#include "plugin/dump/survey/render_survey.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

// Once per file: it may have contexts and the like, which are lost.
void warn_of_contexts(int fd, const std::string& name) {
  std::string engines;
  for (const std::string& engine : drm::engines_used(fd)) engines += (engines.empty() ? "" : ", ") + engine;
  if (engines.empty()) return;
  log_line(
      Level::Warning,
      formatted("{} has submitted work of its own ({}), but its contexts, syncobjs, BO lists and user queues "
                "are not saved; a restored process that still uses them gets errors [SL-D29]",
                name, engines));
}

Result<RenderSurvey> list_render_file(TakenFile taken, const DumpBasis& basis, const StoppedJob& job) {
  const std::uint32_t minor = taken.device.render_minor;
  const kfd::Node* node = basis.topology.find_render_minor(minor);
  if (node == nullptr)  // unreached: no test
    return Error{
        ENODEV,
        formatted("renderD{} belongs to no GPU of the topology in sysfs; give criu the host's /sys [SL-D30]",
                  minor)};
  SLUICE_TRY_ASSIGN(RenderSurvey file, RenderSurvey::list(std::move(taken), *node, basis, job));
  return file;
}

struct Opened {
  KfdSurvey::All kfd;
  std::vector<RenderSurvey> render;
};

// Lists render files' BOs; ends older dumps' pauses of /dev/kfd files. All are opened before the first is
// begun: processes that an older dump has left paused must run first, and whatever can refuse the dump
// without a KFD ioctl belongs here.
Result<Opened> open_all(std::vector<TakenFile> files, const DumpBasis& basis, const StoppedJob& job) {
  Opened opened;
  bool unlisted = false;
  for (TakenFile& taken : files) {
    if (taken.device.kind == kfd::FileKind::Kfd) {
      SLUICE_TRY_ASSIGN(auto file, KfdSurvey::open(std::move(taken), basis, job));
      opened.kfd.push_back(std::move(file));
      continue;
    }
    const int fd = taken.own.get();
    SLUICE_TRY_ASSIGN(RenderSurvey file, list_render_file(std::move(taken), basis, job));
    unlisted = unlisted || !file.lists_bos();
    if (!basis.policy.is_again) warn_of_contexts(fd, file.name());
    opened.render.push_back(std::move(file));
  }
  if (unlisted) {
    log_line(Level::Info,
             "this kernel does not list the BOs of render nodes, so BOs allocated there are not saved; a BO "
             "that the CPU "
             "maps makes the dump fail");
  }
  return opened;
}

Result<void> finish_all(Opened opened, const StoppedJob& job, Survey& survey) {
  for (const auto& kfd : opened.kfd) {
    SLUICE_TRY_ASSIGN(SurveyedFile file, std::move(*kfd).finish());
    survey.add(std::move(file));
  }
  for (RenderSurvey& render : opened.render) {
    SLUICE_TRY(check_stopped(job.shared));
    SLUICE_TRY_ASSIGN(SurveyedFile file, std::move(render).finish());
    survey.add(std::move(file));
  }
  return {};
}

// The mmap offset of a BO of this GPU that no other file has: only the file that KFD acquired may map it.
std::optional<std::uint64_t> own_bo_offset(const SurveyedFile& file, std::uint32_t render_minor,
                                           const MemoryTable& memory) {
  const auto own = std::find_if(file.bos.begin(), file.bos.end(), [&](const SurveyedBo& bo) {
    return bo.place.render_minor == render_minor && !memory.of(bo.inode)->is_shared();
  });
  return own != file.bos.end() ? std::optional(own->place.offset) : std::nullopt;
}

// Whether the KFD process of file `kfd` uses the render file.
Result<void> ask_who_acquired(std::size_t kfd, const MemoryTable& memory, const SurveyedFile& process,
                              SurveyedFile& render) {
  auto& image = std::get<RenderImage>(render.image);
  if (image.kfd_acquired.value_or(false) || !share_any(render.holders, process.holders)) return {};
  const auto offset = own_bo_offset(process, image.minor, memory);
  if (!offset) return {};
  SLUICE_TRY_ASSIGN(const drm::MapAccess access, drm::may_map(render.fd, *offset));
  image.kfd_acquired = access == drm::MapAccess::Allowed;
  if (*image.kfd_acquired) render.acquired_by = kfd;
  return {};
}

Result<void> ask_who_acquired(Survey& survey) {
  for (std::size_t kfd = 0; kfd < survey.files.size(); ++kfd) {
    const SurveyedFile& process = survey.files[kfd];
    if (!std::holds_alternative<KfdImage>(process.image)) continue;
    for (SurveyedFile& render : survey.files) {
      if (std::holds_alternative<RenderImage>(render.image))
        SLUICE_TRY(ask_who_acquired(kfd, survey.memory, process, render));
    }
  }
  return {};
}

Result<void> read_maps(const std::vector<pid_t>& pids, const kfd::Topology& topology, Survey& survey) {
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(std::vector<proc::DeviceMap> maps, proc::device_maps(pid));
    std::erase_if(maps, [&topology](const proc::DeviceMap& map) {
      const kfd::FileClass file = kfd::classify_device(S_IFCHR, map.device, 0);
      return file.kind != kfd::FileKind::RenderNode ||
             topology.find_render_minor(file.render_minor) == nullptr;
    });
    if (!maps.empty()) survey.maps.emplace(pid, std::move(maps));
  }
  return {};
}

}  // namespace

std::string describe_bo(const SurveyedFile& file, const SurveyedBo& bo) {
  if (const auto* const image = std::get_if<KfdImage>(&file.image))
    return file.name + "'s BO at " + hex(image->bos[bo.number].addr);
  return file.name + ", GEM handle " +
         std::to_string(std::get<RenderImage>(file.image).bos[bo.number].gem.handle);
}

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right) {
  return std::find_first_of(left.begin(), left.end(), right.begin(), right.end()) != left.end();
}

void Survey::add(SurveyedFile file) {
  for (std::size_t bo = 0; bo < file.bos.size(); ++bo)
    memory.add({files.size(), bo}, file.bos[bo].inode, file.bos[bo].place);
  files.push_back(std::move(file));
}

Result<Survey> survey_tree(TreeFiles open, const TargetTree& tree, const DumpBasis& basis,
                           const KernelWait& wait, const StoppedJob& job) {
  Survey survey;
  for (const kfd::OpenDmaBuf& dmabuf : open.dmabufs) survey.memory.add_descriptor(dmabuf.inode);
  SLUICE_TRY_ASSIGN(Opened opened, open_all(std::move(open.files), basis, job));
  if (!opened.kfd.empty()) survey.stopped_from_ns = job.shared.world.now_ns();
  for (const auto& file : opened.kfd) {
    SLUICE_TRY(check_stopped(job.shared));
    SLUICE_TRY(file->begin(opened.kfd));
  }
  if (!basis.policy.job_runs) SLUICE_TRY(settle_losses(opened.kfd, wait, basis, job));
  SLUICE_TRY(finish_all(std::move(opened), job, survey));
  if (basis.policy.job_runs) return survey;
  SLUICE_TRY(find_orphans(open.dmabufs, basis, job, survey));
  SLUICE_TRY(ask_who_acquired(survey));
  if (survey.files.empty()) return survey;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, tree.processes());
  SLUICE_TRY(read_maps(pids, basis.topology, survey));
  return survey;
}

}  // namespace sluice::plugin
