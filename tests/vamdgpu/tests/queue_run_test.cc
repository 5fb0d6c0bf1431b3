// SPDX-License-Identifier: MIT
// User-mode queues by themselves: packets written into rings in plain memory, steps of the model, and what
// has changed afterwards: memory, signals, events, read pointers, and what stands.
#include "model/queue_run.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/sdma.h"
#include "model_kit.h"

namespace vamdgpu::tests {
namespace {

constexpr std::uint64_t kBase = 1ull << 40;
constexpr std::uint64_t kRing = kBase, kReadPtr = kBase + (1 << 20), kWritePtr = kBase + (2 << 20),
                        kData = kBase + (3 << 20), kPage = kBase + (4 << 20), kUnmapped = kBase + (900 << 20);
constexpr std::uint32_t kRingBytes = 4096;
constexpr std::uint64_t kDataBytes = 256 * 1024;
constexpr std::uint32_t kGpu = 1000;

// An AMD signal, as far as a queue cares.
struct Signal {
  std::int64_t kind = 1;
  std::int64_t value = 1;
  std::uint64_t mailbox = 0;
  std::uint32_t event = 0, pad = 0;
};

struct Packet {
  std::uint16_t header = 0;
  std::uint16_t setup = 0;
  std::uint32_t pad = 0;
  std::uint64_t body[6] = {};
  std::uint64_t completion = 0;
};
static_assert(sizeof(Packet) == 64);

enum : std::uint16_t {
  kVendor = 0,
  kInvalid = 1,
  kDispatch = 2,
  kBarrierAnd = 3,
  kAgent = 4,
  kBarrierOr = 5
};

// Process 100 with one queue on GPU 1000, its ring, pointers, data and event page in GTT; pools are vectors.
class QueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    machine_.fill = [this](std::uint32_t bo, std::uint64_t offset, std::uint64_t bytes, std::uint8_t byte) {
      std::memset(memory(bo) + offset, byte, bytes);
    };
    kfd_ = machine_.open_kfd();
    // Both, as AMD's runtime does: Linux 6.1 starts no queues of a process that lacks one.
    for (const std::uint32_t gpu : {0U, 1U})
      ASSERT_EQ(machine_.acquire(kfd_, machine_.open_render(gpu), kGpu + gpu), 0);
    alloc(kRing, kRingBytes, VAM_ALLOC_GTT);
    alloc(kReadPtr, 4096, VAM_ALLOC_GTT);
    alloc(kWritePtr, 4096, VAM_ALLOC_GTT);
    alloc(kData, kDataBytes, VAM_ALLOC_VRAM);
    page_handle_ = alloc(kPage, VAM_SIGNAL_PAGE_BYTES, VAM_ALLOC_GTT);
  }

  std::uint64_t alloc(std::uint64_t va, std::uint64_t bytes, std::uint32_t kind, const void* user = nullptr) {
    vam_alloc_memory_args args{};
    args.va = va;
    args.size = bytes;
    args.flags = kind | VAM_ALLOC_WRITABLE;
    args.gpu_id = kGpu;
    args.mmap_offset = reinterpret_cast<std::uint64_t>(user);
    EXPECT_EQ(machine_.kfd(kfd_, VAM_KFD_ALLOC_MEMORY, &args), 0);
    const std::uint32_t ids[1] = {kGpu};
    vam_map_memory_args map{args.handle, reinterpret_cast<std::uint64_t>(ids), 1, 0};
    EXPECT_EQ(machine_.kfd(kfd_, VAM_KFD_MAP_MEMORY, &map), 0);
    return args.handle;
  }

