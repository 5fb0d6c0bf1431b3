// SPDX-License-Identifier: MIT
// The facts about a checkpoint, for text or JSON: a summary of its metadata, and its pages files by size,
// holes and checksums. Contents are not read. Functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/checkpoint/image_directory.h"
#include "images/kfd_image.h"
#include "images/metadata.h"

namespace sluice::cli {

// Where a BO's memory is: "VRAM", "GTT", "userptr", ...
const char* kind_of(const BoEntry& bo);
const char* kind_of(const drm::GemBo& bo);

// BOs of one kind.
struct KindTotal {
  std::uint64_t bos = 0;
  std::uint64_t bytes = 0;
};
// By kind. BOs that another holder makes are "imported", wherever they are.
using Kinds = std::map<std::string, KindTotal>;
Kinds kinds_of(const KfdImage& image);
Kinds kinds_of(const RenderImage& image);

struct GpuLink {
  const char* type = "";   // "XGMI" or "PCIe"
  bool to_gpu = false;     // else to a CPU
  std::uint32_t peer = 0;  // a GPU's gpu_id, a CPU's node_id
};

// A GPU as it was at the dump.
struct Gpu {
  std::uint32_t gpu_id = 0;
  std::string name;
  std::string gfx;  // "gfx90a"; empty: unknown
  std::string pci;  // "0000:63:00.0"; empty: unknown
  std::uint32_t render_minor = 0;
  std::uint64_t vram_bytes = 0;
  std::vector<GpuLink> links;
};

// One pages file as found.
struct PagesFile {
  std::string name;
  std::string owner;                 // "GPU 0x5759" or "renderD128"
  std::uint64_t expected_bytes = 0;  // by the BO table
  std::uint64_t bytes = 0;
  std::uint64_t disk_bytes = 0;
  std::uint64_t zero_bytes = 0;  // in holes or, if that is more, in blocks with the checksum of zeros
  std::optional<bool> has_sums;  // nothing: the sums cannot be read
  bool has_parent = false;       // part of it is in the checkpoint's parent instead
  bool has_replicas = false;     // part of it is in other files of the checkpoint instead
};

// Shared memory.
struct SharedMemory {
  std::uint64_t bytes = 0;
  std::string maker;                 // the holder that makes it; empty: none does
  std::vector<std::string> holders;  // the others
};

struct Survey {
  std::vector<Gpu> gpus;         // of all processes, without duplicates
  std::vector<PagesFile> files;  // KFD processes' first
  Kinds memory;
  std::map<std::uint32_t, SharedMemory> shared;             // by its number in the dump
  std::uint64_t bytes = 0, disk_bytes = 0, zero_bytes = 0;  // of all files
  std::vector<Error> faults;                                // of images, sidecars and pages files

  // Whether all contents seen have sums. False without contents.
  bool all_have_sums() const;
};

Survey survey(const ImageDirectory& directory);

}  // namespace sluice::cli
