// SPDX-License-Identifier: MIT
// See target_file.h.
#include "drm/target_file.h"

#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <libdrm/drm.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>

#include "drm/drm_call.h"

namespace sluice::drm {
namespace {

// DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES, driver number 0x19.
struct ListHandlesArgs {
  std::uint64_t entries;
  std::uint32_t num_entries;
  std::uint32_t padding;
};
struct ListHandlesEntry {
  std::uint32_t gem_handle;
  std::uint32_t flags;
  std::uint64_t size;
  std::uint64_t preferred_domains;
  std::uint64_t alloc_flags;
  std::uint64_t alignment;
};
constexpr std::uint32_t kListHandlesIsImport = 1;
static_assert(sizeof(ListHandlesArgs) == 16 && sizeof(ListHandlesEntry) == 40);
constexpr unsigned long kIoctlListHandles = DRM_IOWR(DRM_COMMAND_BASE + 0x19, ListHandlesArgs);
static_assert(kIoctlListHandles == 0xC0106459);

// DRM_IOCTL_AMDGPU_GEM_OP with op 2, in its 24-byte form.
struct GemOpArgs {
  std::uint32_t handle;
  std::uint32_t op;
  std::uint64_t value;
  std::uint32_t num_entries;
  std::uint32_t padding;
};
struct MappingEntry {
  std::uint64_t addr;
  std::uint64_t size;
  std::uint64_t offset;
  std::uint64_t flags;
};
constexpr std::uint32_t kGemOpGetMappingInfo = 2;
static_assert(sizeof(GemOpArgs) == 24 && sizeof(MappingEntry) == 32);
constexpr unsigned long kIoctlGemOp = DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDGPU_GEM_OP, GemOpArgs);
static_assert(kIoctlGemOp == 0xC0186450);

static_assert(sizeof(drm_amdgpu_gem_metadata::data.data) == kMostMetadataBytes);

// A listing is repeated if the file's tables grow meanwhile; a stopped process' tables do not keep growing.
constexpr int kListAttempts = 16;
constexpr std::size_t kFirstEntries = 64;

// AMDGPU_GMC_HOLE_START and _END (amdgpu_gmc.h): there are no addresses between them.
constexpr std::uint64_t kHoleStart = 0x8000'0000'0000, kHoleEnd = 0xffff'8000'0000'0000;
constexpr std::uint64_t kToldAddresses = std::uint64_t{1} << 48;

// The BO flags that GEM_CREATE accepts in Linux 6.1 and later (amdgpu_gem_create_ioctl); the kernel sets
// others itself.
constexpr std::uint64_t kCreateDiscardable = 1U << 12;  // newer than Debian 12's headers
constexpr std::uint64_t kFlagsOfGemCreate =
    AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED | AMDGPU_GEM_CREATE_NO_CPU_ACCESS | AMDGPU_GEM_CREATE_CPU_GTT_USWC |
    AMDGPU_GEM_CREATE_VRAM_CLEARED | AMDGPU_GEM_CREATE_VM_ALWAYS_VALID | AMDGPU_GEM_CREATE_EXPLICIT_SYNC |
    AMDGPU_GEM_CREATE_ENCRYPTED | kCreateDiscardable;

Result<drm_amdgpu_gem_create_in> creation_of(int fd, std::uint32_t handle) {
  drm_amdgpu_gem_create_in info{};
  GemOpArgs args{handle, AMDGPU_GEM_OP_GET_GEM_CREATE_INFO, reinterpret_cast<std::uintptr_t>(&info), 0, 0};
  if (const int err = drm_call(fd, kIoctlGemOp, &args); err != 0)
    return make_error(err, "ask how GEM handle " + std::to_string(handle) + " was created");
  return info;
}

}  // namespace

Result<Driver> driver_of(int fd) {
  std::array<char, 64> name{};
  drm_version version{};
  version.name = name.data();
  version.name_len = name.size() - 1;
  if (const int err = drm_call(fd, DRM_IOCTL_VERSION, &version); err != 0) {
    return make_error(err, "ask a file for its DRM driver");
  }
  return Driver{name.data(), version.version_major, version.version_minor};
}

Result<std::string> driver_name(int fd) {
  SLUICE_TRY_ASSIGN(Driver driver, driver_of(fd));
  return std::move(driver.name);
}