  void make_queue(std::uint32_t type) {
    vam_create_queue_args args{};
    args.ring_base = kRing;
    args.read_pointer = kReadPtr;
    args.write_pointer = kWritePtr;
    args.ring_size = kRingBytes;
    args.gpu_id = kGpu;
    args.type = type;
    args.percentage = 100;
    args.ctx_address = kData;
    args.ctx_size = 4096;
    args.ctl_stack_size = machine_.model()->gpu[0].config.ctl_stack_bytes;
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_CREATE_QUEUE, &args), 0);
    queue_id_ = args.queue_id;
  }

  std::uint32_t make_event() {
    vam_create_event_args args{};
    args.page_offset = page_handle_;
    args.type = VAM_EVENT_SIGNAL;
    EXPECT_EQ(machine_.kfd(kfd_, VAM_KFD_CREATE_EVENT, &args), 0);
    return args.event_id;
  }
  bool event_is_set(std::uint32_t id) {
    vam_event_data data{};
    data.event_id = id;
    vam_wait_events_args args{};
    args.events = reinterpret_cast<std::uint64_t>(&data);
    args.num_events = 1;
    EXPECT_EQ(machine_.kfd(kfd_, VAM_KFD_WAIT_EVENTS, &args), 0);
    return args.result == VAM_WAIT_COMPLETE;
  }

  // ---- memory

  std::uint8_t* memory(std::uint32_t bo) {
    std::vector<std::uint8_t>& bytes = pools_[bo];
    if (bytes.empty()) bytes.resize(VAM_BO_AT(machine_.model(), bo)->size);
    return bytes.data();
  }
  // The place of an address in GPU memory, or the address itself.
  std::uint8_t* at(std::uint64_t va) {
    std::uint32_t bo = 0;
    std::uint64_t offset = 0, bytes = 0;
    const std::uint32_t file =
        VAM_PROCESS_AT(machine_.model(), VAM_FILE_AT(machine_.model(), kfd_)->process)->pdd[0].file;
    EXPECT_EQ(vam_vm_translate(machine_.model(), file, va, 0, &bo, &offset, &bytes), 0);
    return memory(bo) + offset;
  }
  template <class T>
  T get(std::uint64_t va) {
    T value;
    std::memcpy(&value, at(va), sizeof(value));
    return value;
  }
  template <class T>
  void put(std::uint64_t va, const T& value) {
    std::memcpy(at(va), &value, sizeof(value));
  }
  std::uint8_t* host(const vam_place& place) {
    return place.bo != 0 ? memory(place.bo) + place.offset : reinterpret_cast<std::uint8_t*>(place.offset);
  }

  // ---- running

  void put_packet(std::uint64_t index, const Packet& packet) { put(kRing + index % 64 * 64, packet); }
  // Dwords from byte position `position` of the ring on; the position behind them.
  std::uint64_t put_dwords(std::uint64_t position, const std::vector<std::uint32_t>& dwords) {
    for (const std::uint32_t dword : dwords) {
      put(kRing + position % kRingBytes, dword);
      position += 4;
    }
    return position;
  }
  void set_pointers(std::uint64_t read, std::uint64_t write) {
    put(kReadPtr, read);
    put(kWritePtr, write);
  }

  vam_queue_out step(std::uint32_t max_packets = 1000) {
    const std::uint32_t queue = vam_queue_runnable(machine_.model(), 0);
    vam_queue_out out{};
    EXPECT_NE(queue, 0u) << "no queue is runnable";
    if (queue != 0) vam_queue_step(&run_, queue, max_packets, &out);
    return out;
  }
  void expect_fault(vam_queue_fault why, std::uint64_t read_pointer) {
    const vam_queue_out out = step();
    EXPECT_EQ(out.fault, static_cast<std::uint32_t>(why)) << vam_queue_fault_name(out.fault);
    EXPECT_EQ(out.packets, 0u);
    EXPECT_EQ(get<std::uint64_t>(kReadPtr), read_pointer);
    EXPECT_EQ(vam_queue_runnable(machine_.model(), 0), 0u);
  }

  int criu(std::uint32_t op, vam_criu_args* args) {
    args->op = op;
    return machine_.kfd(kfd_, VAM_KFD_CRIU_OP, args);
  }

  static QueueTest& self(void* shim) { return *static_cast<QueueTest*>(shim); }
  static int read(void* shim, const vam_place* from, void* to, std::uint32_t bytes) {
    if (self(shim).broken) return -VAM_EFAULT;
    std::memcpy(to, self(shim).host(*from), bytes);
    return 0;
  }
  static int write(void* shim, const vam_place* to, const void* from, std::uint32_t bytes) {
    std::memcpy(self(shim).host(*to), from, bytes);
    return 0;
  }
  static int add64(void* shim, const vam_place* where, std::uint64_t value) {
    std::uint64_t old = 0;
    std::memcpy(&old, self(shim).host(*where), 8);
    old += value;
    std::memcpy(self(shim).host(*where), &old, 8);
    return 0;
  }

  static vamdgpu_machine_config older_kernel() {
    vamdgpu_machine_config config = two_gpus();
    config.kfd_minor_version = 11;  // does not look at the buffers of a queue: ring sizes are free
    return config;
  }

  Machine machine_{older_kernel()};
  std::uint32_t kfd_ = 0, queue_id_ = 0;
  std::uint64_t page_handle_ = 0;
  std::map<std::uint32_t, std::vector<std::uint8_t>> pools_;  // by BO
  std::uint8_t bounce_[256];
  bool broken = false;  // memory cannot be reached
  vam_queue_run run_{machine_.model(), this, read, write, add64, bounce_, sizeof(bounce_)};
};

