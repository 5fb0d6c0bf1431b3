// SPDX-License-Identifier: MIT
// What a dump will write, decided from the survey alone: who creates shared memory, what each image says,
// which contents flow, and what cannot be restored and so is refused.
//
// Made without effects, and never changed while it is carried out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/contents/contents_job.h"
#include "plugin/dump/survey/survey.h"

namespace sluice::plugin {

struct PlannedFile {
  std::variant<KfdImage, RenderImage, KfdAlias> image;  // complete, except for CRIU's id
  std::string name;                                     // for messages
  std::vector<pid_t> holders;
  int fd = -1;   // ours of the open file; a KFD file's session owns it
  UniqueFd own;  // the same, of a render file
  std::uint64_t began_ns = 0;

  bool is_kfd() const { return !std::holds_alternative<RenderImage>(image); }
  bool is_alias() const { return std::holds_alternative<KfdAlias>(image); }
  // Numbers of the shared memory that it creates, or imports.
  std::vector<std::uint32_t> shared(bool imports) const;
};

// Memory that several holders share, dumped once and created once.
struct SharedMemory {
  std::uint32_t number = 0;  // in the dump, from 1
  std::uint32_t handle = 0;  // the GEM handle that names it in upstream's images
  std::string creator;       // for messages: the BO of the file that creates it
};

struct DumpPlan {
  std::vector<PlannedFile> files;                // the survey's; their order is that of turns on the disk
  std::vector<std::vector<LaneContents>> lanes;  // by file
  std::map<ino_t, SharedMemory> shared;          // by the key of its dma-bufs in `memory`
  MemoryTable memory;
  std::map<ino_t, std::size_t> orphans;
  std::map<ino_t, Error> not_restored;

  // The memory of an open dma-buf. Null if no file of the tree has it.
  const SharedMemory* shared_of(ino_t dmabuf) const;
};

// The KFD process that allocated shared memory creates it; else the first render file that can; else the
// first KFD process that can. Errors, all named: EINVAL for memory that no file of the tree can create, for a
// map of a render node that its process could not make again, and for a file that the KFD uses and that would
// be restored in another process; E2BIG for more shared BOs than a restore accepts (kMostSharedBos); EBADMSG
// if private data whose BOs are imported cannot be split into records.
Result<DumpPlan> plan_dump(Survey survey, const DumpPolicy& policy);

}  // namespace sluice::plugin
