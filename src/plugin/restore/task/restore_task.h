// SPDX-License-Identifier: MIT
// The restore stage in one restored task, which CRIU forks from its main process. It makes our open files
// with their GPU state, and tells where their memory is mapped now. The task's only thread.
//
// One file makes shared memory and the others import it, in whatever order CRIU asks for files, and in
// different tasks. So a task makes all its own memory before it waits for imports: then none waits for ever.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/host/criu_host.h"
#include "plugin/restore/basis/restore_basis.h"
#include "plugin/restore/task/kfd_restore.h"
#include "plugin/restore/task/render_restore.h"
#include "plugin/restore/task/task_images.h"

namespace sluice::plugin {

class RestoreTask {
 public:
  // Made by the main process; every task has a copy from its fork on. `server`: RestoreMain::server().
  // `basis` is borrowed.
  RestoreTask(const RestoreBasis& basis, std::optional<int> server);
  RestoreTask(const RestoreTask&) = delete;
  RestoreTask& operator=(const RestoreTask&) = delete;

  // RESTORE_EXT_FILE: the fd for CRIU to take, or nothing when file `id` is not ours.
  Result<Answer> restore_file(int id);

  // UPDATE_VMA_MAP: 1 with new offset (and fd, for a render node), nothing if the map is not ours. A map of
  // ours without a restored BO gets an offset, and an fd, that cannot be mapped: CRIU ignores this hook's
  // errors, but that fails.
  Result<Answer> update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                            std::uint64_t& new_offset, int& fd);

 private:
  Result<UniqueFd> find_or_make(int id);
  Result<void> make_all(std::uint32_t pid);
  Result<UniqueFd> make(DeviceImage image, int id);
  Result<void> import_bos();

  TaskParts parts_;
  TaskImages images_;
  KfdRestore kfd_{parts_};
  RenderRestore render_{parts_, kfd_};
  bool all_made_ = false;
  bool restored_device_ = false;  // a file that can be mapped
  std::map<int, UniqueFd> made_;  // files of the task that CRIU has not asked for yet, by id
};

}  // namespace sluice::plugin