// ---- AQL
// ------------------------------------------------------------------------------------------------------------

class AqlQueueTest : public QueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    make_queue(VAM_QUEUE_COMPUTE_AQL);
  }
  static constexpr std::uint64_t kSignal = kData, kOther = kData + 64;
};

TEST_F(AqlQueueTest, AnEmptyQueueDoesNothing) {
  const vam_queue_out out = step();
  EXPECT_EQ(out.packets, 0u);
  EXPECT_EQ(out.waiting, 0u);
  EXPECT_EQ(out.fault, 0u);
}

TEST_F(AqlQueueTest, ADispatchIsConsumedAndCompletesItsSignal) {
  put(kSignal, Signal{.value = 5});
  put_packet(0, {.header = kDispatch, .completion = kSignal});
  set_pointers(0, 1);
  const vam_queue_out out = step();
  EXPECT_EQ(out.packets, 1u);
  EXPECT_EQ(out.events, 0u);
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), 1u);
  EXPECT_EQ(get<Packet>(kRing).header, kInvalid);
  EXPECT_EQ(get<Signal>(kSignal).value, 4);
}

TEST_F(AqlQueueTest, TheRingWrapsAndCountsOn) {
  put(kSignal, Signal{.value = 200});
  std::uint64_t index = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 40; ++i) put_packet(index++, {.header = kDispatch, .completion = kSignal});
    put(kWritePtr, index);
    EXPECT_EQ(step().packets, 40u);
  }
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), 200u);
  EXPECT_EQ(get<Signal>(kSignal).value, 0);
}

TEST_F(AqlQueueTest, AnUnpublishedPacketStopsTheQueueUntilItIsThere) {
  put_packet(0, {.header = kDispatch});
  put_packet(1, {.header = kInvalid});
  put_packet(2, {.header = kDispatch});
  set_pointers(0, 3);
  vam_queue_out out = step();
  EXPECT_EQ(out.packets, 1u);
  EXPECT_EQ(out.waiting, 1u);
  EXPECT_EQ(out.fault, 0u);
  put_packet(1, {.header = kDispatch});
  out = step();
  EXPECT_EQ(out.packets, 2u);
  EXPECT_EQ(out.waiting, 0u);
}

TEST_F(AqlQueueTest, WritersMayClaimMoreThanTheRingHolds) {
  for (std::uint64_t i = 0; i < 64; ++i) put_packet(i, {.header = kDispatch});
  set_pointers(0, 70);
  EXPECT_EQ(step().packets, 64u);  // and then stands at what it has made INVALID itself
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), 64u);
}

TEST_F(AqlQueueTest, WorkIsBoundedByThePacketsAskedFor) {
  for (std::uint64_t i = 0; i < 10; ++i) put_packet(i, {.header = kDispatch});
  set_pointers(0, 10);
  EXPECT_EQ(step(3).packets, 3u);
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), 3u);
}

TEST_F(AqlQueueTest, ABarrierAndWaitsForAllOfItsSignals) {
  put(kSignal, Signal{.value = 1});
  put(kOther, Signal{.value = 1});
  put_packet(0, {.header = kBarrierAnd, .body = {kSignal, 0, kOther}});
  set_pointers(0, 1);
  EXPECT_EQ(step().waiting, 1u);
  put(kSignal, Signal{.value = 0});
  EXPECT_EQ(step().packets, 0u);
  put(kOther, Signal{.value = 0});
  EXPECT_EQ(step().packets, 1u);
}

