// SPDX-License-Identifier: MIT
// How a restored task gets its BOs filled: by the content server in CRIU's main process if that accepts them,
// else by its own lanes. A task's only thread.
#pragma once

#include <optional>

#include "base/result.h"
#include "plugin/host/thread_numbers.h"
#include "plugin/restore/basis/restore_basis.h"
#include "plugin/restore/server/content_channel.h"

namespace sluice::plugin {

class TaskContents {
 public:
  // `server`: its socket's number in the fdstore; none: there is no server. `basis` is borrowed.
  TaskContents(const RestoreBasis& basis, std::optional<int> server) : basis_(basis), server_(server) {}

  // A lane for `pages`, on the local `gpu`. `dmabufs`: of the whole BO table. `source_minor`: of the GPU in
  // the image.
  LaneContents lane(PagesSet pages, std::vector<UniqueFd>& dmabufs, const kfd::Node& gpu,
                    std::uint32_t source_minor) const;

  // Fills the BOs, or hands them to the server, which has filled them when the tree is resumed. Errors: those
  // of ContentsJob; ESRCH if the main process is dead.
  Result<void> fill(ContentRequest request);

 private:
  Result<void> hand_to_server(const ContentRequest& request) const;
  Result<void> fill_here(ContentRequest request);
  std::optional<ThreadNumbers::Raised> raise_thread_numbers() const;

  const RestoreBasis& basis_;
  std::optional<int> server_;
  bool unverified_said_ = false;  // this task's: see Warned
};

}  // namespace sluice::plugin
