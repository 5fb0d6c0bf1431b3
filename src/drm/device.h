// SPDX-License-Identifier: MIT
// A GPU through a render node that we opened ourselves: device, buffer objects (BO), GPU virtual addresses,
// contexts, submissions and fences. Each object owns its kernel counterpart. Only device.cc includes libdrm's
// amdgpu.h; nothing here is ever used on a DRM file of a dumped or restored process (see target_file.h).
//
// libdrm keeps one device per card and process and uses its first file for all. So two Devices of one render
// node share a DRM file, a GPU address space and a VA manager. That is safe (libdrm locks, and counts BOs
// that are imported twice). It is also why libdrm must never be initialised on someone else's file.
//
// Every object keeps its device open for its life. Objects of one device may be used from different threads,
// one object from one thread at a time. Sizes, offsets and addresses in bytes. Errors carry the kernel's
// errno; destructors report none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "drm/packets.h"

struct amdgpu_device;
struct amdgpu_bo;
struct amdgpu_va;
struct amdgpu_context;

namespace sluice::drm {

// A device's properties, and libdrm's handle. Immutable; shared by all objects of the device.
struct DeviceState {
  DeviceState() = default;
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;
  ~DeviceState();

  amdgpu_device* handle = nullptr;
  std::string path;
  std::uint32_t family = 0;
  SdmaGeneration generation = SdmaGeneration::V4;
  std::vector<std::uint32_t> rings;
  std::uint32_t ib_alignment_bytes = 0;
};

// Opens a render node, and nothing else (base/device_node.h). Errors: open(2)'s; ENODEV for another device or
// none.
Result<UniqueFd> open_render_node(std::uint32_t minor);

// Cheap to copy: copies are the same device.
class Device {
 public:
  // By render minor (128 and up). Errors: those of open_render_node(); ENODEV for a node of another driver,
  // or without a DMA ring for user space; EBADF if libdrm refuses the kernel's version; ENOTSUP for an engine
  // with unknown packets.
  static Result<Device> open(std::uint32_t minor);

  // The path of a render minor (128 and up).
  static std::string render_node(std::uint32_t minor) { return "/dev/dri/renderD" + std::to_string(minor); }

  const std::string& path() const { return state_->path; }
  std::uint32_t family() const { return state_->family; }
  SdmaGeneration generation() const { return state_->generation; }
  // DMA ring numbers that a context may submit to: at most two, however many engines there are. The kernel
  // spreads the entities (context, ring) over the engines.
  std::span<const std::uint32_t> rings() const { return state_->rings; }
  // Where an IB may begin: a power of two, at least 32.
  std::uint32_t ib_alignment_bytes() const { return state_->ib_alignment_bytes; }

  // See target_file.h.
  Result<std::uint32_t> vram_losses() const;

  const std::shared_ptr<const DeviceState>& state() const { return state_; }