TEST_F(AqlQueueTest, ABarrierOrWaitsForOneOfItsSignals) {
  put(kSignal, Signal{.value = 1});
  put(kOther, Signal{.value = 1});
  put_packet(0, {.header = kBarrierOr, .body = {kSignal, kOther}});
  set_pointers(0, 1);
  EXPECT_EQ(step().packets, 0u);
  put(kOther, Signal{.value = 0});
  EXPECT_EQ(step().packets, 1u);
}

TEST_F(AqlQueueTest, ABarrierWithoutSignalsIsMet) {
  put_packet(0, {.header = kBarrierAnd});
  put_packet(1, {.header = kBarrierOr});
  put_packet(2, {.header = kVendor, .setup = 2, .body = {0, 7, ~0ull, 0}});  // as HIP writes a plain barrier
  set_pointers(0, 3);
  EXPECT_EQ(step().packets, 3u);
}

TEST_F(AqlQueueTest, ABarrierInTheSameQueueSeesTheSignalBeforeIt) {
  put(kSignal, Signal{.value = 1});
  put_packet(0, {.header = kDispatch, .completion = kSignal});
  put_packet(1, {.header = kBarrierAnd, .body = {kSignal}});
  set_pointers(0, 2);
  EXPECT_EQ(step().packets, 2u);
}

TEST_F(AqlQueueTest, ABarrierValueComparesAsAsked) {
  struct Case {
    std::int64_t value, want;
    std::uint32_t condition;
    bool met;
  };
  const Case cases[] = {{7, 7, 0, true},  {8, 7, 0, false}, {8, 7, 1, true},  {7, 7, 1, false},
                        {-1, 0, 2, true}, {0, 0, 2, false}, {0, -1, 3, true}, {-2, -1, 3, false}};
  std::uint64_t index = 0;
  for (const Case& c : cases) {
    put(kSignal, Signal{.value = c.value});
    // The format is the byte behind the header.
    put_packet(index, {.header = kVendor,
                       .setup = 2,
                       .body = {kSignal, static_cast<std::uint64_t>(c.want), ~0ull, c.condition}});
    set_pointers(index, index + 1);
    EXPECT_EQ(step().packets, c.met ? 1u : 0u) << c.value << " " << c.want << " " << c.condition;
    ++index;
  }
}

TEST_F(AqlQueueTest, AMailboxRaisesTheEventAndItsSlotIsGivenBack) {
  const std::uint32_t event = make_event();
  const std::uint64_t slot = kPage + event * 8ull;
  put(kSignal, Signal{.mailbox = slot, .event = event});
  put_packet(0, {.header = kDispatch, .completion = kSignal});
  set_pointers(0, 1);
  EXPECT_FALSE(event_is_set(event));
  EXPECT_EQ(step().events, 1u);
  EXPECT_TRUE(event_is_set(event));
  EXPECT_EQ(get<std::uint64_t>(slot), ~0ull);
}

TEST_F(AqlQueueTest, AMailboxOutsideTheEventPageIsJustMemory) {
  const std::uint32_t event = make_event();
  put(kSignal, Signal{.mailbox = kData + 4096, .event = event});
  put_packet(0, {.header = kDispatch, .completion = kSignal});
  set_pointers(0, 1);
  EXPECT_EQ(step().events, 0u);
  EXPECT_EQ(get<std::uint64_t>(kData + 4096), event);
  EXPECT_FALSE(event_is_set(event));
}

TEST_F(AqlQueueTest, SignalsInUserptrMemoryAndInSvmRangesWork) {
  alignas(4096) static std::uint8_t pages[2 * 4096];
  const auto address = reinterpret_cast<std::uint64_t>(pages);
  alloc(kBase + (5 << 20), 4096, VAM_ALLOC_USERPTR, pages);
  struct {
    vam_svm_args args;
    vam_svm_attr attrs[1];
  } svm{{address + 4096, 4096, 0, 1}, {{2, kGpu}}};  // ACCESS
  ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_SVM, &svm, sizeof(svm)), 0);
  const Signal signal;
  std::memcpy(pages + 128, &signal, sizeof(signal));
  std::memcpy(pages + 4096, &signal, sizeof(signal));
  put_packet(0, {.header = kDispatch, .completion = kBase + (5 << 20) + 128});
  put_packet(1, {.header = kDispatch, .completion = address + 4096});
  set_pointers(0, 2);
  EXPECT_EQ(step().packets, 2u);
  Signal after;
  std::memcpy(&after, pages + 128, sizeof(after));
  EXPECT_EQ(after.value, 0);
  std::memcpy(&after, pages + 4096, sizeof(after));
  EXPECT_EQ(after.value, 0);
}

