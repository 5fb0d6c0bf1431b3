// SPDX-License-Identifier: MIT
#include "cp/command_processor.h"

#include <algorithm>
#include <utility>

#include "models/model.h"
#include "registers/names.h"

namespace sluice::card {

namespace {

using mqd::doorbell_bytes;
using mqd::join;

constexpr unsigned kFirstKfdVmid = 3;
constexpr std::uint64_t kAddressMask = 0x0000'ffff'ffff'ffff;
constexpr std::uint32_t kDoorbellOn = 1 << 30;
constexpr std::uint32_t kNoReadPointer = 1 << 27;  // of PQ_CONTROL: it is reported nowhere

// Bits of SET_RESOURCES' queue mask are counted so: MEC, pipe, queue.
constexpr unsigned kPipesPerMec = 4;
constexpr unsigned kQueuesPerPipe = 8;

}  // namespace

CommandProcessor::CommandProcessor(Chip& chip, const Memory& memory, RegisterBank registers)
    : chip_(chip), memory_(memory), registers_(registers), slots_(kSlots) {
  for (std::uint32_t byte = reg::kHqdFirst; byte <= reg::kHqdLast; byte += 4) {
    const std::size_t index = (byte - reg::kHqdFirst) / 4;
    registers.attach(
        byte, [this, index] { return read_slot(index); },
        [this, index](std::uint32_t value) { write_slot(index, value); });
  }
  registers.attach(
      reg::kCpcIntCntl, [this] { return registers_.latched(selected_interrupts()); },
      [this](std::uint32_t value) { registers_.latch(selected_interrupts(), value); });
  // KIQ asks for its fence's interrupt by a WRITE_DATA to this register (gfx_v9_0_ring_emit_fence_kiq).
  registers.attach(
      reg::kCpcIntStatus, [] { return 0; },
      [this](std::uint32_t) {
        InterruptEntry entry;
        entry.client = kIhGrbmCp;
        entry.source = kSourceKiq;
        entry.ring_id = kiq_ring_id_;
        chip_.interrupt(entry);
      });
}

void CommandProcessor::reset() {
  mapped_.clear();
  unmapped_.clear();
  std::fill(slots_.begin(), slots_.end(), Slot{});
  process_ = {};
  vmid_mask_ = 0;
  queue_mask_ = 0;
  vmid_pasid_ = {};
}

// ---- engines and their interrupts ----

std::uint32_t CommandProcessor::selected_interrupts() const {
  const std::uint32_t value = registers_.latched(reg::kGrbmGfxCntl);
  return reg::kCpMeIntCntl + (value & 3) * 4 + ((value >> 2 & 3) == 2 ? 16 : 0);
}

bool CommandProcessor::sends(const InterruptEntry& entry) const {
  std::uint32_t needed = 0;
  switch (entry.source) {
    case kSourceEndOfPipe:
      needed = 1 << 26;  // TIME_STAMP_INT_ENABLE
      break;
    case kSourceBadOpcode:
      needed = 1 << 24;  // OPCODE_ERROR_INT_ENABLE
      break;
    case kSourcePrivilegedRegister:
      needed = 1 << 23;  // PRIV_REG_INT_ENABLE
      break;
    default:
      return true;
  }
  const std::uint32_t pipe = entry.ring_id & 3;
  const std::uint32_t me = entry.ring_id >> 2 & 3;
  return (registers_.latched(reg::kCpMeIntCntl + pipe * 4 + (me == 2 ? 16 : 0)) & needed) != 0;
}

bool CommandProcessor::halted(const Mapped& mapped) const {
  if (mapped.sdma) return false;
  const std::uint32_t halts = registers_.latched(reg::kCpMecCntl);
  return (halts & ((mapped.ring_id >> 2 & 3) == 2 ? 1U << 28 : 1U << 30)) != 0;
}

// ---- slots ----

std::size_t CommandProcessor::selected_slot() const {
  const std::uint32_t value = registers_.latched(reg::kGrbmGfxCntl);
  const std::size_t pipe = value & 3;
  const std::size_t me = value >> 2 & 3;
  const std::size_t queue = value >> 8 & 7;
  return (me * kPipes + pipe) * kSlotsPerPipe + queue;
}

unsigned CommandProcessor::ring_id_of(std::size_t slot) {
  const std::size_t queue = slot % kSlotsPerPipe;
  const std::size_t pipe = slot / kSlotsPerPipe % kPipes;
  const std::size_t me = slot / kSlotsPerPipe / kPipes;
  return static_cast<unsigned>(me << 2 | pipe | queue << 4);
}

std::uint32_t CommandProcessor::read_slot(std::size_t index) {
  const std::size_t slot = selected_slot();
  Slot& registers = slots_[slot];
  for (const auto& mapped : mapped_) {
    if (mapped->slot != slot) continue;
    registers[mqd::compute::kPqRptr] = static_cast<std::uint32_t>(mapped->queue->read_pointer());
    registers[mqd::compute::kPqWptr] = static_cast<std::uint32_t>(mapped->queue->write_pointer());
    registers[mqd::compute::kPqWptr + 1] = static_cast<std::uint32_t>(mapped->queue->write_pointer() >> 32);
  }
  return registers[index];
}

void CommandProcessor::write_slot(std::size_t index, std::uint32_t value) {
  const std::size_t slot = selected_slot();
  Slot& registers = slots_[slot];
  const auto of_slot = [slot](const Mapped& mapped) { return mapped.slot == slot; };
  if (index == mqd::compute::kActive) {
    const bool was = (registers[index] & 1) != 0;
    registers[index] = value;
    if ((value & 1) != 0 && !was) start_slot(slot, KernelRing::Kind::kKiq, 0);
    if ((value & 1) == 0) (void)unmap(of_slot);
    return;
  }
  if (index == mqd::compute::kDequeueRequest && value != 0) {
    (void)unmap(of_slot);
    registers[mqd::compute::kActive] = 0;
    return;  // the request is over
  }
  registers[index] = value;
}

void CommandProcessor::start_slot(std::size_t slot, KernelRing::Kind kind, std::uint64_t mqd) {
  const Slot& registers = slots_[slot];
  KernelRing ring;
  ring.kind = kind;
  ring.base = join(registers[mqd::compute::kPqBase], registers[mqd::compute::kPqBase + 1]) << 8;
  ring.bytes = mqd::ring_bytes(registers[mqd::compute::kPqControl]);
  ring.read_pointer =
      mqd::whole_read_pointer(registers[mqd::compute::kPqRptr],
                              join(registers[mqd::compute::kPqWptr], registers[mqd::compute::kPqWptr + 1]));
  ring.read_pointer_report =
      join(registers[mqd::compute::kPqRptrReport], registers[mqd::compute::kPqRptrReport + 1] & 0xffff) &
      ~3ULL;
  if ((registers[mqd::compute::kPqControl] & kNoReadPointer) != 0) ring.read_pointer_report = 0;
  ring.ring_id = ring_id_of(slot);

  auto mapped = std::make_unique<Mapped>();
  mapped->doorbell = doorbell_bytes(registers[mqd::compute::kPqDoorbell]);
  if (mqd != 0) mapped->mqds = {mqd};
  mapped->slot = slot;
  mapped->ring_id = ring.ring_id;
  std::string name;
  switch (kind) {
    case KernelRing::Kind::kKiq:
      name = "kiq";
      kiq_ring_id_ = ring.ring_id;
      break;
    case KernelRing::Kind::kHiq:
      name = "hiq";
      break;
    case KernelRing::Kind::kCompute:
      name = "compute " + std::to_string(ring.ring_id >> 2 & 3) + "." + std::to_string(ring.ring_id & 3) +
             "." + std::to_string(ring.ring_id >> 4);
      break;
  }
  trace(name + " starts: ring " + hex(ring.base) + " of " + hex(ring.bytes) + ", doorbell " +
        hex(mapped->doorbell));
  Scheduler* scheduler = kind == KernelRing::Kind::kCompute ? nullptr : this;
  if (kind == KernelRing::Kind::kHiq && chip_.partition().xcc != 0) scheduler = &follower_;
  mapped->queue = std::make_unique<Pm4Ring>(chip_, scheduler, std::move(name), ring);
  ++chip_.counters().queues_mapped;
  mapped_.push_back(std::move(mapped));
}

// ---- running ----

CommandProcessor::Mapped* CommandProcessor::find(std::uint32_t doorbell) {
  for (const auto& mapped : mapped_) {
    if (mapped->doorbell == doorbell) return mapped.get();
  }
  return nullptr;
}

bool CommandProcessor::doorbell(std::uint64_t offset, std::uint64_t value) {
  Mapped* mapped = offset <= 0x0ffffffc ? find(static_cast<std::uint32_t>(offset)) : nullptr;
  if (mapped == nullptr) return false;
  mapped->queue->ring(value);
  return true;
}

Queue::State CommandProcessor::work() {
  unmapped_.clear();
  Queue::State state = Queue::State::kIdle;
  // A step may map and unmap queues, even the one that steps. Those that are new come next time.
  std::vector<Mapped*> turn;
  turn.reserve(mapped_.size());
  for (const auto& mapped : mapped_) turn.push_back(mapped.get());
  const auto is_mapped = [this](const Mapped* each) {
    return std::any_of(mapped_.begin(), mapped_.end(),
                       [each](const auto& mapped) { return mapped.get() == each; });
  };
  for (Mapped* each : turn) {
    if (is_mapped(each) && !halted(*each)) state = busier(state, each->queue->step());
  }
  const bool is_new = std::any_of(mapped_.begin(), mapped_.end(), [&turn](const auto& mapped) {
    return std::find(turn.begin(), turn.end(), mapped.get()) == turn.end();
  });
  return is_new ? Queue::State::kReady : state;
}

std::size_t CommandProcessor::user_queues() const {
  return static_cast<std::size_t>(
      std::count_if(mapped_.begin(), mapped_.end(), [](const auto& mapped) { return mapped->user; }));
}

const Queue* CommandProcessor::queue_at(std::uint32_t doorbell) const {
  for (const auto& mapped : mapped_) {
    if (mapped->doorbell == doorbell) return mapped->queue.get();
  }
  return nullptr;
}

// ---- packets of the scheduler ----

OrFault<bool> CommandProcessor::packet(std::uint32_t op, std::span<const std::uint32_t> body, Ib& ib) {
  switch (op) {
    case scheduler::kInvalidateTlbs:  // there is no TLB
      return body.size() == 1;
    case scheduler::kSetResources:
      if (body.size() != 7) return false;
      if (body[0] >> 29 == 1) {  // of the HIQ
        vmid_mask_ = body[0] & 0xffff;
        queue_mask_ = join(body[1], body[2]);
      }
      return true;
    case scheduler::kMapProcess:
      return map_process(body);
    case scheduler::kMapQueues:
      return map_queues(body);
    case scheduler::kUnmapQueues:
      return unmap_queues(body);
    case scheduler::kQueryStatus:
      return query_status(body);
    case scheduler::kRunList:
      return run_list(body, ib);
    default:
      return false;
  }
}

OrFault<bool> CommandProcessor::map_process(std::span<const std::uint32_t> body) {
  // Of gfx9 and of Aldebaran, which has five dwords more for the debugger.
  if (body.size() != 15 && body.size() != 20) return false;
  process_.pasid = body[0] & 0xffff;
  process_.root = join(body[1], body[2]);
  process_.vmid = vmid_for(process_.pasid);
  process_.sh_mem_bases = body[3];
  process_.tba = (join(body[5], body[6]) << 8) & kAddressMask;
  process_.tma = (join(body[7], body[8]) << 8) & kAddressMask;
  trace("map process: pasid " + hex(process_.pasid) + " vmid " + std::to_string(process_.vmid) + " root " +
        hex(process_.root));
  return true;
}

OrFault<bool> CommandProcessor::map_queues(std::span<const std::uint32_t> body) {
  if (body.size() != 6) return false;
  const std::uint32_t select = body[0] >> 4 & 3;
  if (select == 0) return map_kernel_queue(body);
  if (select == 1) return map_user_queue(body);
  return false;
}

OrFault<bool> CommandProcessor::map_kernel_queue(std::span<const std::uint32_t> body) {
  const std::uint32_t engine = body[0] >> 26 & 7;
  if (engine > 1) return false;  // 0 compute, 1 HIQ; there is no graphics engine
  const std::size_t queue = body[0] >> 13 & 7;
  const std::size_t pipe = body[0] >> 16 & 3;
  const std::size_t me = (body[0] >> 18 & 1) + 1;
  const std::size_t slot = (me * kPipes + pipe) * kSlotsPerPipe + queue;
  const std::uint64_t mqd = join(body[2], body[3]);
  std::array<std::uint32_t, mqd::compute::kDwords> words{};
  SLUICE_TRY(chip_.space(Hub::kGc, 0).read(mqd, std::as_writable_bytes(std::span(words))));
  SLUICE_TRY(unmap([slot](const Mapped& mapped) { return mapped.slot == slot; }));
  std::copy_n(words.begin() + mqd::compute::kSlot, mqd::compute::kSlotDwords, slots_[slot].begin());
  slots_[slot][mqd::compute::kActive] = 1;
  slots_[slot][mqd::compute::kPqDoorbell] = (body[1] & 0x0ffffffc) | kDoorbellOn;
  start_slot(slot, engine == 1 ? KernelRing::Kind::kHiq : KernelRing::Kind::kCompute, mqd);
  return true;
}

void CommandProcessor::read_sdma(std::span<const std::uint32_t> words, UserRing& ring) {
  ring.base = join(words[mqd::sdma::kRbBase], words[mqd::sdma::kRbBase + 1]) << 8;
  ring.bytes = std::uint64_t{4} << (words[mqd::sdma::kRbCntl] >> 1 & 0x1f);
  ring.read_pointer = join(words[mqd::sdma::kRbRptr], words[mqd::sdma::kRbRptr + 1]);
  ring.write_pointer = join(words[mqd::sdma::kRbWptr], words[mqd::sdma::kRbWptr + 1]);
  ring.read_pointer_report = join(words[mqd::sdma::kRbRptrAddrLo], words[mqd::sdma::kRbRptrAddrHi]);
  ring.ring_id = 2;
}

OrFault<void> CommandProcessor::read_compute(std::uint64_t mqd, std::span<const std::uint32_t> words,
                                             UserRing& ring) const {
  const auto slot = words.subspan(mqd::compute::kSlot, mqd::compute::kSlotDwords);
  ring.kind = (slot[mqd::compute::kAqlControl] & 1) != 0 ? UserRing::Kind::kAql : UserRing::Kind::kPm4;
  ring.base = join(slot[mqd::compute::kPqBase], slot[mqd::compute::kPqBase + 1]) << 8;
  ring.bytes = mqd::ring_bytes(slot[mqd::compute::kPqControl]);
  ring.write_pointer = join(slot[mqd::compute::kPqWptr], slot[mqd::compute::kPqWptr + 1]);
  ring.read_pointer = mqd::whole_read_pointer(slot[mqd::compute::kPqRptr], ring.write_pointer);
  ring.read_pointer_report = join(slot[mqd::compute::kPqRptrReport], slot[mqd::compute::kPqRptrReport + 1]);
  ring.ring_id = free_ring_id();
  ring.tba = process_.tba;
  ring.tma = process_.tma;
  ring.sh_mem_bases = process_.sh_mem_bases;
  const std::uint32_t stride = words[mqd::compute::kStride];
  const unsigned xccs = stride == 0 ? 1 : chip_.partition().xccs;
  for (unsigned xcc = 0; xcc < xccs; ++xcc) {
    UserRing::Save& save = ring.saves.emplace_back();
    save.mqd = mqd + std::uint64_t{xcc} * stride;
    std::array<std::uint32_t, mqd::compute::kSlotDwords> own{};
    SLUICE_TRY(chip_.space(Hub::kGc, 0)
                   .read(save.mqd + mqd::compute::kSlot * 4, std::as_writable_bytes(std::span(own))));
    save.area = join(own[mqd::compute::kSaveBase], own[mqd::compute::kSaveBase + 1]);
    save.area_bytes = own[mqd::compute::kSaveSize];
    save.stack_bytes = own[mqd::compute::kStackSize];
    save.stack_offset = own[mqd::compute::kStackOffset];
  }
  return {};
}

OrFault<bool> CommandProcessor::map_user_queue(std::span<const std::uint32_t> body) {
  if (process_.vmid == 0) return false;  // no MAP_PROCESS before it
  const std::uint32_t engine = body[0] >> 26 & 7;
  const std::uint32_t extended = body[0] >> 2 & 3;
  UserRing ring;
  // 0 compute, 2 and 3 the first two SDMA engines; extended: any SDMA engine by its number, in groups of
  // eight.
  const bool sdma = extended != 0 || engine != 0;
  if (extended > 2 || (extended == 0 && engine != 0 && engine != 2 && engine != 3)) return false;
  if (sdma) {
    ring.kind = UserRing::Kind::kSdma;
    ring.engine = chip_.partition().first_sdma + (extended != 0 ? 8 * (extended - 1) + engine : engine - 2);
    if (ring.engine >= chip_.model().sdma.size()) return false;
  }

  const std::uint64_t mqd = join(body[2], body[3]);
  std::array<std::uint32_t, mqd::compute::kDwords> words{};
  const std::size_t dwords = sdma ? mqd::sdma::kDwords : mqd::compute::kDwords;
  SLUICE_TRY(chip_.space(Hub::kGc, 0).read(mqd, std::as_writable_bytes(std::span(words).first(dwords))));

  auto mapped = std::make_unique<Mapped>();
  mapped->doorbell = doorbell_bytes(body[1]);
  mapped->sdma = sdma;
  mapped->user = true;
  mapped->is_static = (body[0] >> 21 & 7) >= 2;
  mapped->pasid = process_.pasid;
  ring.doorbell = mapped->doorbell;
  ring.write_pointer_address = join(body[4], body[5]);
  if (sdma) {
    read_sdma(words, ring);
    mapped->mqds = {mqd};
  } else {
    SLUICE_TRY(read_compute(mqd, words, ring));
    for (const UserRing::Save& save : ring.saves) mapped->mqds.push_back(save.mqd);
  }
  mapped->ring_id = ring.ring_id;
  return start_user_queue(std::move(mapped), ring);
}

OrFault<bool> CommandProcessor::start_user_queue(std::unique_ptr<Mapped> mapped, const UserRing& ring) {
  const AddressSpace space = AddressSpace::of_process(memory_, mapped->sdma ? Hub::kMm : Hub::kGc,
                                                      process_.vmid, process_.pasid, process_.root);
  const std::uint32_t doorbell = mapped->doorbell;
  SLUICE_TRY(unmap([doorbell](const Mapped& other) { return other.user && other.doorbell == doorbell; }));
  mapped->queue = make_user_queue(chip_, space, ring);
  if (mapped->queue == nullptr) return false;
  std::string mqds;
  for (const std::uint64_t mqd : mapped->mqds) mqds += ", MQD " + hex(mqd);
  trace("map " + mapped->queue->name() + ": ring " + hex(ring.base) + " of " + hex(ring.bytes) +
        ", read pointer " + hex(mapped->queue->read_pointer()) + ", write pointer " +
        hex(mapped->queue->write_pointer()) + ", doorbell " + hex(doorbell) + mqds);
  ++chip_.counters().queues_mapped;
  mapped_.push_back(std::move(mapped));
  return true;
}

OrFault<bool> CommandProcessor::unmap_queues(std::span<const std::uint32_t> body) {
  if (body.size() != 5) return false;
  const std::uint32_t action = body[0] & 3;
  const std::uint32_t select = body[0] >> 4 & 3;
  if (action == 3) return true;  // preempt without unmapping: the queue goes on when it is its turn
  trace("unmap queues: select " + std::to_string(select) + " action " + std::to_string(action));
  switch (select) {
    case 0: {
      const std::uint32_t count = body[0] >> 29;
      if (count < 1 || count > 4) return false;
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t doorbell = doorbell_bytes(body[1 + i]);
        SLUICE_TRY(unmap([doorbell](const Mapped& mapped) { return mapped.doorbell == doorbell; }));
      }
      return true;
    }
    case 1: {
      const std::uint32_t pasid = body[1] & 0xffff;
      SLUICE_TRY(unmap([pasid](const Mapped& mapped) { return mapped.user && mapped.pasid == pasid; }));
      return true;
    }
    case 2:
      SLUICE_TRY(unmap([](const Mapped& mapped) { return mapped.user; }));
      return true;
    default:
      SLUICE_TRY(unmap([](const Mapped& mapped) { return mapped.user && !mapped.is_static; }));
      return true;
  }
}

