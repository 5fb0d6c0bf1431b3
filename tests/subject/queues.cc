// SPDX-License-Identifier: MIT
#include "subject/queues.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "subject/bos.h"
#include "subject/events.h"
#include "subject/svm.h"

namespace sluice::subject {
namespace {

constexpr std::uint32_t kGtt = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
constexpr std::uint32_t kVram = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
constexpr std::uint32_t kExecutable = KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;

constexpr std::uint32_t kRingBytes = 4096;
constexpr std::uint64_t kEopBytes = 4096;
constexpr std::uint32_t kBatchMilliseconds = 30'000;   // more than any machine needs
constexpr std::uint32_t kProgressMilliseconds = 3000;  // what does not run in this time stands

// ---- scratch memory of a queue: signals and data
// ----------------------------------------------------------------------------------------------------

constexpr std::uint64_t kScratchBytes = 32 * 1024;
constexpr std::uint64_t kWork = 0;           // signal that every piece of work decrements
constexpr std::uint64_t kGate = 64;          // signal that holds a batch while it is not 0
constexpr std::uint64_t kBell = 128;         // signal with the queue's event
constexpr std::uint64_t kFence = 192;        // dword: number of the last batch that ended
constexpr std::uint64_t kWritten = 256;      // two dwords that a packet writes
constexpr std::uint64_t kSource = 4096;      // data of a batch
constexpr std::uint64_t kMiddle = 2 * 4096;  // where SDMA copies it before the gate
constexpr std::uint64_t kTarget = 3 * 4096;  // and from there behind it
constexpr std::uint64_t kDataBytes = 4096;
constexpr std::int64_t kWorkStart = 1 << 30;

struct Signal {  // AMD's, as far as the queues of this process use it
  std::int64_t kind;
  std::int64_t value;
  std::uint64_t mailbox;
  std::uint32_t event_id;
  std::uint32_t pad;
};

std::uint64_t& word_at(std::uint64_t address) {
  return *reinterpret_cast<std::uint64_t*>(address);
}
std::uint64_t load(std::uint64_t address) {
  return std::atomic_ref(word_at(address)).load(std::memory_order_acquire);
}
void store(std::uint64_t address, std::uint64_t value) {
  std::atomic_ref(word_at(address)).store(value, std::memory_order_release);
}
std::int64_t signal_value(std::uint64_t signal) {
  return static_cast<std::int64_t>(load(signal + offsetof(Signal, value)));
}
void put_signal(std::uint64_t signal, const Signal& value) {
  std::memcpy(reinterpret_cast<void*>(signal), &value, sizeof(value));
}

bool is_aql(const QueueRecord& queue) {
  return queue.type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
}
bool is_pm4(const QueueRecord& queue) {
  return queue.type == KFD_IOC_QUEUE_TYPE_COMPUTE;
}

std::string name_of(const QueueRecord& queue) {
  return (is_aql(queue)   ? "AQL queue "
          : is_pm4(queue) ? "PM4 queue "
                          : "SDMA queue ") +
         std::to_string(queue.id);
}

Pattern data_of(const Arena& arena, const QueueRecord& queue) {
  const auto number = static_cast<std::uint64_t>(&queue - arena.queues.data());
  return Pattern{mix(arena.seed + number * 1000 + queue.batches), kDataBytes, 0};
}

std::span<std::uint8_t> scratch_data(const QueueRecord& queue, std::uint64_t offset) {
  return {reinterpret_cast<std::uint8_t*>(queue.scratch_va + offset), kDataBytes};
}

void ring_doorbell(const Arena& arena, const QueueRecord& queue, std::uint64_t value) {
  const GpuRecord& gpu = arena.gpus[queue.gpu];
  store(arena.bos[gpu.doorbell_bo].va + queue.doorbell_offset % kDoorbellBytes, value);
}

// ---- AQL packets
// ------------------------------------------------------------------------------------------------------

constexpr std::uint64_t kAqlBytes = 64;
constexpr std::uint16_t kInvalid = 1, kDispatch = 2, kBarrierAnd = 3;
constexpr std::uint16_t kBarrierBit = 1 << 8;
constexpr std::uint64_t kAqlPackets = 5, kAqlBeforeGate = 2;  // of a batch
constexpr std::int64_t kAqlWork = 2;                          // decrements of the work signal in a batch

struct AqlPacket {
  std::uint16_t header;
  std::uint16_t setup;
  std::uint32_t pad;
  std::array<std::uint64_t, 6> body;
  std::uint64_t completion;
};
static_assert(sizeof(AqlPacket) == kAqlBytes);

void put_aql(QueueRecord& queue, AqlPacket packet, std::uint16_t type) {
  const std::uint64_t at = queue.ring_va + queue.position % (kRingBytes / kAqlBytes) * kAqlBytes;
  const auto header = static_cast<std::uint16_t>(type | kBarrierBit);
  packet.header = kInvalid;
  std::memcpy(reinterpret_cast<void*>(at), &packet, sizeof(packet));
  // Published last: a queue takes no packet whose header is INVALID.
  std::atomic_ref(*reinterpret_cast<std::uint16_t*>(at)).store(header, std::memory_order_release);
  ++queue.position;
}

void put_aql_batch(QueueRecord& queue) {
  const std::uint64_t work = queue.scratch_va + kWork, gate = queue.scratch_va + kGate,
                      bell = queue.scratch_va + kBell;
  AqlPacket dispatch{};
  dispatch.completion = work;
  AqlPacket ring{};
  ring.completion = bell;
  AqlPacket barrier{};
  barrier.body[0] = gate;
  put_aql(queue, dispatch, kDispatch);
  put_aql(queue, ring, kDispatch);
  queue.gate = queue.position;
  put_aql(queue, barrier, kBarrierAnd);
  put_aql(queue, dispatch, kDispatch);
  put_aql(queue, ring, kDispatch);
}

// ---- SDMA packets
// ------------------------------------------------------------------------------------------------------

constexpr std::uint32_t kOpNop = 0, kOpCopy = 1, kOpWrite = 2, kOpFence = 5, kOpTrap = 6, kOpPoll = 8,
                        kOpAtomic = 10;
constexpr std::uint32_t kAtomicAdd64 = 47, kPollEqual = 3;
constexpr std::uint64_t kSdmaPackets = 12, kSdmaBeforeGate = 3;
constexpr std::int64_t kSdmaWork = 1;

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

template <std::size_t Dwords>
void put_sdma(QueueRecord& queue, const std::array<std::uint32_t, Dwords>& dwords) {
  for (const std::uint32_t dword : dwords) {
    *reinterpret_cast<volatile std::uint32_t*>(queue.ring_va + queue.position % kRingBytes) = dword;
    queue.position += sizeof(dword);
  }
}

void put_copy(QueueRecord& queue, std::uint64_t from, std::uint64_t to) {
  put_sdma<7>(queue, {kOpCopy, kDataBytes - 1, 0, low(from), high(from), low(to), high(to)});
}

void put_interrupt(QueueRecord& queue, std::uint64_t slot) {
  put_sdma<4>(queue, {kOpFence, low(slot), high(slot), queue.event_id});
  put_sdma<2>(queue, {kOpTrap, queue.event_id});
}

void put_sdma_batch(const Arena& arena, QueueRecord& queue) {
  const std::uint64_t base = queue.scratch_va, slot = event_slot(arena, queue.event_id);
  const std::uint64_t gate = base + kGate + offsetof(Signal, value);
  const std::uint64_t work = base + kWork + offsetof(Signal, value);
  const auto batch = static_cast<std::uint32_t>(queue.batches);
  put_copy(queue, base + kSource, base + kMiddle);
  put_interrupt(queue, slot);
  queue.gate = queue.position;
  put_sdma<6>(queue, {kOpPoll | kPollEqual << 28 | 1U << 31, low(gate), high(gate), 0, ~0U, 0});
  put_sdma<3>(queue, {kOpNop | 2U << 16, 0, 0});
  put_copy(queue, base + kMiddle, base + kTarget);
  put_sdma<6>(queue, {kOpWrite, low(base + kWritten), high(base + kWritten), 2 - 1, batch, ~batch});
  put_sdma<4>(queue, {kOpFence, low(base + kFence), high(base + kFence), batch});
  put_sdma<8>(queue, {kOpAtomic | kAtomicAdd64 << 25, low(work), high(work), ~0U, ~0U, 0, 0, 0});
  put_sdma<1>(queue, {kOpNop});
  put_interrupt(queue, slot);
}

// ---- PM4 packets of gfx9 (soc15d.h)
// ------------------------------------------------------------------------------------------------------

constexpr std::uint32_t kPm4Write = 0x37, kPm4Wait = 0x3c, kPm4Copy = 0x40, kPm4Release = 0x49;
constexpr std::uint32_t kToMemory = 5 << 8, kFromMemory = 1, kWide = 1 << 16;  // WRITE_DATA, COPY_DATA
constexpr std::uint32_t kWaitForMemory = 1 << 4, kWaitEqual = 3;               // WAIT_REG_MEM
constexpr std::uint32_t kEndOfPipe = 0x14 | 5 << 8, kData32 = 1 << 29, kTell = 2 << 24;  // RELEASE_MEM
constexpr std::uint64_t kPm4Packets = 7, kPm4BeforeGate = 2;
constexpr std::uint64_t kPm4Copied = 8;  // bytes

template <std::size_t Dwords>
void put_pm4(QueueRecord& queue, std::uint32_t op, const std::array<std::uint32_t, Dwords>& body) {
  const auto put = [&](std::uint32_t dword) {
    const std::uint64_t at = queue.position++ * sizeof(dword) % kRingBytes;
    *reinterpret_cast<volatile std::uint32_t*>(queue.ring_va + at) = dword;
  };
  put(3U << 30 | (Dwords - 1) << 16 | op << 8);
  for (const std::uint32_t dword : body) put(dword);
}

void put_pm4_copy(QueueRecord& queue, std::uint64_t from, std::uint64_t to) {
  put_pm4<5>(queue, kPm4Copy, {kFromMemory | kToMemory | kWide, low(from), high(from), low(to), high(to)});
}

// Writes a dword when what came before it has ended.
void put_release(QueueRecord& queue, std::uint64_t to, std::uint32_t value, std::uint32_t told) {
  put_pm4<7>(queue, kPm4Release, {kEndOfPipe, kData32 | told, low(to), high(to), value, 0, queue.event_id});
}

void put_pm4_batch(const Arena& arena, QueueRecord& queue) {
  const std::uint64_t base = queue.scratch_va, slot = event_slot(arena, queue.event_id);
  const std::uint64_t gate = base + kGate + offsetof(Signal, value);
  const auto batch = static_cast<std::uint32_t>(queue.batches);
  put_pm4_copy(queue, base + kSource, base + kMiddle);
  put_release(queue, slot, queue.event_id, kTell);
  queue.gate = queue.position;
  put_pm4<6>(queue, kPm4Wait, {kWaitForMemory | kWaitEqual, low(gate), high(gate), 0, ~0U, 4});
  put_pm4_copy(queue, base + kMiddle, base + kTarget);
  put_pm4<5>(queue, kPm4Write, {kToMemory, low(base + kWritten), high(base + kWritten), batch, ~batch});
  put_release(queue, base + kFence, batch, 0);
  put_release(queue, slot, queue.event_id, kTell);
}

// ---- batches
// ----------------------------------------------------------------------------------------------------------

struct Packets {
  std::uint64_t all, before_gate;
};
Packets packets_of_batch(const QueueRecord& queue) {
  if (is_aql(queue)) return {kAqlPackets, kAqlBeforeGate};
  if (is_pm4(queue)) return {kPm4Packets, kPm4BeforeGate};
  return {kSdmaPackets, kSdmaBeforeGate};
}

Result<bool> rang(const Arena& arena, const QueueRecord& queue, std::uint32_t milliseconds) {
  SLUICE_TRY_ASSIGN(const Waited waited, wait_event(arena.kfd_fd, queue.event_id, milliseconds));
  return waited == Waited::Complete;
}

// Puts a batch behind a closed gate and sees it consumed up to there.
Result<void> put_batch(const Arena& arena, QueueRecord& queue) {
  ++queue.batches;
  queue.open = 0;
  store(queue.scratch_va + kGate + offsetof(Signal, value), 1);
  data_of(arena, queue).fill(scratch_data(queue, kSource), 0);
  if (is_aql(queue))
    put_aql_batch(queue);
  else if (is_pm4(queue))
    put_pm4_batch(arena, queue);
  else
    put_sdma_batch(arena, queue);
  store(queue.write_va, queue.position);
  ring_doorbell(arena, queue, is_aql(queue) ? queue.position - 1 : queue.position);
  SLUICE_TRY_ASSIGN(const bool consumed, rang(arena, queue, kBatchMilliseconds));
  if (!consumed) return Error{ETIME, name_of(queue) + " does not consume its packets"};
  queue.consumed += packets_of_batch(queue).before_gate;
  return {};
}

void open_gate(QueueRecord& queue) {
  queue.open = 1;
  store(queue.scratch_va + kGate + offsetof(Signal, value), 0);
}

Result<void> expect(const QueueRecord& queue, const char* what, std::uint64_t is, std::uint64_t should) {
  if (is == should) return {};
  return Error{
      EIO, name_of(queue) + " has " + what + " " + std::to_string(is) + ", not " + std::to_string(should)};
}

// What the GPU reports for a position: a PM4 queue's place in its ring.
std::uint64_t reported(const QueueRecord& queue, std::uint64_t position) {
  return is_pm4(queue) ? position % (kRingBytes / sizeof(std::uint32_t)) : position;
}

// As much of it as the queue copies.
Result<void> expect_data(const Arena& arena, const QueueRecord& queue, std::uint64_t offset) {
  const std::span<std::uint8_t> copied =
      scratch_data(queue, offset).first(is_pm4(queue) ? kPm4Copied : kDataBytes);
  const auto difference = data_of(arena, queue).first_difference(copied, 0);
  if (!difference) return {};
  return Error{EIO, name_of(queue) + " copied byte " + std::to_string(*difference) + " wrong"};
}

// Effects of `batches` whole batches; the one that stands at the gate is not counted.
Result<void> check_effects(const Arena& arena, const QueueRecord& queue, std::uint64_t batches) {
  const std::int64_t done = kWorkStart - signal_value(queue.scratch_va + kWork);
  const bool at_gate = batches < queue.batches;
  if (is_aql(queue)) {
    // A batch decrements once before its gate and once behind it.
    return expect(queue, "work signal", static_cast<std::uint64_t>(done),
                  batches * kAqlWork + (at_gate ? 1 : 0));
  }
  const std::uint64_t work_of_batch = is_pm4(queue) ? 0 : kSdmaWork;
  SLUICE_TRY(expect(queue, "work signal", static_cast<std::uint64_t>(done), batches * work_of_batch));
  SLUICE_TRY(expect(queue, "fence", load(queue.scratch_va + kFence), batches));
  SLUICE_TRY(expect_data(arena, queue, kSource));
  SLUICE_TRY(expect_data(arena, queue, kMiddle));
  if (at_gate) return {};
  const std::uint64_t written = batches | std::uint64_t{~low(batches)} << 32;
  SLUICE_TRY(expect(queue, "written words", load(queue.scratch_va + kWritten), written));
  return expect_data(arena, queue, kTarget);
}

// Lets the batch end.
Result<void> finish_batch(const Arena& arena, QueueRecord& queue, std::uint32_t milliseconds, bool* ended) {
  open_gate(queue);
  SLUICE_TRY_ASSIGN(*ended, rang(arena, queue, milliseconds));
  if (!*ended) return {};
  queue.consumed += packets_of_batch(queue).all - packets_of_batch(queue).before_gate;
  SLUICE_TRY(expect(queue, "read pointer", load(queue.read_va), reported(queue, queue.position)));
  return check_effects(arena, queue, queue.batches);
}

Result<void> next_batch(const Arena& arena, QueueRecord& queue) {
  bool ended = false;
  SLUICE_TRY(finish_batch(arena, queue, kBatchMilliseconds, &ended));
  if (!ended) return Error{ETIME, name_of(queue) + " does not end its packets"};
  return put_batch(arena, queue);
}

// The queue stands at its gate. Where that is open it is waited for first, and given the next batch.
Result<void> check_running(const Arena& arena, QueueRecord& queue) {
  if (queue.open != 0) SLUICE_TRY(next_batch(arena, queue));
  SLUICE_TRY(expect(queue, "write pointer", load(queue.write_va), queue.position));
  SLUICE_TRY(expect(queue, "read pointer", load(queue.read_va), reported(queue, queue.gate)));
  SLUICE_TRY(check_effects(arena, queue, queue.batches - 1));
  SLUICE_TRY_ASSIGN(const bool early, rang(arena, queue, 0));
  if (early) return Error{EIO, name_of(queue) + " went through its gate"};
  return {};
}

// UPDATE_QUEUE with the values of its record: -EINVAL if the queue does not exist.
Result<void> update_queue(const Arena& arena, const QueueRecord& queue) {
  kfd_ioctl_update_queue_args args{};
  args.ring_base_address = queue.ring_va;
  args.queue_id = queue.id;
  args.ring_size = queue.ring_bytes;
  args.queue_percentage = queue.share;
  args.queue_priority = queue.priority;
  return device_ioctl(arena.kfd_fd, AMDKFD_IOC_UPDATE_QUEUE, &args, "UPDATE_QUEUE");
}

// ---- making
// -----------------------------------------------------------------------------------------------------------

// Memory of a queue on a GPU with its contents; CPU-mapped, and zero, when the queue will run. Its GPU
// address.
Result<std::uint64_t> add_memory(Arena& arena, std::uint32_t gpu, std::uint64_t bytes, std::uint32_t place,
                                 BoRole role) {
  NewBo wanted{.gpu = gpu, .bytes = bytes, .flags = place | kWritable | kExecutable, .role = role};
  wanted.zero_percent = role == BoRole::Pointer ? 100 : 0;
  std::uint64_t offset = 0;
  SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
  if (role == BoRole::Running) {
    SLUICE_TRY(map_bo(arena, index, offset));
    std::memset(reinterpret_cast<void*>(arena.bos[index].va), 0, bytes);
  } else {
    if (arena.can_export == 0) SLUICE_TRY(map_bo(arena, index, offset));
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, gpu));
    SLUICE_TRY(fill_bo(arena, window.get(), arena.bos[index]));
  }
  return arena.bos[index].va;
}