TEST_F(AqlQueueTest, AnSvmRangeWithoutAccessIsAFault) {
  alignas(4096) static std::uint8_t page[4096];
  struct {
    vam_svm_args args;
    vam_svm_attr attrs[1];
  } svm{{reinterpret_cast<std::uint64_t>(page), 4096, 0, 1}, {{2, 1001}}};  // of the other GPU
  ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_SVM, &svm, sizeof(svm)), 0);
  put_packet(0, {.header = kDispatch, .completion = reinterpret_cast<std::uint64_t>(page)});
  set_pointers(0, 1);
  expect_fault(VAM_QUEUE_BAD_ADDRESS, 0);
}

TEST_F(AqlQueueTest, WhatCannotBeExecutedStopsTheQueueThere) {
  put_packet(0, {.header = kAgent});
  set_pointers(0, 1);
  expect_fault(VAM_QUEUE_BAD_PACKET, 0);
  EXPECT_EQ(get<Packet>(kRing).header, kAgent);
}

TEST_F(AqlQueueTest, ASignalThatIsNotMappedStopsTheQueueBeforeThePacket) {
  put_packet(0, {.header = kDispatch, .completion = kUnmapped});
  set_pointers(0, 1);
  expect_fault(VAM_QUEUE_BAD_ADDRESS, 0);
  EXPECT_EQ(get<Packet>(kRing).header, kDispatch);
}

TEST_F(AqlQueueTest, AWritePointerBehindTheReadPointerIsAFault) {
  set_pointers(5, 4);
  expect_fault(VAM_QUEUE_BAD_POINTER, 5);
}

TEST_F(AqlQueueTest, MemoryThatCannotBeReachedIsAFault) {
  set_pointers(0, 1);
  broken = true;
  expect_fault(VAM_QUEUE_BAD_ADDRESS, 0);
}

TEST_F(AqlQueueTest, UpdatingAQueueClearsItsFault) {
  put_packet(0, {.header = kAgent});
  set_pointers(0, 1);
  expect_fault(VAM_QUEUE_BAD_PACKET, 0);
  put_packet(0, {.header = kDispatch});
  vam_update_queue_args args{};
  args.ring_base = kRing;
  args.ring_size = kRingBytes;
  args.queue_id = queue_id_;
  args.percentage = 100;
  ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_UPDATE_QUEUE, &args), 0);
  EXPECT_EQ(step().packets, 1u);
}

TEST_F(AqlQueueTest, ADisabledQueueIsNotRunnable) {
  vam_update_queue_args args{};
  args.queue_id = queue_id_;
  ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_UPDATE_QUEUE, &args), 0);
  EXPECT_EQ(vam_queue_runnable(machine_.model(), 0), 0u);
}

TEST_F(AqlQueueTest, AnEvictedQueueStandsUntilUnpause) {
  put_packet(0, {.header = kDispatch});
  set_pointers(0, 1);
  machine_.traced = true;
  vam_criu_args args{};
  ASSERT_EQ(criu(VAM_CRIU_PROCESS_INFO, &args), 0);
  EXPECT_EQ(vam_queue_runnable(machine_.model(), 0), 0u);
  args = {};
  ASSERT_EQ(criu(VAM_CRIU_UNPAUSE, &args), 0);
  EXPECT_EQ(step().packets, 1u);
}

