// SPDX-License-Identifier: MIT
// Memory that images of upstream's plugins show twice and do not say so.
//
// They have no number for memory that is shared. Their handles do not tell it either: those of 3.17 to 4.2
// have none, and criu-dev's are numbers of one file each, of criu's own for the KFD's BOs and of the process'
// for those of a render file, so that equal ones are of different memory as a rule. But a BO's mmap offset is
// its own on its GPU (drm_vma_manager), whichever file or process it is asked through, and both name it. Two
// entries of one GPU with one offset are the same memory: a restore that made each would make it two.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/result.h"
#include "images/kfd_image.h"
#include "images/metadata.h"

namespace sluice {

class UnsaidSharing {
 public:
  // Images of one dump, by name; one that was added stays as it was. Those with a dump_id, which are ours,
  // say what is shared and are not looked at. ENOSYS, naming both entries: one memory.
  Result<void> add(const std::string& name, const kfd::KfdImage& image);
  Result<void> add(const std::string& name, const RenderImage& image);
  // A dma-buf of upstream's, which does not say whose memory it is, is refused by unpack_dmabuf_image().
  static Result<void> add(const std::string&, const DmaBufImage&) { return {}; }

 private:
  Result<void> note(std::uint32_t render_minor, std::uint64_t mmap_offset, const std::string& holder);

  std::set<std::string> added_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> holders_;  // by render minor and mmap offset
};

}  // namespace sluice
