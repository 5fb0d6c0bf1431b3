// SPDX-License-Identifier: MIT
// The full driver boundary. The BOs belong to a render file that plays the application's and that libdrm
// never sees. The copy stage is the plugin's, which imports them as dma-bufs into its own file. The machine's
// engine threads play the hardware; the machine adds up their CPU time.
#include <amdgpu_drm.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "control.h"
#include "drm/sdma_copy.h"
#include "drm/target_file.h"
#include "engine/copy_engine.h"

namespace sluice::bench {
namespace {

// BOs in VRAM, mapped for the CPU back to back.
class VramBos {
 public:
  VramBos() = default;
  ~VramBos() {
    if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
  }
  VramBos(const VramBos&) = delete;
  VramBos& operator=(const VramBos&) = delete;

  // Call once. Errors: EINVAL for sizes that are not whole pages, and the device's.
  Result<void> make(const std::string& node, const Contents& contents) {
    file_.reset(::open(node.c_str(), O_RDWR | O_CLOEXEC));
    if (!file_) return make_error(errno, "open " + node);
    const std::uint64_t total = contents.total_bytes();
    void* const reserved = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == MAP_FAILED) return make_error(errno, "addresses for " + std::to_string(total) + " bytes");
    bytes_ = {static_cast<std::byte*>(reserved), total};
    std::uint64_t at = 0;
    for (const std::uint64_t bytes : contents.bo_bytes) {
      SLUICE_TRY(add(bytes, &bytes_[at]));
      at += bytes;
    }
    return {};
  }

  std::span<std::byte> bytes() const { return bytes_; }

  Result<std::vector<UniqueFd>> share() const {
    std::vector<UniqueFd> dmabufs;
    for (const Bo& bo : bos_) {
      SLUICE_TRY_ASSIGN(UniqueFd dmabuf, drm::export_dmabuf(file_.get(), bo.handle));
      dmabufs.push_back(std::move(dmabuf));
    }
    return dmabufs;
  }

 private:
  struct Bo {
    std::uint32_t handle;  // freed with the file
    std::uint64_t bytes;
  };

  Result<void> add(std::uint64_t bytes, std::byte* address) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (bytes == 0 || !is_aligned(bytes, page)) return make_error(EINVAL, "a BO must be whole pages");
    drm_amdgpu_gem_create create{};
    create.in.bo_size = bytes;
    create.in.alignment = page;
    create.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
    create.in.domain_flags = AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;
    if (::ioctl(file_.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create) != 0)
      return make_error(errno, std::to_string(bytes) + " bytes of VRAM");
    bos_.push_back({create.out.handle, bytes});
    drm_amdgpu_gem_mmap where{};
    where.in.handle = bos_.back().handle;
    if (::ioctl(file_.get(), DRM_IOCTL_AMDGPU_GEM_MMAP, &where) != 0 ||
        ::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(),
               static_cast<off_t>(where.out.addr_ptr)) == MAP_FAILED)
      return make_error(errno, "map " + std::to_string(bytes) + " bytes of VRAM");
    return {};
  }

  UniqueFd file_;
  std::vector<Bo> bos_;
  std::span<std::byte> bytes_;
};

class VamdgpuEngine final : public CopyEngine {
 public:
  VamdgpuEngine(Contents contents, std::unique_ptr<vamdgpu::Control> machine, drm::Device device)
      : CopyEngine(std::move(contents)), machine_(std::move(machine)), device_(std::move(device)) {}

  Result<void> make_bos() {
    SLUICE_TRY(bos_.make(device_.path(), contents()));
    fill(bos_.bytes(), contents());
    digest_ = digest(bos_.bytes());
    return {};
  }

  const char* name() const override { return "vamdgpu"; }

  Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& layout,
                                            StagingArena& arena, std::span<Slot> slots,
                                            Reactor& reactor) override {
    SLUICE_TRY_ASSIGN(std::vector<UniqueFd> dmabufs, bos_.share());
    SLUICE_TRY_ASSIGN(
        std::unique_ptr<drm::SdmaCopy> stage,
        drm::SdmaCopy::make(device_, direction, layout, std::move(dmabufs), arena, slots, reactor));
    if (stage->staging() != drm::Staging::Userptr) return make_error(EBUSY, stage->staging_note());
    return std::unique_ptr<Stage>(std::move(stage));
  }

  Result<void> scribble() override {
    std::memset(bos_.bytes().data(), 0xa5, bos_.bytes().size());
    return {};
  }
  Result<void> change(std::span<const ContentRange> ranges, std::uint64_t seed) override {
    bench::change(bos_.bytes(), ranges, seed);
    digest_ = digest(bos_.bytes());
    return {};
  }
  Result<bool> intact() override { return digest(bos_.bytes()) == digest_; }
  double dma_cpu_seconds() const override { return static_cast<double>(machine_->engine_use().cpu_ns) / 1e9; }

 private:
  std::unique_ptr<vamdgpu::Control> machine_;
  drm::Device device_;
  VramBos bos_;
  Sum128 digest_{};
};

}  // namespace

bool on_virtual_machine() {
  return vamdgpu::Control::open_default() != nullptr;
}

Result<std::unique_ptr<CopyEngine>> make_vamdgpu_engine(Contents contents) {
  std::unique_ptr<vamdgpu::Control> machine = vamdgpu::Control::open_default();
  if (machine == nullptr) return make_error(ENODEV, "this program runs on no virtual machine");
  SLUICE_TRY_ASSIGN(drm::Device device, drm::Device::open(machine->config().gpus[0].render_minor));
  auto engine = std::make_unique<VamdgpuEngine>(std::move(contents), std::move(machine), std::move(device));
  SLUICE_TRY(engine->make_bos());
  return std::unique_ptr<CopyEngine>(std::move(engine));
}

}  // namespace sluice::bench