TEST_F(AqlQueueTest, ARestoredQueueStandsUntilResumeAndGoesOnWhereItStood) {
  put(kSignal, Signal{.value = 3});
  for (std::uint64_t i = 0; i < 3; ++i) put_packet(i, {.header = kDispatch, .completion = kSignal});
  set_pointers(0, 3);
  EXPECT_EQ(step(1).packets, 1u);

  vam_criu_args info{};
  ASSERT_EQ(criu(VAM_CRIU_PROCESS_INFO, &info), 0);
  std::vector<vam_criu_device> devices(info.num_devices);
  std::vector<vam_criu_bo> bos(info.num_bos);
  std::vector<std::uint8_t> priv(info.priv_data_size);
  info.devices = reinterpret_cast<std::uint64_t>(devices.data());
  info.bos = reinterpret_cast<std::uint64_t>(bos.data());
  info.priv_data = reinterpret_cast<std::uint64_t>(priv.data());
  ASSERT_EQ(criu(VAM_CRIU_CHECKPOINT, &info), 0);
  std::map<std::uint64_t, std::vector<std::uint8_t>> contents;  // by VA
  for (const vam_criu_bo& bo : bos) contents[bo.addr].assign(at(bo.addr), at(bo.addr) + bo.size);

  const std::uint32_t dead = VAM_FILE_AT(machine_.model(), kfd_)->process;
  vam_process_died(machine_.model(), dead);
  EXPECT_EQ(vam_queue_runnable(machine_.model(), 0), 0u);
  pools_.clear();
  machine_.be(200);
  kfd_ = machine_.open_kfd();
  for (vam_criu_device& device : devices)
    device.drm_fd = machine_.open_render(device.actual_gpu_id == kGpu ? 0 : 1);
  ASSERT_EQ(criu(VAM_CRIU_RESTORE, &info), 0);
  for (const auto& [va, bytes] : contents) std::memcpy(at(va), bytes.data(), bytes.size());
  EXPECT_EQ(vam_queue_runnable(machine_.model(), 0), 0u);
  info.pid = 200;
  ASSERT_EQ(criu(VAM_CRIU_RESUME, &info), 0);
  EXPECT_EQ(step().packets, 2u);
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), 3u);
  EXPECT_EQ(get<Signal>(kSignal).value, 0);
}

// ---- SDMA
// -----------------------------------------------------------------------------------------------------------

class SdmaQueueTest : public QueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    make_queue(VAM_QUEUE_SDMA);
    for (std::uint32_t i = 0; i < 64 * 1024; ++i) *at(kData + i) = static_cast<std::uint8_t>(i * 7 + i / 256);
  }
  static std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
  static std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }
  static std::vector<std::uint32_t> copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes) {
    return {1, bytes - 1, 0, low(from), high(from), low(to), high(to)};
  }
  static std::vector<std::uint32_t> fence(std::uint64_t to, std::uint32_t value) {
    return {5, low(to), high(to), value};
  }
};

TEST_F(SdmaQueueTest, ACopyThenAFence) {
  std::uint64_t end = put_dwords(0, copy(kData + 3, kData + 128 * 1024, 10000));
  end = put_dwords(end, fence(kData + 200 * 1024, 77));
  set_pointers(0, end);
  EXPECT_EQ(step().packets, 2u);
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), end);
  EXPECT_EQ(std::memcmp(at(kData + 128 * 1024), at(kData + 3), 10000), 0);
  EXPECT_EQ(get<std::uint32_t>(kData + 200 * 1024), 77u);
}

TEST_F(SdmaQueueTest, PacketsGoOverTheEndOfTheRing) {
  const std::uint64_t start = 5 * kRingBytes - 12;
  const std::uint64_t end = put_dwords(start, copy(kData, kData + 128 * 1024, 4096));
  set_pointers(start, end);
  EXPECT_EQ(step().packets, 1u);
  EXPECT_EQ(std::memcmp(at(kData + 128 * 1024), at(kData), 4096), 0);
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), end);
}

TEST_F(SdmaQueueTest, FillWriteNopAndAtomic) {
  put(kData + 8, std::uint64_t{40});
  std::uint64_t end = put_dwords(0, {0 | 3u << 16, 1, 2, 3});  // NOP over three dwords
  end = put_dwords(end, {11 | 2u << 30, low(kData + 4096), high(kData + 4096), 0x01020304, 4096 - 1});
  end = put_dwords(end, {2, low(kData + 16), high(kData + 16), 2, 0xa, 0xb, 0xc});
  end = put_dwords(end, {10 | 47u << 25, low(kData + 8), high(kData + 8), 0xffffffff, 0xffffffff, 0, 0, 0});
  set_pointers(0, end);
  const vam_queue_out out = step();
  EXPECT_EQ(out.fault, 0u) << vam_queue_fault_name(out.fault);
  EXPECT_EQ(out.packets, 4u);
  EXPECT_EQ(get<std::uint32_t>(kData + 4096), 0x01020304u);
  EXPECT_EQ(get<std::uint32_t>(kData + 8192 - 4), 0x01020304u);
  EXPECT_NE(get<std::uint32_t>(kData + 8192), 0x01020304u);
  EXPECT_EQ(get<std::uint32_t>(kData + 16), 0xau);
  EXPECT_EQ(get<std::uint32_t>(kData + 24), 0xcu);
  EXPECT_EQ(get<std::uint64_t>(kData + 8), 39u);
}

