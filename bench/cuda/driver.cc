// SPDX-License-Identifier: MIT
#include "cuda/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

namespace sluice::bench::cuda {
namespace {

// Numbers of the driver's ABI.
constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr unsigned kContextBlockingSync = 4;
constexpr unsigned kHostRegisterPortable = 1;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventBlockingSync = 1;
constexpr unsigned kEventDisableTiming = 2;

Driver g_driver;  // filled by load_library(), constant afterwards

Result<void> load_library() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Error{ENODEV, "no CUDA driver on this machine: " + std::string(::dlerror())};
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = ::dlsym(library, name);
    if (symbol == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(g_driver.init, "cuInit");
  find(g_driver.error_string, "cuGetErrorString");
  find(g_driver.device_count, "cuDeviceGetCount");
  find(g_driver.device, "cuDeviceGet");
  find(g_driver.device_name, "cuDeviceGetName");
  find(g_driver.device_pci_bus_id, "cuDeviceGetPCIBusId");
  find(g_driver.primary_context_flags, "cuDevicePrimaryCtxSetFlags_v2");
  find(g_driver.primary_context_retain, "cuDevicePrimaryCtxRetain");
  find(g_driver.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  find(g_driver.set_current, "cuCtxSetCurrent");
  find(g_driver.allocate, "cuMemAlloc_v2");
  find(g_driver.free, "cuMemFree_v2");
  find(g_driver.host_register, "cuMemHostRegister_v2");
  find(g_driver.host_unregister, "cuMemHostUnregister");
  find(g_driver.copy_to_host, "cuMemcpyDtoHAsync_v2");
  find(g_driver.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(g_driver.set_bytes, "cuMemsetD8Async");
  find(g_driver.stream_create, "cuStreamCreate");
  find(g_driver.stream_destroy, "cuStreamDestroy_v2");
  find(g_driver.stream_synchronize, "cuStreamSynchronize");
  find(g_driver.launch_host_function, "cuLaunchHostFunc");
  find(g_driver.event_create, "cuEventCreate");
  find(g_driver.event_destroy, "cuEventDestroy_v2");
  find(g_driver.event_record, "cuEventRecord");
  find(g_driver.event_synchronize, "cuEventSynchronize");
  if (!missing.empty()) return Error{ENODEV, "the CUDA driver of this machine has no " + missing};
  if (auto initialised = check(g_driver.init(0), "cuInit"); !initialised)
    return Error{ENODEV, "no GPU that CUDA can use: " + initialised.error().what};
  return {};
}

}  // namespace

Result<int> load() {
  static const Result<void> outcome = load_library();
  if (!outcome) return outcome.error();
  int count = 0;
  SLUICE_TRY(check(g_driver.device_count(&count), "cuDeviceGetCount"));
  if (count == 0) return Error{ENODEV, "no GPU that CUDA can use"};
  return count;
}

const Driver& driver() {
  return g_driver;
}

Result<void> check(int returned, const char* call) {
  if (returned == kSuccess) return {};
  const char* text = nullptr;
  (void)g_driver.error_string(returned, &text);
  const int err = returned == kOutOfMemory                              ? ENOMEM
                  : returned == kNoDevice || returned == kInvalidDevice ? ENODEV
                                                                        : EIO;
  return Error{err, std::string(call) + ": " + (text != nullptr ? text : std::to_string(returned))};
}

Result<Gpu> Gpu::open(int ordinal) {
  int device = 0;
  SLUICE_TRY(check(g_driver.device(&device, ordinal), "cuDeviceGet"));
  SLUICE_TRY(
      check(g_driver.primary_context_flags(device, kContextBlockingSync), "cuDevicePrimaryCtxSetFlags"));
  CUctx_st* context = nullptr;
  SLUICE_TRY(check(g_driver.primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain"));
  Gpu gpu(device, context);
  SLUICE_TRY(gpu.use());
  return gpu;
}

Gpu::~Gpu() {
  if (device_ >= 0) (void)g_driver.primary_context_release(device_);
}

Result<void> Gpu::use() const {
  return check(g_driver.set_current(context_), "cuCtxSetCurrent");
}

Result<std::string> Gpu::name() const {
  std::array<char, 128> name{};
  SLUICE_TRY(
      check(g_driver.device_name(name.data(), static_cast<int>(name.size()), device_), "cuDeviceGetName"));
  return std::string(name.data());
}

int Gpu::numa_node() const {
  std::array<char, 32> id{};
  if (g_driver.device_pci_bus_id(id.data(), static_cast<int>(id.size()), device_) != kSuccess) return -1;
  std::string name(id.data());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char digit) { return static_cast<char>(std::tolower(digit)); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

Result<DeviceMemory> DeviceMemory::make(std::uint64_t bytes) {
  unsigned long long address = 0;
  SLUICE_TRY(check(g_driver.allocate(&address, bytes), "cuMemAlloc"));
  return DeviceMemory(address);
}

DeviceMemory::~DeviceMemory() {
  if (address_ != 0) (void)g_driver.free(address_);
}

Result<Registration> Registration::make(std::span<std::byte> memory) {
  SLUICE_TRY(check(g_driver.host_register(memory.data(), memory.size(), kHostRegisterPortable),
                   "cuMemHostRegister"));
  return Registration(memory.data());
}

Registration::~Registration() {
  if (memory_ != nullptr) (void)g_driver.host_unregister(memory_);
}

Result<Stream> Stream::make() {
  CUstream_st* stream = nullptr;
  SLUICE_TRY(check(g_driver.stream_create(&stream, kStreamNonBlocking), "cuStreamCreate"));
  return Stream(stream);
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  (void)g_driver.stream_synchronize(stream_);
  (void)g_driver.stream_destroy(stream_);
}

Result<void> Stream::synchronize() const {
  return check(g_driver.stream_synchronize(stream_), "cuStreamSynchronize");
}

Result<Event> Event::make() {
  CUevent_st* event = nullptr;
  SLUICE_TRY(check(g_driver.event_create(&event, kEventBlockingSync | kEventDisableTiming), "cuEventCreate"));
  return Event(event);
}

Event::~Event() {
  if (event_ != nullptr) (void)g_driver.event_destroy(event_);
}

}  // namespace sluice::bench::cuda
