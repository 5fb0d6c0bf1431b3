// SPDX-License-Identifier: MIT
#include "plugin/host/vma_runs.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/image_file.h"
#include "criu-mm.pb-c.h"
#include "unpack_memory.h"

namespace sluice::plugin {

namespace {

Error damaged_mm() {
  return Error{EBADMSG, "an image of a task's memory is damaged; use another checkpoint [SL-I29]"};
}

// Before the message: two magic numbers and the message's length.
constexpr std::uint32_t kCommonMagic = 0x54564319;
constexpr std::uint32_t kMmMagic = 0x57492820;
constexpr std::size_t kHeaderBytes = 3 * sizeof(std::uint32_t);
constexpr std::uint64_t kLargestBytes = 256ULL << 20;

// Bits of vma_entry.status.
constexpr std::uint32_t kRegular = 1U << 0;
constexpr std::uint32_t kFileShared = 1U << 7;
constexpr std::uint32_t kMemfd = 1U << 14;
constexpr std::uint32_t kPlugin = 1U << 27;

struct FreeMm {
  void operator()(MmEntry* mm) const { mm_entry__free_unpacked(mm, nullptr); }
};

// The key by which runs differ.
struct Opened {
  std::uint64_t file = 0;
  std::uint32_t flags = 0;
  bool memfd = false;

  bool operator==(const Opened&) const = default;
};

Opened opened_for(const VmaEntry& vma) {
  const std::uint32_t guess =
      (vma.prot & PROT_WRITE) != 0 ? O_RDWR : O_RDONLY;  // as CRIU does for old images
  return {vma.shmid, vma.has_fdflags != 0 ? vma.fdflags : guess, (vma.status & kMemfd) != 0};
}

}  // namespace

VmaRuns VmaRuns::of(std::span<const PluginMap> maps) {
  VmaRuns runs;
  for (const PluginMap& map : maps) {
    runs.known_ = true;
    runs.offsets_.insert(map.offset);
    runs.last_ = map.address;
  }
  return runs;
}

Result<VmaRuns> VmaRuns::read(int image_dir, std::uint32_t pid) {
  const std::string name = "mm-" + std::to_string(pid) + ".img";
  SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(image_dir, name));
  SLUICE_TRY_ASSIGN(const std::vector<std::uint8_t> bytes, read_whole(file, kLargestBytes, name));
  auto runs = parse(bytes);
  if (!runs) return explain(name, runs.error());
  return runs;
}

Result<VmaRuns> VmaRuns::parse(std::span<const std::uint8_t> bytes) {
  std::array<std::uint32_t, 3> header{};
  if (bytes.size() < kHeaderBytes) return damaged_mm();
  std::memcpy(header.data(), bytes.data(), kHeaderBytes);
  if (header[0] != kCommonMagic || header[1] != kMmMagic)
    return make_error(EPROTONOSUPPORT, "read the image of a task's memory");
  const std::span<const std::uint8_t> payload = bytes.subspan(kHeaderBytes);
  if (header[2] > payload.size()) return damaged_mm();
  UnpackMemory memory(header[2]);
  const std::unique_ptr<MmEntry, FreeMm> mm(mm_entry__unpack(memory.allocator(), header[2], payload.data()));
  memory.throw_if_process_had_none();
  if (!mm) return damaged_mm();
  VmaRuns runs;
  runs.known_ = true;
  std::optional<Opened> run;
  for (std::size_t i = 0; i < mm->n_vmas; ++i) {
    const VmaEntry& vma = *mm->vmas[i];
    if ((vma.status & kRegular) == 0 || (vma.status & kFileShared) == 0) continue;
    const Opened opened = opened_for(vma);
    if ((vma.status & kPlugin) != 0) {
      runs.first_[vma.start] = opened != run;
      runs.offsets_.insert(vma.pgoff);
      runs.last_ = vma.start;
    }
    run = opened;
  }
  return runs;
}

bool VmaRuns::maps(std::uint64_t offset, std::uint64_t bytes) const {
  if (!known_) return true;
  const auto at = offsets_.lower_bound(offset);
  return at != offsets_.end() && *at - offset < bytes;
}

bool VmaRuns::is_first(std::uint64_t address) const {
  const auto known = first_.find(address);
  return known == first_.end() || known->second;
}

}  // namespace sluice::plugin