TEST_F(SdmaQueueTest, APollHoldsTheQueueUntilMemoryIsRight) {
  put(kData, std::uint32_t{1});
  std::uint64_t end = put_dwords(0, {8 | 3u << 28 | 1u << 31, low(kData), high(kData), 0, 0xffffffff, 0});
  end = put_dwords(end, fence(kData + 8, 5));
  set_pointers(0, end);
  vam_queue_out out = step();
  EXPECT_EQ(out.packets, 0u);
  EXPECT_EQ(out.waiting, 1u);
  put(kData, std::uint32_t{0});
  out = step();
  EXPECT_EQ(out.packets, 2u);
  EXPECT_EQ(get<std::uint32_t>(kData + 8), 5u);
}

// Both forms that drivers and runtimes use: ROCr's stands before a copy between GPUs.
TEST_F(SdmaQueueTest, AFlushIsConsumed) {
  const std::uint64_t end = put_dwords(0, {8 | 1u << 26, 0, 0, 0, 0, 0});
  set_pointers(0, put_dwords(end, {8, 0, 0x80000000, 0, 0, 0}));
  EXPECT_EQ(step().packets, 2u);
}

TEST_F(SdmaQueueTest, AFenceIntoTheMailboxAndATrapRaiseTheEvent) {
  const std::uint32_t event = make_event();
  std::uint64_t end = put_dwords(0, {6, event});  // a trap alone: the slot was not written
  set_pointers(0, end);
  EXPECT_EQ(step().events, 0u);
  EXPECT_FALSE(event_is_set(event));
  end = put_dwords(end, fence(kPage + event * 8ull, event));
  end = put_dwords(end, {6, event});
  put(kWritePtr, end);
  EXPECT_EQ(step().events, 1u);
  EXPECT_TRUE(event_is_set(event));
}

TEST_F(SdmaQueueTest, ALongPacketGoesOnInTheNextSteps) {
  const std::uint64_t far = kBase + (16 << 20);
  const std::uint32_t bytes = VAM_QUEUE_STEP_BYTES + 4096;
  alloc(far, 2 * VAM_QUEUE_STEP_BYTES, VAM_ALLOC_VRAM);
  alloc(far + (32 << 20), 2 * VAM_QUEUE_STEP_BYTES, VAM_ALLOC_VRAM);
  for (std::uint32_t i = 0; i < bytes; i += 4) put(far + i, i * 2654435761u);
  machine_.model()->gpu[0].config.sdma_max_bytes = 1u << 30;
  const std::uint64_t end = put_dwords(0, copy(far, far + (32 << 20), bytes));
  set_pointers(0, end);
  vam_queue_out out = step();
  EXPECT_EQ(out.packets, 0u);
  EXPECT_EQ(out.fault, 0u);
  EXPECT_EQ(get<std::uint64_t>(kReadPtr), 0u);
  out = step();
  EXPECT_EQ(out.packets, 1u);
  EXPECT_EQ(std::memcmp(at(far + (32 << 20)), at(far), bytes), 0);
}

TEST_F(SdmaQueueTest, BadPacketsStopTheQueue) {
  const std::vector<std::vector<std::uint32_t>> bad = {
      {99},                                                                       // no such packet
      {4, 0, 0, 0},                                                               // indirect buffer
      {1, 4096},                                                                  // a copy cut off
      {1u | 1u << 8, 4095, 0, low(kData), high(kData), low(kData), high(kData)},  // not linear
      {0 | 5u << 16},                                            // NOP beyond the write pointer
      {2, low(kData), high(kData), 9},                           // data beyond it
      {10 | 40u << 25, low(kData), high(kData), 1, 0, 0, 0, 0},  // another atomic
      {8 | 3u << 28, 0, 0, 0, 0, 0},                             // waits for a register's value
  };
  for (const auto& dwords : bad) {
    const std::uint64_t end = put_dwords(0, dwords);
    set_pointers(0, end);
    expect_fault(VAM_QUEUE_BAD_PACKET, 0);
    vam_update_queue_args args{kRing, queue_id_, kRingBytes, 100, 7};
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_UPDATE_QUEUE, &args), 0);
  }
}

