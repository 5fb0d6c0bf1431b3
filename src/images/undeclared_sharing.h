// SPDX-License-Identifier: MIT
// Memory that upstream's images contain twice without saying so.
//
// They have no number for shared memory, and handles do not tell either. Images of 3.17 to 4.2 have none.
// criu-dev's are numbers within one file: criu's own for the KFD's BOs, the process' for a render file's. So
// equal handles usually mean different memory. But a BO's mmap offset is unique on its GPU (drm_vma_manager),
// whichever file or process asks, and both images have it. Two entries of one GPU with one offset are the
// same memory; a restore of both would create two.
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

class UndeclaredSharing {
 public:
  // Adds an image of the dump, by name; adding it again changes nothing. Images with a dump_id are ours, say
  // what is shared and are not examined. ENOSYS, naming both entries: the same memory.
  Result<void> add(const std::string& name, const KfdImage& image);
  Result<void> add(const std::string& name, const RenderImage& image);
  // unpack_dmabuf_image() refuses upstream's dma-bufs, which do not say whose memory it is.
  static Result<void> add(const std::string&, const DmaBufImage&) { return {}; }

 private:
  Result<void> note(std::uint32_t render_minor, std::uint64_t mmap_offset, const std::string& holder);

  std::set<std::string> added_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> holders_;  // by render minor and mmap offset
};

}  // namespace sluice
