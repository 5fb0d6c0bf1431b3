// SPDX-License-Identifier: MIT
// SLUICE_GPU_MAP: which local GPU is to stand in for which of the images, as the user says it.
//
//   IMAGE=LOCAL,IMAGE=LOCAL,...
//
//   IMAGE   a gpu_id of the images (0x280e, or 10254 as sysfs has it), or renderD128: its render node then
//   LOCAL   a gpu_id, a PCI address (0000:c1:00.0), a render node (renderD129, 129)
//
// A number without 0x on the right is a render minor or a gpu_id, whichever there is; where it is both, of
// two GPUs, it is refused. So is everything else that does not name one GPU on each side, and a GPU named
// twice. GPUs that the map does not name are matched as ever among those that it leaves. Value types; any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kfd/matching.h"
#include "kfd/topology.h"

namespace sluice::kfd {

inline constexpr char kGpuMapSetting[] = "SLUICE_GPU_MAP";

// A GPU of a dump, whose processes may know it by different gpu_ids, by its render minor there; and what is
// to stand in for it here.
struct MappedGpu {
  std::uint32_t source_minor = 0;
  std::uint32_t actual_gpu_id = 0;

  bool operator==(const MappedGpu&) const = default;
};

class GpuMap {
 public:
  // Errors: EINVAL, naming what is no map.
  static Result<GpuMap> parse(std::string_view text);

  // `sources`: the topologies of the images' processes. Errors: EINVAL, naming the entry.
  Result<std::vector<MappedGpu>> resolve(std::span<const Topology* const> sources,
                                         const Topology& local) const;

 private:
  // A GPU as it was written; of the ways to take it those that it allows.
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

// What is wanted for one process of a tree. `source`: its GPUs. `agreed`: what processes before it were
// given; it gets the same. `map`: what the user says. Local GPUs that either names for a GPU that this
// process does not have are taken. `need`: bytes of VRAM of the whole tree by render minor in the images.
// `local`: by gpu_id here.
MatchWishes tree_wishes(const Topology& source, std::span<const MappedGpu> agreed,
                        std::span<const MappedGpu> map, const std::map<std::uint32_t, std::uint64_t>& need,
                        std::map<std::uint32_t, LocalGpu> local);

}  // namespace sluice::kfd