TEST_F(SdmaQueueTest, AnAddressThatIsNotMappedStopsTheQueue) {
  set_pointers(0, put_dwords(0, copy(kData, kUnmapped, 4096)));
  expect_fault(VAM_QUEUE_BAD_ADDRESS, 0);
}

TEST_F(SdmaQueueTest, PointersThatMakeNoSenseStopTheQueue) {
  set_pointers(0, kRingBytes + 4);
  expect_fault(VAM_QUEUE_BAD_POINTER, 0);
}

// ---- PM4
// ------------------------------------------------------------------------------------------------------------

class Pm4QueueTest : public SdmaQueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    make_queue(VAM_QUEUE_COMPUTE);
  }
  static std::uint32_t header(std::uint32_t op, std::uint32_t dwords) {
    return 3u << 30 | (dwords - 2) << 16 | op << 8;
  }
};

TEST_F(Pm4QueueTest, WriteDataReleaseMemAndNops) {
  const std::uint32_t event = make_event();
  std::uint64_t end = put_dwords(0, {2u << 30, header(0x10, 3), 0, 0});
  end = put_dwords(end, {header(0x37, 6), 5u << 8 | 1u << 20, low(kData), high(kData), 11, 12});
  end = put_dwords(end, {header(0x58, 7), 0, 0, 0, 0, 0, 0});
  const std::uint64_t slot = kPage + event * 8ull;
  end = put_dwords(end, {header(0x49, 8), 0x14, 2u << 29 | 2u << 24, low(slot), high(slot), event, 0, event});
  set_pointers(0, end / 4);
  const vam_queue_out out = step();
  EXPECT_EQ(out.packets, 5u);
  EXPECT_EQ(out.events, 1u);
  EXPECT_EQ(get<std::uint32_t>(kReadPtr), end / 4);
  EXPECT_EQ(get<std::uint32_t>(kData), 11u);
  EXPECT_EQ(get<std::uint32_t>(kData + 4), 12u);
  EXPECT_TRUE(event_is_set(event));
}

TEST_F(Pm4QueueTest, TheReadPointerIsAPlaceInTheRing) {
  const std::uint64_t start = kRingBytes / 4 - 2;  // of the packet's five dwords two lie before the end
  put_dwords(start * 4, {header(0x37, 5), 5u << 8, low(kData), high(kData), 99});
  set_pointers(start, 3 * (kRingBytes / 4) + start + 5);
  EXPECT_EQ(step().packets, 1u);
  EXPECT_EQ(get<std::uint32_t>(kReadPtr), 3u);
  EXPECT_EQ(get<std::uint32_t>(kData), 99u);
}

TEST_F(Pm4QueueTest, WhatCannotBeExecutedStopsTheQueue) {
  const std::vector<std::vector<std::uint32_t>> bad = {
      {header(0x15, 5), 1, 1, 1, 1},                                     // a direct dispatch
      {0u << 30 | 7},                                                    // a register write
      {header(0x37, 5), 0, low(kData), high(kData), 1},                  // WRITE_DATA to a register
      {header(0x49, 8), 0, 3u << 29, low(kData), high(kData), 0, 0, 0},  // a timestamp
      {header(0x37, 9), 5u << 8, low(kData), high(kData), 1},            // beyond the write pointer
  };
  for (const auto& dwords : bad) {
    const std::uint64_t end = put_dwords(0, dwords);
    set_pointers(0, end / 4);
    expect_fault(VAM_QUEUE_BAD_PACKET, 0);
    vam_update_queue_args args{kRing, queue_id_, kRingBytes, 100, 7};
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_UPDATE_QUEUE, &args), 0);
  }
}

}  // namespace
}  // namespace vamdgpu::tests
