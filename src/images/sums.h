// SPDX-License-Identifier: MIT
// The sidecar beside one lane's pages files: one sum per unit (pipeline/checksum/units.h), and what ties them
// to their dump. Its name is amdgpu-sums-<id>-<gpu_id>.img for the one file of a GPU's KFD BOs. It is
// amdgpu-sums-drm-<id>-<minor>.img for all files of a render file's BOs.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files/key.h"
#include "images/kfd_image.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/content_match.h"

namespace sluice {

// Errors: getrandom's.
Result<DumpId> random_dump_id();

// How a dump without a parent makes sums of contents: with the key, or with a new secret. Errors:
// getrandom's.
Result<SumMethod> new_sum_method(const ImageKeys& keys);

// Where contents are that a checkpoint's own files lack.
struct Needs {
  DumpId parent{};        // all zero: in no parent
  bool replicas = false;  // in other files of the dump

  bool any() const { return parent != DumpId{} || replicas; }
  auto operator<=>(const Needs&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Sidecar {
  std::vector<SumTable> tables;          // one per pages file
  std::vector<std::string> pages_files;  // their names, in the same order
  Sum128 bo_table_digest{};
  DumpId dump_id{};
  // By file, or empty: what is in the parent instead.
  std::vector<KnownRuns> parents;
  DumpId parent_dump_id{};  // which dump that is
  // By file, or empty: what other files of the dump have, too, or, if left out, have instead.
  std::vector<KnownRuns> replicas;
  bool replicas_left_out = false;

  // Whether some units of the file are in the parent, ...
  bool needs_parent(std::size_t file) const { return !parents.empty() && !parents[file].empty(); }
  // ... or only in other files of the dump.
  bool needs_others(std::size_t file) const {
    return replicas_left_out && !replicas.empty() && !replicas[file].empty();
  }
  bool is_partial(std::size_t file) const { return needs_parent(file) || needs_others(file); }
  Needs needs() const;
};

// Needs as much memory again as the tables. REQUIRES: as many names as tables, all summed by one method; with
// a key, by ImageKeys::contents().
std::vector<std::uint8_t> pack_sidecar(const Sidecar& sidecar, const ImageKeys& keys);

// Errors: require_digest()'s; ENOSYS: of version 0.1; EBADMSG for anything that is no sidecar as we write it:
// no file, counts that do cannot match the sizes, another algorithm or no secret for it, a block size that is
// no power of two from 4 KiB to kSumBlockBytes, files of two dumps or BO tables. `name` is for the message.
// Takes the payload, so that the sums are in memory no more than twice at a time.
Result<Sidecar> unpack_sidecar(std::vector<std::uint8_t> payload, const std::string& name,
                               const ImageKeys& keys);

}  // namespace sluice