 private:
  explicit Device(std::shared_ptr<const DeviceState> state) : state_(std::move(state)) {}
  std::shared_ptr<const DeviceState> state_;
};

// A buffer object in our DRM file. Move-only; an empty one owns nothing.
class Bo {
 public:
  Bo() = default;
  Bo(Bo&& other) noexcept { swap(other); }
  Bo& operator=(Bo&& other) noexcept {
    Bo taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Bo();

  // Imports a dma-buf and closes its fd, whatever the outcome. Errors: EINVAL for a dma-buf that is no amdgpu
  // memory within this device's reach, ENOMEM, EBADF.
  static Result<Bo> import(const Device& device, UniqueFd dmabuf);

  // Registers ordinary memory as a BO in GTT (userptr). `memory` is borrowed and must stay mapped for the
  // BO's life. Errors: EINVAL unless address and size are multiples of the page size, EPERM for file-backed
  // memory; EBUSY and EFAULT if the pages could not be pinned: try again.
  static Result<Bo> from_user_memory(const Device& device, std::span<std::byte> memory);

  // Allocates system memory that the GPU reaches (GTT) and maps it for the CPU. Errors: ENOMEM.
  static Result<Bo> allocate_gtt(const Device& device, std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }
  // The handle number in our DRM file.
  std::uint32_t handle() const { return handle_; }
  // The CPU's map of an allocate_gtt() BO, else empty. Unusable for O_DIRECT and registered buffers: the
  // kernel maps it without pages.
  std::span<std::byte> cpu() const { return cpu_; }

  void swap(Bo& other) noexcept;

 private:
  friend class VaMapping;
  Bo(std::shared_ptr<const DeviceState> device, amdgpu_bo* bo, std::uint64_t bytes)
      : device_(std::move(device)), bo_(bo), bytes_(bytes) {}
  Result<void> take_handle();

  std::shared_ptr<const DeviceState> device_;
  amdgpu_bo* bo_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t handle_ = 0;
  std::span<std::byte> cpu_;
};

// What the GPU may do through a mapping. Execute is for IBs: readable, and marked executable as in every
// driver.
enum class GpuAccess : std::uint8_t { Read, ReadWrite, Execute };

// A BO's place in the GPU's address space, whole BO. Move-only; an empty one owns nothing. The Bo must
// outlive it.
class VaMapping {
 public:
  VaMapping() = default;
  VaMapping(VaMapping&& other) noexcept { swap(other); }
  VaMapping& operator=(VaMapping&& other) noexcept {
    VaMapping taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~VaMapping();

  // Errors: ENOMEM if the address space or page tables are used up.
  static Result<VaMapping> map(const Bo& bo, GpuAccess access);

  std::uint64_t address() const { return address_; }

  void swap(VaMapping& other) noexcept;

 private:
  std::shared_ptr<const DeviceState> device_;
  amdgpu_bo* bo_ = nullptr;
  amdgpu_va* range_ = nullptr;
  bool mapped_ = false;
  std::uint64_t address_ = 0;
  std::uint64_t bytes_ = 0;
};

// The BOs that one submission uses; the kernel makes them resident for it. Passed with the submission (chunk
// BO_HANDLES), not as a kernel object. May contain a BO twice.
class BoList {
 public:
  // Room for `capacity` BOs, allocated once.
  explicit BoList(std::size_t capacity) { entries_.reserve(capacity); }

  void clear() { entries_.clear(); }
  void add(const Bo& bo) { entries_.push_back({bo.handle(), 0}); }

 private:
  friend class Context;
  struct Entry {
    std::uint32_t bo_handle;
    std::uint32_t bo_priority;
  };
  std::vector<Entry> entries_;
};

// One IB of a submission.
struct IbRange {
  std::uint64_t gpu_address = 0;
  std::uint32_t bytes = 0;
};

// A submission: its context's ring, and its number from the kernel.
struct Job {
  std::uint32_t ring = 0;
  std::uint64_t sequence = 0;
};

// A kernel context: up to two DMA entities. Jobs of one entity (context, ring) run in order, jobs of
// different ones in any. Move-only.
class Context {
 public:
  Context() = default;
  Context(Context&& other) noexcept { swap(other); }
  Context& operator=(Context&& other) noexcept {
    Context taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Context();

  // Errors: ENOMEM, EACCES.
  static Result<Context> make(const Device& device);

  // Queues `ibs` (1 to kIbSegmentsMax) as one job on the DMA engines. Blocks while 32 jobs of the entity are
  // outstanding. Errors: ENOMEM (the BOs cannot all be resident), EINVAL, ECANCELED (context lost in a GPU
  // reset); then nothing was queued.
  Result<Job> submit(std::uint32_t ring, const BoList& bos, std::span<const IbRange> ibs);

  // A sync_file that polls readable when the job has ended, successfully or not: see fence_state(). Errors:
  // EMFILE, ENOMEM; then the job runs on.
  Result<UniqueFd> fence(const Job& job);

  // Blocks until the job has ended; false after `timeout`. Errors: the job's own.
  Result<bool> wait(const Job& job, std::chrono::nanoseconds timeout);

  void swap(Context& other) noexcept;

 private:
  std::shared_ptr<const DeviceState> device_;
  amdgpu_context* context_ = nullptr;
};

// The result of the job behind a sync_file: true if it succeeded, false if it has not ended. Errors: those
// that the driver signalled the fence with (ETIME: the scheduler gave the job up; ECANCELED: GPU reset).
// POLLIN only says that it has ended.
Result<bool> fence_state(int sync_file);

}  // namespace sluice::drm
