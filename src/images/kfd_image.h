// SPDX-License-Identifier: MIT
// The payload of amdgpu-kfd-<id>.img as a value, with its encoder and decoder.
//
// encode writes what upstream's plugin reads; decode reads what upstream's plugin, or a damaged disk, made,
// and its result never contradicts itself. Our own fields (see proto/criu-amdgpu.proto) are empty in
// upstream's images. The frame (8 bytes of length) and files are handled elsewhere. Value types,
// thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kfd/criu_ops.h"
#include "kfd/memory/hsakmt_shm.h"
#include "kfd/topology.h"

namespace sluice {

inline constexpr std::uint32_t kNoHandle = 0xFFFFFFFFU;  // BoEntry::handle without a handle

// A BO as the kernel describes it, and its sharing.
struct BoEntry : kfd::KfdBo {
  // For upstream's plugin; we use only `shared`. In criu-dev's images every exportable BO has one, in those
  // of 3.17 to 4.2 none.
  std::uint32_t handle = kNoHandle;
  std::uint32_t shared = 0;  // number of the memory in the dump if it is shared; 0: not shared
  bool imports = false;      // another holder makes it and has its contents: not among upstream's BOs

  bool operator==(const BoEntry&) const = default;
};

// Random, the same in every image of one dump; all zero means unknown.
using DumpId = std::array<std::uint8_t, 16>;

struct KfdImage {
  std::uint32_t pid = 0;
  kfd::Topology topology;    // gpu_ids are user gpu_ids; `hidden` is not stored
  std::vector<BoEntry> bos;  // in the order of the kernel's buckets
  std::uint32_t num_objects = 0;
  kfd::HsakmtShm shm;  // bytes 0: none
  std::vector<std::uint8_t> priv_data;

  // Ours; empty or 0 for none.
  std::string sluice_version;
  std::string kernel_release;
  std::uint32_t kfd_minor_version = 0;
  std::uint32_t bo_record_bytes = 0;
  std::optional<std::uint32_t> alias_of;  // then everything but topology may be empty
  std::optional<DumpId> dump_id;
  bool has_sums = false;            // the dump wrote checksums of the contents
  std::optional<std::uint32_t> id;  // CRIU's of the open file
  // Names of pages files of the dump that have much of what this process' files have, too.
  std::vector<std::string> replica_files;

  bool operator==(const KfdImage&) const;
};

// The part of `local` that a process sees: all CPU nodes, and the GPUs of `devices` under the process' names.
// GPUs hidden from it are left out, and links to them are not valid. Errors: ENODEV if the KFD shows the
// process a GPU that sysfs does not show us; EIO if `devices` names one twice.
Result<kfd::Topology> topology_of_process(const kfd::Topology& local,
                                          std::span<const kfd::DeviceIds> devices);

// Bytes of the message criu_kfd: nodes and links in the order of the topology's listing, so that upstream's
// plugin restores equal GPUs as themselves. Links that are not valid are left out.
std::vector<std::uint8_t> encode_kfd_image(const KfdImage& image);

// Errors: EBADMSG, with the reason: not the message, counts that differ from the contents, a duplicate node
// or GPU, gpu_id or render minor out of range, a link of unknown type; BOs of unknown GPUs, without size, or
// longer than the address space. A link that leads nowhere is kept but not valid, as in every topology.
Result<KfdImage> decode_kfd_image(std::span<const std::uint8_t> bytes);

}  // namespace sluice
