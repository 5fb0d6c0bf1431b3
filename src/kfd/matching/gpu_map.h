// SPDX-License-Identifier: MIT
// SLUICE_GPU_MAP: the user's choice of local GPUs to replace those of the images.
//
//   IMAGE=LOCAL,IMAGE=LOCAL,...
//
//   IMAGE   a gpu_id of the images (0x280e, or 10254 as in sysfs), or renderD128: its old render node
//   LOCAL   a gpu_id, a PCI address (0000:c1:00.0), a render node (renderD129, 129)
//
// On the right, a number without 0x is a render minor or a gpu_id, whichever exists; if it could mean two
// GPUs, it is refused. So is anything else that does not name one GPU on each side, and a GPU named twice.
// Other GPUs are matched as usual among the rest. Value types; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kfd/matching/matching.h"
#include "kfd/topology.h"

namespace sluice::kfd {

inline constexpr char kGpuMapSetting[] = "SLUICE_GPU_MAP";

// A GPU of a dump and its local replacement. Processes may know it by different gpu_ids, so its render minor
// identifies it.
struct MappedGpu {
  std::uint32_t source_minor = 0;
  std::uint32_t actual_gpu_id = 0;

  bool operator==(const MappedGpu&) const = default;
};

class GpuMap {
 public:
  // Errors: EINVAL, with the part that is invalid.
  static Result<GpuMap> parse(std::string_view text);

  // `sources`: the topologies of the images' processes. Errors: EINVAL, with the entry.
  Result<std::vector<MappedGpu>> resolve(std::span<const Topology> sources, const Topology& local) const;

 private:
  // A GPU as written, and the possible meanings of that text.
  struct Name {
    std::string text;
    std::optional<std::uint32_t> gpu_id;
    std::optional<std::uint32_t> minor;
    std::string pci;

    bool names(const Node& gpu) const;
  };
  struct Entry {
    Name source, local;
  };
  static std::optional<Name> source_name(std::string_view text);
  static std::optional<Name> local_name(std::string_view text);

  std::vector<Entry> entries_;
};

}  // namespace sluice::kfd