bool is_amdgpu(int fd) {
  const auto name = driver_name(fd);
  return name && *name == "amdgpu";
}

std::vector<std::string> engines_used(int fd, const char* fdinfo) {
  constexpr std::string_view kPrefix = "drm-engine-";
  constexpr std::string_view kCapacity = "capacity-";  // the number of engines, not their time
  std::vector<std::string> engines;
  std::ifstream lines(std::string(fdinfo) + "/" + std::to_string(fd));
  for (std::string text; std::getline(lines, text);) {  // "drm-engine-dma:\t4711 ns"
    std::string_view line = text;
    if (!line.starts_with(kPrefix)) continue;
    line.remove_prefix(kPrefix.size());
    const std::size_t colon = line.find(':');
    const std::size_t number = line.find_first_of("0123456789", colon);
    if (line.starts_with(kCapacity) || colon == line.npos || number == line.npos) continue;
    std::uint64_t ns = 0;
    (void)std::from_chars(line.data() + number, line.data() + line.size(), ns);
    if (ns > 0) engines.emplace_back(line.substr(0, colon));
  }
  return engines;
}

Result<std::optional<std::vector<GemHandle>>> list_handles(int fd) {
  std::vector<ListHandlesEntry> entries(kFirstEntries);
  for (int attempt = 0; attempt < kListAttempts; ++attempt) {
    ListHandlesArgs args{reinterpret_cast<std::uintptr_t>(entries.data()),
                         static_cast<std::uint32_t>(entries.size()), 0};
    const int err = drm_call(fd, kIoctlListHandles, &args);
    if (err == EAGAIN) continue;
    if (err == EINVAL) return std::optional<std::vector<GemHandle>>();
    if (err != 0) return make_error(err, "list the GEM handles of a render file");
    if (args.num_entries > entries.size()) {
      entries.resize(args.num_entries);
      continue;
    }
    std::vector<GemHandle> handles;
    handles.reserve(args.num_entries);
    for (std::uint32_t i = 0; i < args.num_entries; ++i) {
      const ListHandlesEntry& entry = entries[i];
      handles.push_back({entry.gem_handle, (entry.flags & kListHandlesIsImport) != 0, entry.size,
                         entry.preferred_domains, entry.alloc_flags});
    }
    return std::optional(std::move(handles));
  }
  return make_error(EAGAIN, "list the GEM handles of a render file: they keep changing");
}

Result<GemHandle> describe_handle(int fd, std::uint32_t handle) {
  SLUICE_TRY_ASSIGN(const auto handles, list_handles(fd));
  if (handles) {
    const auto found = std::find_if(handles->begin(), handles->end(),
                                    [handle](const GemHandle& one) { return one.handle == handle; });
    if (found != handles->end()) return *found;
    // unreached: a race
    return make_error(ENOENT, "find GEM handle " + std::to_string(handle) + " among those of its file");
  }
  SLUICE_TRY_ASSIGN(const drm_amdgpu_gem_create_in info, creation_of(fd, handle));
  return GemHandle{handle, false, info.bo_size, info.domains, info.domain_flags & kFlagsOfGemCreate};
}

std::uint64_t canonical_address(std::uint64_t told) {
  return told >= kHoleStart && told < kToldAddresses ? told | kHoleEnd : told;
}

Result<std::optional<std::vector<GemMapping>>> mappings_of(int fd, std::uint32_t handle) {
  const auto what = [&] { return "ask for the mappings of GEM handle " + std::to_string(handle); };
  std::vector<MappingEntry> entries(kFirstEntries);
  for (int attempt = 0; attempt < kListAttempts; ++attempt) {  // unreached: a race
    GemOpArgs args{handle, kGemOpGetMappingInfo, reinterpret_cast<std::uintptr_t>(entries.data()),
                   static_cast<std::uint32_t>(entries.size()), 0};
    const int err = drm_call(fd, kIoctlGemOp, &args);
    if (err == ENOENT) return std::optional(std::vector<GemMapping>());
    if (err == EINVAL) return std::optional<std::vector<GemMapping>>();
    if (err != 0) return make_error(err, what());
    if (args.num_entries > entries.size()) {
      entries.resize(args.num_entries);
      continue;
    }
    std::vector<GemMapping> mappings;
    mappings.reserve(args.num_entries);
    for (std::uint32_t i = 0; i < args.num_entries; ++i) {
      mappings.push_back(
          {canonical_address(entries[i].addr), entries[i].size, entries[i].offset, entries[i].flags});
    }
    return std::optional(std::move(mappings));
  }
  return make_error(EAGAIN, what() + ": they keep changing");
}