// A queue finds packets in the ring only where they have been put.
void clear_ring(const QueueRecord& queue) {
  for (std::uint64_t at = 0; is_aql(queue) && at < kRingBytes; at += kAqlBytes)
    std::memcpy(reinterpret_cast<void*>(queue.ring_va + at), &kInvalid, sizeof(kInvalid));
}

// Memory of this process that the GPU may access through an SVM range: nothing of it is ever touched here.
Result<std::uint64_t> add_svm_context(Arena& arena, std::uint32_t gpu, std::uint64_t bytes) {
  GpuRecord& record = arena.gpus[gpu];
  void* at = ::mmap(reinterpret_cast<void*>(record.next_va), bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) return make_error(errno, "mmap of a context save area");
  const std::uint64_t address = record.next_va;
  record.next_va += align_up(bytes, 64 * kKiB) + 64 * kKiB;
  SLUICE_TRY(svm_give_access(arena.kfd_fd, address, bytes, record.gpu_id));
  return address;
}

Result<std::uint64_t> add_save_area(Arena& arena, std::uint32_t gpu, std::uint64_t bytes,
                                    const Options& options) {
  if (options.svm_context) return add_svm_context(arena, gpu, bytes);
  if (!options.empty_context) return add_memory(arena, gpu, bytes, kGtt, BoRole::Data);
  NewBo wanted{.gpu = gpu, .bytes = bytes, .flags = kVram | kWritable | kExecutable};
  wanted.role = BoRole::SaveArea;
  std::uint64_t offset = 0;
  SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
  return arena.bos[index].va;
}

