// SPDX-License-Identifier: MIT
// Which descriptors of UPDATE_VMA_MAP the host keeps. It restores a run of maps of one file through one
// descriptor, the one that the hook gives for the run's first map. Descriptors that the hook gives for the
// other maps stay open in the restored task. So the hook must know the runs, which are in the task's
// mm-<pid>.img.
//
// Source of every fact here: CRIU's criu/mem.c (open_vmas, premap_private_vma), files-reg.c (open_filemap),
// include/image.h and include/magic.h of v3.17.1, v4.1.1, v4.2 and criu-dev, which agree. Only a shared file
// map of another file or with other open flags ends a run. Files are the same if their ids are. These
// versions give each map of a device its own id (file-ids.c), so each is a run, but nothing guarantees that.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "base/result.h"

namespace sluice::plugin {

// A map that plugins are asked about.
struct PluginMap {
  std::uint64_t address = 0;
  std::uint64_t offset = 0;  // in its device, bytes
};

class VmaRuns {
 public:
  // Maps by address, each of which may be the first of its run: a surplus descriptor is better than a missing
  // one. Of no maps: nothing is known.
  static VmaRuns of(std::span<const PluginMap> maps);
  // For the task with that pid in its own pid namespace. Errors: those of reading the image; EBADMSG;
  // EPROTONOSUPPORT for an unknown form, such as a later CRIU's.
  static Result<VmaRuns> read(int image_dir, std::uint32_t pid);
  // The same from the file's bytes.
  static Result<VmaRuns> parse(std::span<const std::uint8_t> bytes);

  // Whether the plugin's map at `address` is the first of its run; true for an unknown one.
  bool is_first(std::uint64_t address) const;
  // Whether a plugin's map begins in [offset, offset + bytes) of any device; true if nothing is known.
  bool maps(std::uint64_t offset, std::uint64_t bytes) const;
  // Whether the task is known to have no maps of plugins.
  bool none() const { return known_ && offsets_.empty(); }
  // Whether the hook for this map is the last one.
  bool is_last(std::uint64_t address) const { return last_ == address; }

 private:
  bool known_ = false;                   // from an image
  std::map<std::uint64_t, bool> first_;  // maps of plugins, by address
  std::set<std::uint64_t> offsets_;      // of those
  std::optional<std::uint64_t> last_;
};

}  // namespace sluice::plugin
