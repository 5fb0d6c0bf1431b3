// SPDX-License-Identifier: MIT
// The restore stage: init() in CRIU's main process, then restored tasks (forked from it, each with its own
// copy of the Restorer) make their GPU state, then the main process resumes them.
//
// Main process: make, start_server, resume, finish. Task: restore_file, update_map. One thread each.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "drm/gem_restore.h"
#include "images/metadata.h"
#include "kfd/bo_import.h"
#include "kfd/criu_ops.h"
#include "kfd/topology.h"
#include "plugin/host/stopped_tree.h"
#include "plugin/host/thread_numbers.h"
#include "plugin/restore/content_channel.h"
#include "plugin/restore/content_server.h"
#include "plugin/restore/device_maps.h"
#include "plugin/restore/gpu_match.h"
#include "plugin/restore/lifeline.h"
#include "plugin/restore/restore_survey.h"
#include "plugin/restore/shared_table.h"
#include "plugin/restore/tree_match.h"
#include "settings/config.h"

namespace sluice::plugin {

class Restorer {
 public:
  // Reads the configuration; on hosts that can, makes the content server's socket. A restorer whose image
  // needs no GPU plugin, or on a machine without KFD, finds nothing its own.
  static Result<std::unique_ptr<Restorer>> make();

  // POST_FORKING: starts the content server, if there is one. Without it tasks restore themselves.
  void start_server();

  // RESTORE_EXT_FILE: the fd for CRIU to take, or nothing when file `id` is not ours.
  Result<Answer> restore_file(int id);

  // UPDATE_VMA_MAP: 1 with new offset (and fd, for a render node), nothing when the map is not ours. A map of
  // ours that no restored BO explains gets an offset, and an fd, that cannot be mapped: CRIU ignores this
  // hook's errors, but not that.
  Result<Answer> update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                            std::uint64_t& new_offset, int& fd);

  // RESUME_DEVICES_LATE: joins all contents at the first call, then starts the process' queues. On any
  // failure the whole tree is killed and nothing more is started, since CRIU ignores this hook's errors; so
  // it is when CRIU dies before all are started. Nothing when it is no GPU process, or none of the tree is.
  Result<Answer> resume(int pid);

  // exit(): joins what still runs. A failure that resume() has reported is not reported again. `ret` < 0: the
  // restore has failed, and CRIU has killed its tasks; waits, for a while, until they have ended. Else:
  // EPROTO, and the processes are killed, where resume() was never asked.
  Result<void> finish(int ret);

 private:
  // A render file whose BOs are made, but for those that it imports.
  struct Importing {
    int id = 0;
    int file = -1;  // borrowed
    RenderImage image;
    const kfd::Node* gpu = nullptr;
    bool acquired = false;  // KFD uses it
    std::unique_ptr<drm::GemRestore> gem;
  };

  struct KfdImport {
    std::size_t index = 0;  // among the BOs of the image
    kfd::BoImport::Bo bo;
  };

  // A KFD process that RESTORE has made, but for the BOs that it imports.
  struct KfdImporting {
    int id = 0;
    int file = -1;  // borrowed
    kfd::KfdImage image;
    std::vector<KfdImport> imports;
  };

  Restorer() = default;
  Result<Answer> restore_if_ours(int id);
  void ask_record_bytes();
  Result<void> prepare_match();
  Result<void> make_all(std::uint32_t pid);
  Result<int> restore_dmabuf(const DmaBufImage& image);
  Result<void> publish(std::uint32_t number, int dmabuf);
  Error nobody_has_shared() const;
  Result<UniqueFd> take_shared(std::uint32_t number);
  Result<int> restore_kfd(const kfd::KfdImage& image, int id);
  std::set<std::uint32_t> minors_of_files_to_come(const kfd::KfdImage& image) const;
  Result<void> match_gpus_of(const RenderImage& render);
  template <class Image>
  Result<Image> checked(Result<Image> image, const std::string& name);
  Result<kfd::KfdImage> load_kfd_image(int id);
  Result<RenderImage> load_render_image(int id);
  Result<int> restore_render(const RenderImage& image, int id);
  drm::GemBo without_maps_of_kfd(const Importing& file, const RenderBo& bo) const;
  Result<void> restore_bos(Importing& file);
  Result<void> import_bos();
  static Result<std::vector<KfdImport>> imports_of(const kfd::KfdImage& image);
  Result<void> import_kfd_bos(const KfdImporting& process);
  Result<void> note_mapped(const Importing& file, const RenderBo& bo, int dmabuf);
  GpuContents contents_on(const kfd::Node& gpu, std::uint32_t user_gpu_id, std::uint32_t source_minor) const;
  Result<void> note_kfd_bo(const kfd::KfdImage& image, const kfd::BoEntry& bo, std::uint64_t new_offset,
                           int dmabuf);
  Result<std::vector<kfd::RestoreDevice>> restore_devices(const kfd::KfdImage& image);
  Result<std::vector<kfd::RestoredBo>> make_bos(const kfd::KfdDevice& own, const kfd::KfdImage& image,
                                                std::span<const kfd::RestoreDevice> devices) const;
  Result<ContentRequest> request_of(const kfd::KfdImage& image, int id,
                                    std::vector<kfd::RestoredBo> restored) const;
  Result<void> fill_contents(ContentRequest request);
  Result<void> fill_in_task(ContentRequest request);
  std::optional<ThreadNumbers::Raised> raise_thread_numbers() const;
  Result<kfd::ResumeOutcome> resume_process(int pid);
  Result<void> check_vram() const;
  Result<void> join_server();
  Result<void> join_unasked();
  Result<void> check_resumed() const;
  void await_end_of_tasks() const;

  Config config_;
  bool needed_ = false;                   // the image may have files of ours
  bool joined_ = false;                   // resume() knows, and has reported, how the server's contents fared
  bool restored_any_ = false;             // task: a file of ours
  bool all_made_ = false;                 // task: make_all()
  bool unverified_said_ = false;          // by this task: see SharedByJobs
  std::uint32_t asked_record_bytes_ = 0;  // what the kernel said; 0: its version tells, or nothing does
  dev_t kfd_device_ = 0;                  // 0: no KFD on this machine
  ino_t own_pid_namespace_ = 0;           // of the main process
  std::unique_ptr<ThreadNumbers> thread_numbers_;
  std::unique_ptr<Lifeline> lifeline_;
  std::unique_ptr<ContentServer> server_;  // uses the lifeline's memory
  std::optional<StoppedTree> tree_;        // from the first resume() on
  bool tree_killed_ = false;

  RestoreSurvey survey_;
  std::unique_ptr<SharedTable> shared_;  // where there is any
  std::unique_ptr<TreeMatch> tree_match_;

  // Of the task:
  GpuMatch gpus_;
  DeviceMaps maps_;
  std::vector<Importing> importing_;
  std::vector<KfdImporting> kfd_importing_;
  std::map<int, UniqueFd> made_;   // files of the task that CRIU has not asked for yet, by id
  std::vector<int> restored_ids_;  // of KFD files
};

}  // namespace sluice::plugin