Result<void> set_cu_mask(const Arena& arena, const QueueRecord& queue, const Options& options) {
  std::array<std::uint32_t, 4> mask;
  mask.fill(options.cu_mask);
  kfd_ioctl_set_cu_mask_args args{};
  args.queue_id = queue.id;
  args.num_cu_mask = mask.size() * 32;
  args.cu_mask_ptr = reinterpret_cast<std::uintptr_t>(mask.data());
  return device_ioctl(arena.kfd_fd, AMDKFD_IOC_SET_CU_MASK, &args, "SET_CU_MASK");
}

Result<void> add_queue(Arena& arena, std::uint32_t gpu, const TopologyGpu& topology, std::uint32_t type,
                       const Options& options) {
  const BoRole ring_role = options.run_queues ? BoRole::Running : BoRole::Data;
  const BoRole pointer_role = options.run_queues ? BoRole::Running : BoRole::Pointer;
  kfd_ioctl_create_queue_args args{};
  args.gpu_id = arena.gpus[gpu].gpu_id;
  args.queue_type = type;
  args.queue_percentage = KFD_MAX_QUEUE_PERCENTAGE;
  args.queue_priority = options.priority;
  args.ring_size = kRingBytes;
  SLUICE_TRY_ASSIGN(args.ring_base_address, add_memory(arena, gpu, kRingBytes, kGtt, ring_role));
  SLUICE_TRY_ASSIGN(args.read_pointer_address, add_memory(arena, gpu, kGpuPageBytes, kGtt, pointer_role));
  SLUICE_TRY_ASSIGN(args.write_pointer_address, add_memory(arena, gpu, kGpuPageBytes, kGtt, pointer_role));
  if (type != KFD_IOC_QUEUE_TYPE_SDMA) {
    SLUICE_TRY_ASSIGN(args.eop_buffer_address, add_memory(arena, gpu, kEopBytes, kVram, BoRole::Data));
    args.eop_buffer_size = kEopBytes;
    args.ctx_save_restore_size = topology.cwsr_bytes;
    args.ctl_stack_size = topology.ctl_stack_bytes;
    SLUICE_TRY_ASSIGN(args.ctx_save_restore_address,
                      add_save_area(arena, gpu, topology.save_area_bytes(), options));
  }
  QueueRecord queue{};
  queue.gpu = gpu;
  queue.type = type;
  queue.ring_bytes = kRingBytes;
  queue.priority = options.priority;
  queue.share = KFD_MAX_QUEUE_PERCENTAGE;
  queue.ring_va = args.ring_base_address;
  queue.read_va = args.read_pointer_address;
  queue.write_va = args.write_pointer_address;
  if (options.run_queues) {
    SLUICE_TRY_ASSIGN(queue.scratch_va, add_memory(arena, gpu, kScratchBytes, kGtt, BoRole::Running));
    clear_ring(queue);
  }
  SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_CREATE_QUEUE, &args, "CREATE_QUEUE"));
  queue.id = args.queue_id;
  queue.doorbell_offset = args.doorbell_offset;
  if (options.gws && is_aql(queue)) {
    kfd_ioctl_alloc_queue_gws_args gws{.queue_id = queue.id, .num_gws = 1};
    SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_ALLOC_QUEUE_GWS, &gws, "ALLOC_QUEUE_GWS"));
  }
  if (options.cu_mask != 0 && type != KFD_IOC_QUEUE_TYPE_SDMA) SLUICE_TRY(set_cu_mask(arena, queue, options));
  arena.queues[arena.num_queues++] = queue;
  return {};
}

}  // namespace

