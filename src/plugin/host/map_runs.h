// SPDX-License-Identifier: MIT
// Which descriptors the host takes from UPDATE_VMA_MAP. It restores a run of maps of one file through one
// descriptor, the one that the hook gives for the first of them; what the hook gives for the others it
// forgets, open, in the restored task. So the hook must know the runs, which are in the task's mm-<pid>.img.
//
// Source of every fact here: CRIU's criu/mem.c (open_vmas, premap_private_vma), files-reg.c (open_filemap),
// include/image.h and include/magic.h of v3.17.1, v4.1.1, v4.2 and criu-dev, which agree: a run is broken by
// another shared file map of another file or other open flags, by nothing else. A file is what has one id;
// these versions give each map of a device one of its own (file-ids.c), so that each is a run, but nothing
// promises that.
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

class MapRuns {
 public:
  // Of such maps, by address, each of which may be the first of its run: then the host is given a descriptor
  // too many rather than none. Of no maps nothing is known.
  static MapRuns of(std::span<const PluginMap> maps);
  // Of the task with that pid in its own pid namespace. Errors: those of reading the image; EBADMSG;
  // EPROTONOSUPPORT: of a form that is not known, as a later CRIU's may be.
  static Result<MapRuns> read(int image_dir, std::uint32_t pid);
  // The same from the file's bytes.
  static Result<MapRuns> parse(std::span<const std::uint8_t> bytes);

  // Whether the map of a plugin at `address` is the first of its run; true for one that is not known.
  bool is_first(std::uint64_t address) const;
  // Whether a plugin's map begins in [offset, offset + bytes) of its device, whichever that is; true where
  // nothing is known.
  bool maps(std::uint64_t offset, std::uint64_t bytes) const;
  // Whether the task is known to have no map that plugins are asked about.
  bool none() const { return known_ && offsets_.empty(); }
  // Whether no hook comes after the one for this map.
  bool is_last(std::uint64_t address) const { return last_ == address; }

 private:
  bool known_ = false;                   // from an image
  std::map<std::uint64_t, bool> first_;  // by address: maps that plugins are asked about
  std::set<std::uint64_t> offsets_;      // of those
  std::optional<std::uint64_t> last_;
};

}  // namespace sluice::plugin
