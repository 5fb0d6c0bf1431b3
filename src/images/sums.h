// SPDX-License-Identifier: MIT
// The sidecar beside one lane's pages files: a sum per block of each, and what ties them to their dump.
// amdgpu-sums-<id>-<gpu_id>.img for the one file of a GPU's KFD BOs, amdgpu-sums-drm-<id>-<minor>.img for all
// files of a render file's BOs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/kfd_image.h"
#include "pipeline/checksum/checksum.h"

namespace sluice {

// Random, the same in every image of one dump; all zero means unknown.
using kfd::DumpId;
// Errors: getrandom's.
Result<DumpId> random_dump_id();

struct Sidecar {
  std::vector<SumTable> tables;          // one per pages file
  std::vector<std::string> pages_files;  // their names, in the same order
  Sum128 bo_table_digest{};
  DumpId dump_id{};

  // The largest of any table; 0 without tables.
  std::uint64_t most_block_bytes() const;
};

// REQUIRES: as many names as tables, and these are summed by contents_method().
std::vector<std::uint8_t> pack_sidecar(const Sidecar& sidecar);

// Errors: require_digest()'s; EBADMSG for anything that is not a sidecar as we write it: no file,
// counts that do not agree with the sizes, another algorithm, a block size that is no power of two from 4 KiB
// to kSumBlockBytes, files of two dumps or BO tables. `name` is for the message.
Result<Sidecar> unpack_sidecar(std::span<const std::uint8_t> payload, const std::string& name);

}  // namespace sluice