Result<void> add_queues(Arena& arena, std::uint32_t gpu, const TopologyGpu& topology,
                        const Options& options) {
  SLUICE_TRY(add_queue(arena, gpu, topology, KFD_IOC_QUEUE_TYPE_SDMA, options));
  SLUICE_TRY(add_queue(arena, gpu, topology, KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, options));
  if (!options.pm4) return {};
  return add_queue(arena, gpu, topology, KFD_IOC_QUEUE_TYPE_COMPUTE, options);
}

Result<void> start_queues(Arena& arena) {
  arena.run_queues = 1;
  // Every GPU writes event slots.
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    if (arena.bos[i].role != BoRole::EventPage) continue;
    for (std::uint32_t gpu = 1; gpu < arena.num_gpus; ++gpu) SLUICE_TRY(map_for(arena, arena.bos[i], gpu));
  }
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) {
    QueueRecord& queue = arena.queues[i];
    SLUICE_TRY_ASSIGN(queue.event_id, create_event(arena.kfd_fd, KFD_IOC_EVENT_SIGNAL, true));
    put_signal(queue.scratch_va + kWork, Signal{.kind = 1, .value = kWorkStart});
    put_signal(queue.scratch_va + kGate, Signal{.kind = 1, .value = 1});
    put_signal(queue.scratch_va + kBell, Signal{.kind = 1,
                                                .value = kWorkStart,
                                                .mailbox = event_slot(arena, queue.event_id),
                                                .event_id = queue.event_id});
    SLUICE_TRY(put_batch(arena, queue));
  }
  return {};
}