OrFault<bool> CommandProcessor::query_status(std::span<const std::uint32_t> body) {
  if (body.size() != 6) return false;
  const std::uint64_t address = join(body[2], body[3]);
  const std::uint64_t data = join(body[4], body[5]);
  const std::uint32_t command = body[0] >> 30;
  if (command != 0) SLUICE_TRY(chip_.space(Hub::kGc, 0).store64(address, data));
  trace("query status: " + hex(data) + " to " + hex(address));
  return true;
}

OrFault<bool> CommandProcessor::run_list(std::span<const std::uint32_t> body, Ib& ib) {
  if (body.size() != 3) return false;
  // The end of a runlist that does not fit the hardware: it begins again, to share slots by time. Here all
  // run.
  if ((body[2] >> 20 & 1) != 0) return true;
  ++chip_.counters().runlists;
  SLUICE_TRY(unmap([](const Mapped& mapped) { return mapped.user; }));
  vmid_pasid_ = {};
  process_ = {};
  ib.address = join(body[0] & ~3U, body[1]);
  ib.dwords = body[2] & 0xfffff;
  trace("run list: " + hex(ib.address) + ", " + std::to_string(ib.dwords) + " dwords");
  return true;
}

// ---- unmapping ----

template <class Which>
OrFault<void> CommandProcessor::unmap(Which which) {
  OrFault<void> result;
  for (std::size_t i = 0; i < mapped_.size();) {
    if (!which(*mapped_[i])) {
      ++i;
      continue;
    }
    Mapped& mapped = *unmapped_.emplace_back(std::move(mapped_[i]));
    mapped_.erase(mapped_.begin() + static_cast<std::ptrdiff_t>(i));
    if (mapped.slot != kNoSlot) slots_[mapped.slot][mqd::compute::kActive] = 0;
    ++chip_.counters().queues_unmapped;
    if (auto saved = save(mapped); !saved) result = saved;
  }
  return result;
}

