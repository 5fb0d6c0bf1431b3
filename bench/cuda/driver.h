// SPDX-License-Identifier: MIT
// Why CUDA: the plugin is for AMD GPUs, but the pipeline is not. This folder measures the pipeline with real
// DMA engines on machines without AMD GPUs: PCIe, registered memory and fences instead of memcpy. Only
// sluice-bench uses it, and sluice-bench needs CUDA neither to build nor to run.
//
// The used part of the CUDA driver API, loaded at run time. Names, types and numbers are those of the
// driver's ABI. Each RAII owner belongs to a context that must be current wherever the owner is used and
// destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

namespace sluice::bench::cuda {

// The driver's calls; each returns 0 or an error number.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*error_string)(int error, const char** text) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*device_name)(char* name, int bytes, int device) = nullptr;
  int (*device_pci_bus_id)(char* id, int bytes, int device) = nullptr;
  int (*primary_context_flags)(int device, unsigned flags) = nullptr;
  int (*primary_context_retain)(CUctx_st** context, int device) = nullptr;
  int (*primary_context_release)(int device) = nullptr;
  int (*set_current)(CUctx_st* context) = nullptr;
  int (*allocate)(unsigned long long* address, std::size_t bytes) = nullptr;
  int (*free)(unsigned long long address) = nullptr;
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_unregister)(void* memory) = nullptr;
  int (*copy_to_host)(void* to, unsigned long long from, std::size_t bytes, CUstream_st* stream) = nullptr;
  int (*copy_to_device)(unsigned long long to, const void* from, std::size_t bytes,
                        CUstream_st* stream) = nullptr;
  int (*set_bytes)(unsigned long long to, unsigned char value, std::size_t bytes,
                   CUstream_st* stream) = nullptr;
  int (*stream_create)(CUstream_st** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(CUstream_st* stream) = nullptr;
  int (*stream_synchronize)(CUstream_st* stream) = nullptr;
  int (*launch_host_function)(CUstream_st* stream, void (*function)(void*), void* data) = nullptr;
  int (*event_create)(CUevent_st** event, unsigned flags) = nullptr;
  int (*event_destroy)(CUevent_st* event) = nullptr;
  int (*event_record)(CUevent_st* event, CUstream_st* stream) = nullptr;
  int (*event_synchronize)(CUevent_st* event) = nullptr;
};

// Loads and initialises the driver at the first call; it stays loaded. Any thread. Returns the number of
// GPUs, at least one. Errors: ENODEV without a driver or a GPU; the text says which.
Result<int> load();

// REQUIRES for this and everything below: load() succeeded.
const Driver& driver();

// The result of `call`: ENOMEM, ENODEV or EIO, with the driver's text.
Result<void> check(int returned, const char* call);

// A GPU and its primary context, which lives as long as any owner of it. Waits block instead of spinning.
class Gpu {
 public:
  static Result<Gpu> open(int ordinal);
  Gpu(Gpu&& other) noexcept : device_(std::exchange(other.device_, -1)), context_(other.context_) {}
  Gpu& operator=(Gpu&&) = delete;
  ~Gpu();

  // Makes the context the calling thread's.
  Result<void> use() const;
  Result<std::string> name() const;
  int numa_node() const;  // -1 if unknown

 private:
  Gpu(int device, CUctx_st* context) : device_(device), context_(context) {}
  int device_;
  CUctx_st* context_;
};

// Owners of one object each; move-only.
class DeviceMemory {
 public:
  static Result<DeviceMemory> make(std::uint64_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept : address_(std::exchange(other.address_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory();
  unsigned long long address() const { return address_; }

 private:
  explicit DeviceMemory(unsigned long long address) : address_(address) {}
  unsigned long long address_;
};

// Host memory that the DMA engines of all GPUs can reach: pinned and mapped. The memory is the caller's.
class Registration {
 public:
  static Result<Registration> make(std::span<std::byte> memory);
  Registration(Registration&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  Registration& operator=(Registration&&) = delete;
  ~Registration();

 private:
  explicit Registration(void* memory) : memory_(memory) {}
  void* memory_;
};

class Stream {
 public:
  static Result<Stream> make();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();  // after everything queued in it
  CUstream_st* get() const { return stream_; }
  Result<void> synchronize() const;

 private:
  explicit Stream(CUstream_st* stream) : stream_(stream) {}
  CUstream_st* stream_;
};

class Event {
 public:
  static Result<Event> make();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();
  CUevent_st* get() const { return event_; }

 private:
  explicit Event(CUevent_st* event) : event_(event) {}
  CUevent_st* event_;
};

}  // namespace sluice::bench::cuda
