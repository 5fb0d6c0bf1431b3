// SPDX-License-Identifier: MIT
// Virtual machines by name: what a host with MI210 or MI300X cards says of itself, as the device model's
// numbers (config.h) and as the sysfs tree (sysfs_tree.h), both made from one set of options so that they
// always agree.
//
// Values come from captures of real machines (topology of MI210 x 8 in two XGMI hives, MI300X x 8) published
// with ROCm's Kubernetes device plugin. The MI300X capture is of a card in eight partitions; the whole card
// (SPX) here is eight times its units. Context save and control stack sizes follow the kernel's formula.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"
#include "sysfs_tree.h"

namespace vamdgpu {

enum class Preset { Mi210, Mi300x };
enum class Fabric { Xgmi, Pcie };  // how GPUs are joined: hives with a full mesh of XGMI, or PCIe only

// The one release number from which the private formats follow (GET_VERSION says 1.<this>).
constexpr std::uint32_t kKfdLinux61 = 11;
constexpr std::uint32_t kKfdLinux612 = 17;
constexpr std::uint32_t kKfdLinux72 = 23;

// AMD's out-of-tree driver (amdgpu-dkms). What the versions of one KFD number have in common is Linux's of
// about that number; the rest is in the model (out_of_tree), and differences.md says where it was read.
struct OutOfTreeDriver {
  std::string_view version;  // of the module, in sysfs
  std::uint32_t kfd_minor_version;
  std::uint32_t bo_record_bytes;
};
constexpr OutOfTreeDriver kOutOfTreeDrivers[] = {{"6.0.5", 11, VAMDGPU_BO_RECORD_AMD_16},
                                                 {"6.14.14", 18, VAMDGPU_BO_RECORD_AMD_64}};

// What to build. Plain defaults: two MI210 with 256 MiB each behind one CPU node on Linux 7.2. Sizes in
// bytes. The vectors are indexed by GPU, 0..gpus-1; an empty one (or a short one) leaves the rest to the
// default.
struct MachineOptions {
  Preset preset = Preset::Mi210;
  unsigned gpus = 2;       // 1..16
  unsigned cpu_nodes = 1;  // 1..16; GPUs are spread over them in runs, the first GPUs at the first node
  Fabric fabric = Fabric::Xgmi;
  unsigned hive_size = 0;  // GPUs of one XGMI hive; 0: the preset's (MI210 4, MI300X 8)
  std::uint64_t vram_bytes = std::uint64_t{256} << 20;  // a multiple of 4096; all of it is taken at the start
  std::uint64_t gtt_bytes = std::uint64_t{256} << 20;   // likewise
  bool large_bar = true;  // false: only 256 MiB of VRAM are CPU visible (heap_type 2)

  unsigned minor_base = 128;           // render minors count up from here, ...
  std::vector<std::uint32_t> minors;   // ... or are these
  std::vector<std::uint32_t> gpu_ids;  // default: a 16-bit hash that stays the same from run to run
  std::vector<unsigned> node_order;    // GPUs in the order of their topology nodes; default 0, 1, 2 ...
  std::set<unsigned> hidden;           // GPUs that the device cgroup refuses

  std::uint32_t kfd_major = 235;
  std::uint32_t kfd_minor_version = kKfdLinux72;
  // AMD's out-of-tree driver of this version, with its kfd_minor_version; empty: Linux's own.
  std::string out_of_tree;
  std::optional<std::uint32_t> bo_record_bytes;  // default: what that driver writes (config.h)
  bool evict_once = false;
  bool change_handle = false;
  std::optional<bool> list_handles;  // default: from Linux 7.2 on
  bool tolerant_sdma = false;
  std::uint64_t sdma_bytes_per_s = 0;  // per GPU; 0: as fast as it goes
};

// The machine, ready to be made.
struct MachineDescription {
  vamdgpu_machine_config config{};
  SystemTree tree;
};

// Throws std::invalid_argument, saying which option cannot be.
MachineDescription describe(const MachineOptions& options);

// "mi210", "mi300x"; nothing for any other name.
std::optional<Preset> preset_by_name(std::string_view name);
std::string_view preset_name(Preset preset);

// The value of a property of a node, 0 when it has none of that name. For tests.
std::uint64_t property_value(const TopologyNode& node, std::string_view name);

}  // namespace vamdgpu