OrFault<void> CommandProcessor::save(const Mapped& mapped) {
  const std::uint64_t read = mapped.queue->read_pointer();
  const std::uint64_t write = mapped.queue->write_pointer();
  trace("unmap " + mapped.queue->name() + ": read pointer " + hex(read) + ", write pointer " + hex(write));
  for (const std::uint64_t mqd : mapped.mqds) SLUICE_TRY(save_pointers(mapped, mqd, read, write));
  if (!mapped.user || mapped.sdma || mapped.queue->save()) return {};
  return feign_waves(chip_.space(Hub::kGc, 0), mapped.mqds.at(0) + mqd::compute::kSlot * 4);
}

OrFault<void> CommandProcessor::save_pointers(const Mapped& mapped, std::uint64_t mqd, std::uint64_t read,
                                              std::uint64_t write) const {
  const AddressSpace space = chip_.space(Hub::kGc, 0);
  if (mapped.sdma) {
    for (const auto& [at, value] :
         {std::pair{mqd::sdma::kRbRptr, read}, std::pair{mqd::sdma::kRbWptr, write}}) {
      SLUICE_TRY(space.store32(mqd + at * 4, static_cast<std::uint32_t>(value)));
      SLUICE_TRY(space.store32(mqd + at * 4 + 4, static_cast<std::uint32_t>(value >> 32)));
    }
    return {};
  }
  const std::uint64_t slot = mqd + mqd::compute::kSlot * 4;
  SLUICE_TRY(space.store32(slot + mqd::compute::kPqRptr * 4, static_cast<std::uint32_t>(read)));
  SLUICE_TRY(space.store32(slot + mqd::compute::kPqWptr * 4, static_cast<std::uint32_t>(write)));
  return space.store32(slot + mqd::compute::kPqWptr * 4 + 4, static_cast<std::uint32_t>(write >> 32));
}

