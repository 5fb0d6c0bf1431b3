// SPDX-License-Identifier: MIT
// The sidecar amdgpu-sums-<id>-<gpu_id>.img: an XXH3-128 per block of a pages file, and what ties it to its
// dump.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kfd/image.h"
#include "pipeline/checksum.h"
#include "pipeline/result.h"

namespace sluice::plugin {

// Random, the same in every image of one dump; all zero means unknown.
using kfd::DumpId;
DumpId random_dump_id();

struct Sidecar {
  SumTable table;
  Sum128 bo_table_digest{};
  DumpId dump_id{};
  std::string pages_file;
};

std::vector<std::uint8_t> pack_sidecar(const Sidecar& sidecar);

// Errors: EBADMSG for anything that is not a sidecar as we write it: counts that do not agree with the sizes,
// another algorithm, a block size that is no power of two from 4 KiB to 64 MiB. `name` is for the message.
Result<Sidecar> unpack_sidecar(std::span<const std::uint8_t> payload, const std::string& name);

}  // namespace sluice::plugin
