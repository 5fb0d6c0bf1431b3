// SPDX-License-Identifier: MIT
// See target.h.
#include "target.h"

#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <libdrm/drm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "drm/target_file.h"

namespace sluice::drm {
namespace {

[[noreturn]] void fail(int err, const std::string& what) {
  throw std::system_error(err, std::generic_category(), what);
}

}  // namespace

TargetBo::TargetBo(TargetBo&& other) noexcept
    : handle_(other.handle_), cpu_(std::exchange(other.cpu_, {})), map_offset_(other.map_offset_) {}

TargetBo::~TargetBo() {
  if (!cpu_.empty()) (void)::munmap(cpu_.data(), cpu_.size());
}

TargetFile::TargetFile(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (!fd_) fail(errno, "open " + path);
}

TargetBo TargetFile::create(std::uint64_t bytes, Domain domain) const {
  drm_amdgpu_gem_create create{};
  create.in.bo_size = bytes;
  create.in.alignment = 4096;
  create.in.domains = domain == Domain::Vram ? AMDGPU_GEM_DOMAIN_VRAM : AMDGPU_GEM_DOMAIN_GTT;
  create.in.domain_flags = AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;
  if (::ioctl(fd_.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create) != 0) fail(errno, "GEM_CREATE");
  const std::uint32_t handle = create.out.handle;
  drm_amdgpu_gem_mmap map{};
  map.in.handle = handle;
  if (::ioctl(fd_.get(), DRM_IOCTL_AMDGPU_GEM_MMAP, &map) != 0) fail(errno, "GEM_MMAP");
  const std::uint64_t offset = map.out.addr_ptr;
  void* const cpu =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), static_cast<off_t>(offset));
  if (cpu == MAP_FAILED) fail(errno, "mmap of a BO");
  return TargetBo(handle, {static_cast<std::byte*>(cpu), static_cast<std::size_t>(bytes)}, offset);
}

UniqueFd TargetFile::dmabuf(const TargetBo& bo) const {
  auto exported = export_dmabuf(fd_.get(), bo.handle());
  if (!exported) fail(exported.error().err, exported.error().what);
  return std::move(exported).value();
}

std::size_t handles_of_others(const std::string& path, const TargetFile& target) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    std::error_code gone;
    if (fd == target.fd() || std::filesystem::read_symlink(entry.path(), gone) != path) continue;
    auto handles = list_handles(fd);
    if (!handles || !*handles) fail(ENOTSUP, "GEM_LIST_HANDLES");
    count += (*handles)->size();
  }
  return count;
}

bool on_virtual_machine() {
  return std::getenv("VAMDGPU_DIR") != nullptr;
}

}  // namespace sluice::drm
