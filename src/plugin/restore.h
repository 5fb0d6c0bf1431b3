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
#include "kfd/criu_ops.h"
#include "kfd/matching.h"
#include "kfd/topology.h"
#include "plugin/config.h"
#include "plugin/content_channel.h"
#include "plugin/content_server.h"
#include "plugin/lifeline.h"
#include "plugin/map_runs.h"
#include "plugin/shared_table.h"
#include "plugin/stopped_tree.h"

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
  // it is when CRIU dies before all are started. Nothing when it is no GPU process.
  Result<Answer> resume(int pid);

  // exit(): joins what still runs. A failure that resume() has reported is not reported again.
  Result<void> finish();

 private:
  // A range of mmap offsets of a device file, as it was and as it is.
  struct OffsetRange {
    bool kfd = false;  // of /dev/kfd, else of a render node
    std::uint32_t source_minor = 0;
    std::uint32_t minor = 0;  // the local render node
    std::uint64_t old_begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t new_begin = 0;
    std::optional<int> render_id;  // CRIU's id of the render file that has the BO; none: the KFD has it
  };
  // The render file that KFD acquired for a GPU in this task: the only one that may map those of its BOs
  // that are not shared. Ours from the moment it is opened, at a number above all of the task's own, until
  // the task has a descriptor of it, or until the last map; a host that dups what it maps through leaves it
  // to the task.
  struct AcquiredFile {
    std::uint32_t minor = 0;
    UniqueFd file;            // empty: CRIU has given it a number of the task's
    bool handed_out = false;  // the task has a descriptor, too
    int task_fd = -1;         // that one, once it was looked for on behalf of a map
  };

  // A render file whose BOs are made, but for those that it imports.
  struct Importing {
    int id = 0;
    int file = -1;  // borrowed
    RenderImage image;
    const kfd::Node* gpu = nullptr;
    bool acquired = false;  // KFD uses it
    std::unique_ptr<drm::GemRestore> gem;
  };

  // A KFD process that RESTORE has made, but for the BOs that it imports.
  struct KfdImporting {
    int id = 0;
    int file = -1;  // borrowed
    kfd::KfdImage image;
  };

  Restorer() = default;
  Result<void> survey_images();
  // Whether the process maps BOs of the GPU through several files, or may.
  bool maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const;
  Result<void> allow_in_common_file(std::uint32_t minor, int dmabuf);
  void ask_record_bytes();
  std::size_t all_lanes() const;
  Result<void> make_all(std::uint32_t pid);
  Result<UniqueFd> make_high(UniqueFd file) const;
  Result<int> restore_dmabuf(const DmaBufImage& image);
  Result<void> publish(std::uint32_t number, int dmabuf);
  Result<UniqueFd> take_shared(std::uint32_t number);
  Result<int> restore_kfd(const kfd::KfdImage& image, int id);
  void meet(std::uint32_t pid);
  Result<int> restore_render(const RenderImage& image, int id);
  drm::GemBo without_maps_of_kfd(const RenderBo& bo) const;
  Result<void> restore_bos(Importing& file);
  Result<void> import_bos();
  Result<void> import_kfd_bos(const KfdImporting& process);
  Result<std::uint64_t> mmap_offset_of(std::uint32_t minor, int dmabuf) const;
  Result<void> note_mapped(const Importing& file, const RenderBo& bo, int dmabuf);
  GpuContents contents_on(const kfd::Node& gpu, std::uint32_t user_gpu_id, std::uint32_t source_minor) const;
  Result<void> match_gpus(const kfd::KfdImage& image);
  Result<void> match_gpus_by_any_image();
  Result<const kfd::Node*> local_gpu(std::uint32_t user_gpu_id) const;
  Result<const kfd::Node*> same_gpu(const RenderImage& image);
  Result<UniqueFd> open_high(std::uint32_t minor) const;
  Result<void> note_kfd_bo(const kfd::KfdImage& image, const kfd::BoEntry& bo, std::uint64_t new_offset,
                           int dmabuf);
  Result<AcquiredFile*> acquire(std::uint32_t minor);
  Result<UniqueFd> hand_out(std::uint32_t minor);
  Result<int> mapping_file(std::uint32_t minor);
  Result<int> task_file_of(const OffsetRange& bo) const;
  Result<int> map_source(const OffsetRange& bo);
  Result<Answer> find_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                          std::uint64_t& new_offset, int& fd);
  Result<void> read_map_runs();
  Result<int> give_away(int file) const;
  void close_kept_files();
  Result<std::vector<kfd::RestoreDevice>> restore_devices(const kfd::KfdImage& image);
  Result<std::vector<kfd::RestoredBo>> make_bos(const kfd::KfdDevice& own, const kfd::KfdImage& image,
                                                std::span<const kfd::RestoreDevice> devices) const;
  Result<ContentRequest> request_of(const kfd::KfdImage& image, int id,
                                    std::vector<kfd::RestoredBo> restored) const;
  Result<void> fill_contents(ContentRequest request);
  Result<void> fill_in_task(ContentRequest request);
  Result<kfd::ResumeOutcome> resume_process(int pid);
  Result<void> join_server();

  // The files of one process through which it maps BOs of one GPU: by the pid and the render minor in the
  // image. Among them the one that KFD acquired for it is `acquired`.
  struct MappedFiles {
    bool acquired = false;
    unsigned others = 0;
  };

  Config config_;
  bool needed_ = false;                   // the image may have files of ours
  bool joined_ = false;                   // resume() knows, and has reported, how the server's contents fared
  bool has_record_bytes_ = false;         // a KFD image tells the size of its BO records
  bool restored_any_ = false;             // task: a file of ours
  bool all_made_ = false;                 // task: make_all()
  std::uint32_t asked_record_bytes_ = 0;  // what the kernel said; 0: its version tells, or nothing does
  dev_t kfd_device_ = 0;                  // 0: no KFD on this machine
  std::unique_ptr<ContentServer> server_;
  std::unique_ptr<Lifeline> lifeline_;
  std::optional<StoppedTree> tree_;  // from the first resume() on
  bool tree_killed_ = false;

  // Of all images, as far as they can be read in init():
  std::map<std::uint32_t, unsigned> lanes_by_minor_;  // by the render minor in the image
  std::map<std::pair<std::uint32_t, std::uint32_t>, MappedFiles> mapped_files_;
  // Files by id, with the pid of the process that restores them, where it is known.
  std::map<int, std::uint32_t> kfd_pids_;
  SameDump same_dump_;
  std::map<int, std::uint32_t> render_pids_;
  std::set<std::uint32_t> shared_numbers_;  // of memory that several files have and one of them makes
  std::unique_ptr<SharedTable> shared_;     // where there is any

  // Of the task:
  std::optional<std::uint32_t> pid_;  // in its own namespace
  int first_unused_fd_ = -1;
  kfd::Topology local_;
  kfd::Topology source_;  // with match_: of the image's machine
  std::optional<kfd::Match> match_;
  std::vector<AcquiredFile> acquired_;
  std::vector<OffsetRange> offsets_;
  // By local minor, where maps_several_files(): a file that may map the BOs of all of them. CRIU takes one
  // descriptor for a whole run of maps of one path, whichever files they were mapped through.
  std::map<std::uint32_t, UniqueFd> common_files_;
  std::map<int, int> render_fds_;  // the task's descriptor by render file, once a map of it was asked for
  bool map_runs_read_ = false;
  MapRuns map_runs_;
  std::vector<Importing> importing_;
  std::vector<KfdImporting> kfd_importing_;
  std::map<int, UniqueFd> made_;   // files of the task that CRIU has not asked for yet, by id
  std::vector<int> restored_ids_;  // of KFD files
};

}  // namespace sluice::plugin
