// SPDX-License-Identifier: MIT
// The dump stage: from the first device map CRIU asks about to exit(). One Dumper per criu run, main thread
// only.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kfd/criu_ops.h"
#include "kfd/topology.h"
#include "plugin/config.h"
#include "plugin/contents.h"
#include "plugin/criu_host.h"

namespace sluice::plugin {

class Dumper {
 public:
  // Reads configuration and topology. A machine without KFD gives a dumper to which nothing is its own. In a
  // pre-dump only accept_map() is asked, and nothing must change: CRIU never calls exit() after it.
  static Result<std::unique_ptr<Dumper>> make(RunStage stage);
  ~Dumper();  // unpauses what finish() could not

  // DUMP_EXT_FILE. 0 when the file is ours and dumped, nothing when it is not ours. `fd` is a descriptor of
  // the target's open file, borrowed.
  Result<Answer> dump_file(int fd, int id);

  // HANDLE_DEVICE_VMA: 0 for maps of /dev/kfd and of AMD render nodes, nothing for others. EINVAL where a
  // process of the tree maps /dev/kfd and holds no descriptor of it, through which alone its GPU state could
  // be reached.
  Result<Answer> accept_map(const struct stat& st);

  // Starts the queues of every dumped process again. Idempotent.
  Result<void> unpause();

  // exit(): unpauses on every path; `ret` < 0: removes the images of this dump, metadata first.
  Result<void> finish(int ret);

 private:
  // The open file of /dev/kfd through which a KFD process was dumped.
  struct KfdFile {
    int id = 0;
    std::vector<pid_t> holders;  // processes whose descriptor it is
    kfd::CriuSession* session = nullptr;
  };
  // A GPU of a dumped KFD process, as far as render files of it want to know.
  struct ProcessGpu {
    std::uint32_t minor = 0;
    std::uint32_t user_gpu_id = 0;
    std::optional<std::uint64_t>
        bo_offset;  // mmap offset of one of its BOs: only the file KFD acquired may map it
  };
  // An open render node that was dumped.
  struct RenderFile {
    int id = 0;
    UniqueFd file;  // ours, of the target's open file: to ask what it may map
    std::uint32_t minor = 0;
    std::uint32_t user_gpu_id = 0;
    std::optional<bool> kfd_acquired;  // unknown until a BO of its GPU was seen
  };

  explicit Dumper(RunStage stage) : stage_(stage) {}
  void note_in_inventory();
  Result<void> check_kfd_maps();
  Result<void> dump_kfd(int fd, int id);
  Result<void> dump_render(int fd, int id, std::uint32_t minor);
  Result<const KfdFile*> find_alias(int fd, const std::vector<pid_t>& holders) const;
  Result<void> dump_process(kfd::CriuSession& session, int id, const std::vector<pid_t>& holders);
  Result<std::vector<GpuOutcome>> dump_contents(std::vector<GpuContents> contents, int id);
  Result<std::vector<GpuContents>> contents_of(kfd::Checkpoint& checkpoint) const;
  void note_gpus(const kfd::Checkpoint& checkpoint);
  Result<void> settle(RenderFile& render);
  Result<void> write_render(const RenderFile& render);
  Result<void> remove_stale();
  void remove_images();
  void remove_old_pages();
  void name_hopeless_maps() const;

  RunStage stage_;
  Config config_;
  dev_t kfd_device_ = 0;  // 0: no KFD on this machine
  kfd::Topology topology_;
  std::string topology_error_;
  std::uint32_t kfd_minor_version_ = 0;
  DumpId dump_id_{};
  kfd::UnpauseGuard sessions_;
  std::vector<KfdFile> kfd_files_;
  std::vector<ProcessGpu> gpus_;
  std::vector<RenderFile> render_files_;
  std::vector<std::string> images_;  // names of this dump, in the order in which they must go
  bool in_inventory_ = false;
  bool kfd_maps_checked_ = false;
  bool stale_removed_ = false;
  std::vector<std::string> old_pages_;  // pages files of an earlier dump that may be written over
};

}  // namespace sluice::plugin