// Feigned: Faults::stops_with_waves. `slot`: of the MQD's part that is a slot's registers.
OrFault<void> CommandProcessor::feign_waves(const AddressSpace& space, std::uint64_t slot) {
  constexpr std::uint32_t kStackBytes = 64, kStateBytes = 4096;
  SLUICE_TRY_ASSIGN(const std::uint32_t size, space.load32(slot + mqd::compute::kStackSize * 4));
  if (size < kStackBytes) return {};
  std::uint64_t& stops = chip_.faults().stops_with_waves;
  const bool waves = stops != 0;
  if (waves) --stops;
  SLUICE_TRY(space.store32(slot + mqd::compute::kStackOffset * 4, size - (waves ? kStackBytes : 0)));
  return space.store32(slot + mqd::compute::kWaveStateOffset * 4, size + (waves ? kStateBytes : 0));
}

unsigned CommandProcessor::vmid_for(std::uint32_t pasid) {
  const std::uint32_t mask = vmid_mask_ != 0 ? vmid_mask_ : 0xffffU << kFirstKfdVmid & 0xffff;
  unsigned last = kFirstKfdVmid;
  for (unsigned vmid = 1; vmid < kVmids; ++vmid) {
    if ((mask >> vmid & 1) == 0) continue;
    last = vmid;
    if (vmid_pasid_[vmid] != 0 && vmid_pasid_[vmid] != pasid) continue;
    vmid_pasid_[vmid] = pasid;
    return vmid;
  }
  return last;  // more processes than vmids: real hardware would let them take turns
}

unsigned CommandProcessor::free_ring_id() const {
  unsigned first = 1U << 2;
  bool found_first = false;
  for (unsigned bit = 0; bit < 64; ++bit) {
    if ((queue_mask_ >> bit & 1) == 0) continue;
    const unsigned queue = bit % kQueuesPerPipe;
    const unsigned pipe = bit / kQueuesPerPipe % kPipesPerMec;
    const unsigned me = bit / kQueuesPerPipe / kPipesPerMec + 1;
    const unsigned ring_id = me << 2 | pipe | queue << 4;
    if (!std::exchange(found_first, true)) first = ring_id;
    const bool taken = std::any_of(mapped_.begin(), mapped_.end(), [ring_id](const auto& mapped) {
      return !mapped->sdma && mapped->ring_id == ring_id;
    });
    if (!taken) return ring_id;
  }
  return first;  // more queues than slots
}

void CommandProcessor::trace(const std::string& line) {
  if (chip_.tracing()) chip_.trace(line);
}

}  // namespace sluice::card
