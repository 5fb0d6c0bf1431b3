// SPDX-License-Identifier: MIT
// The last file of a pre-dump: GPU contents copied while the job ran, without any task's state. The next dump
// takes them for its parent (images/chain/ancestor.h); nothing restores
// them.
//
// All files have their own names (predump_name()), so that no restore mistakes them for a checkpoint. This
// one is written when all others are durable. Without it, a pre-dump did not end and cannot be a parent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files/key.h"
#include "images/kfd_image.h"

namespace sluice {

struct PreDumpMark {
  std::vector<std::string> images;  // names of the metadata, kPreDumpPrefix and a dump's
  std::uint64_t frozen_ns = 0;      // how long GPU queues were stopped
  DumpId dump_id{};
};

std::vector<std::uint8_t> pack_predump_mark(const PreDumpMark& mark, const ImageKeys& keys);
// Errors: require_digest()'s; EBADMSG for anything that is no mark as we write it.
Result<PreDumpMark> unpack_predump_mark(std::span<const std::uint8_t> payload, const ImageKeys& keys);

}  // namespace sluice