Result<void> check_queues(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) {
    if (arena.run_queues != 0) SLUICE_TRY(check_running(arena, arena.queues[i]));
    SLUICE_TRY(update_queue(arena, arena.queues[i]));
  }
  return {};
}

Result<void> work_queues(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_queues && arena.run_queues != 0; ++i)
    SLUICE_TRY(next_batch(arena, arena.queues[i]));
  return {};
}

Result<void> share_queues(Arena& arena, std::uint32_t percent) {
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) {
    arena.queues[i].share = percent;
    SLUICE_TRY(update_queue(arena, arena.queues[i]));
  }
  return {};
}

Result<QueueProgress> queue_progress(Arena& arena) {
  if (arena.run_queues == 0) return Error{EINVAL, "no queue gets packets (--run-queues)"};
  QueueProgress progress{.runs = true};
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) open_gate(arena.queues[i]);
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) {
    QueueRecord& queue = arena.queues[i];
    bool ended = false;
    // One wait is enough for queues that all stand.
    SLUICE_TRY(finish_batch(arena, queue, progress.runs ? kProgressMilliseconds : 0, &ended));
    if (ended) SLUICE_TRY(put_batch(arena, queue));
    progress.runs &= ended;
    progress.consumed += queue.consumed;
  }
  return progress;
}

}  // namespace sluice::subject