Result<std::uint64_t> alignment_of(int fd, std::uint32_t handle) {
  SLUICE_TRY_ASSIGN(const drm_amdgpu_gem_create_in info, creation_of(fd, handle));
  return std::uint64_t{info.alignment};
}

Result<GemMetadata> metadata_of(int fd, std::uint32_t handle) {
  drm_amdgpu_gem_metadata args{};
  args.handle = handle;
  args.op = AMDGPU_GEM_METADATA_OP_GET_METADATA;
  if (const int err = drm_call(fd, DRM_IOCTL_AMDGPU_GEM_METADATA, &args); err != 0)
    return make_error(err, "ask for the metadata of GEM handle " + std::to_string(handle));
  const auto* const data = reinterpret_cast<const std::uint8_t*>(args.data.data);
  const std::size_t bytes = std::min<std::size_t>(args.data.data_size_bytes, kMostMetadataBytes);
  return GemMetadata{args.data.tiling_info, args.data.flags, {data, data + bytes}};
}

Result<std::uint64_t> mmap_offset_of(int fd, std::uint32_t handle) {
  drm_amdgpu_gem_mmap args{};
  args.in.handle = handle;
  const int err = drm_call(fd, DRM_IOCTL_AMDGPU_GEM_MMAP, &args);
  if (err == EPERM) return std::uint64_t{0};
  if (err != 0) return make_error(err, "ask for the mmap offset of GEM handle " + std::to_string(handle));
  return std::uint64_t{args.out.addr_ptr};
}

Result<bool> wait_until_idle(int fd, std::uint32_t handle, std::uint64_t deadline_ns) {
  drm_amdgpu_gem_wait_idle args{};
  args.in.handle = handle;
  args.in.timeout = deadline_ns;
  if (const int err = drm_call(fd, DRM_IOCTL_AMDGPU_GEM_WAIT_IDLE, &args); err != 0)
    return make_error(err, "wait until GEM handle " + std::to_string(handle) + " is idle");
  return args.out.status == 0;
}

Result<std::uint32_t> vram_losses(int fd) {
  std::uint32_t losses = 0;
  drm_amdgpu_info args{};
  args.return_pointer = reinterpret_cast<std::uintptr_t>(&losses);
  args.return_size = sizeof losses;
  args.query = AMDGPU_INFO_VRAM_LOST_COUNTER;
  if (const int err = drm_call(fd, DRM_IOCTL_AMDGPU_INFO, &args); err != 0)
    return make_error(err, "ask a GPU whether it has lost its VRAM");
  return losses;
}

Result<UniqueFd> export_dmabuf(int fd, std::uint32_t handle) {
  drm_prime_handle args{};
  args.handle = handle;
  args.flags = DRM_CLOEXEC | DRM_RDWR;
  if (const int err = drm_call(fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &args); err != 0) {
    return make_error(err, "export GEM handle " + std::to_string(handle) + " as a dma-buf");
  }
  return UniqueFd(args.fd);
}

Result<std::uint32_t> allow_map(int fd, int dmabuf) {
  drm_prime_handle args{};
  args.fd = dmabuf;
  if (const int err = drm_call(fd, DRM_IOCTL_PRIME_FD_TO_HANDLE, &args); err != 0)
    return make_error(err, "import a BO that is to be mapped");
  return std::uint32_t{args.handle};
}

Result<MapAccess> may_map(int fd, std::uint64_t offset) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped = ::mmap(nullptr, page, PROT_NONE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (mapped != MAP_FAILED) {
    (void)::munmap(mapped, page);
    return MapAccess::Allowed;
  }
  switch (errno) {
    case EPERM:
      return MapAccess::Allowed;
    case EACCES:
      return MapAccess::Denied;
    case EINVAL:
      return MapAccess::UnknownOffset;
    default:
      return make_error(errno, "probe a render file for map offset " + std::to_string(offset));
  }
}

}  // namespace sluice::drm
