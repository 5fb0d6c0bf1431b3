// SPDX-License-Identifier: MIT
// Queues of processes: AQL and PM4 on the command processor, SDMA on its engines. Nothing that they hold
// reaches registers, and whatever is wrong with them stops that queue only.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "models/model.h"
#include "queues/packet_queue.h"
#include "sdma/sdma.h"
#include "shader/dispatcher.h"

namespace sluice::card {

namespace {

// Interrupt of the command processor: soc15_ih_clientid.h, irqsrcs_gfx_9_0.h.
constexpr unsigned kClientCp = 0x14;
constexpr unsigned kSourceEndOfPipe = 181;
// Of a wave's message: to the driver it comes from a shader engine, and its data is in three parts
// (KFD_CONTEXT_ID_GET_SQ_INT_DATA, SQ_INTERRUPT_WORD_ENCODING of soc15_int.h and kfd_int_process_v9.c).
constexpr unsigned kClientShaderEngine = 0x0a;
constexpr unsigned kSourceWaveMessage = 239;
constexpr std::uint32_t kEncodingInstruction = 1U << 26;

constexpr std::uint64_t kAqlDwords = 16;

class UserQueue : public PacketQueue {
 public:
  std::uint64_t read_pointer() const override { return ring_.read; }
  std::uint64_t write_pointer() const override { return ring_.write; }

 protected:
  UserQueue(Chip& chip, const AddressSpace& space, const UserRing& ring, const char* kind)
      : PacketQueue(chip, space, "user " + std::to_string(space.pasid()) + " " + kind), user_(ring) {
    ring_.ring = ring.base;
    ring_.ring_bytes = ring.bytes;
    // An IB of a process is in the process' own memory, whatever vmid its packet names.
    owner_.space = [](void* self, std::uint32_t) {
      return static_cast<UserQueue*>(static_cast<PacketQueue*>(self))->memory_of(0);
    };
  }

  // The write pointer in the process' memory, or nothing where that page is not mapped (yet).
  std::optional<std::uint64_t> written() const {
    if (user_.write_pointer_address == 0) return std::nullopt;
    const auto value = space_.space().load64(user_.write_pointer_address);
    if (!value) return std::nullopt;
    return *value;
  }
  bool report(std::uint64_t value, unsigned bytes) {
    return user_.read_pointer_report == 0 || store(user_.read_pointer_report, value, bytes);
  }
  void executed() override { ++chip_.counters().user_packets; }
  void raise(unsigned client, unsigned source, bool mm_hub, std::uint32_t context,
             std::uint32_t context1 = 0) {
    InterruptEntry entry;
    entry.client = client;
    entry.source = source;
    entry.ring_id = user_.ring_id;
    entry.vmid = space_.space().vmid();
    entry.pasid = space_.space().pasid();
    entry.mm_hub = mm_hub;
    entry.data[0] = context;
    entry.data[1] = context1;
    chip_.interrupt(entry);
  }

  const UserRing user_;
};

class AqlQueue final : public UserQueue {
 public:
  AqlQueue(Chip& chip, const AddressSpace& space, const UserRing& ring)
      : UserQueue(chip, space, ring, "aql"),
        process_(
            space, [&chip] { return chip.clock(); }, [this](std::uint32_t data) { message(data); }),
        xccs_(ring.saves.size()) {
    for (std::size_t xcc = 0; xcc < xccs_.size(); ++xcc) {
      const UserRing::Save& save = ring.saves[xcc];
      const std::string prefix = xcc == 0 ? "" : "xcc" + std::to_string(xcc) + " ";
      xccs_[xcc].dispatcher = std::make_unique<shader::Dispatcher>(
          process_, chip.space(Hub::kGc, 0), surroundings_of(chip, ring),
          shader::ContextSave{save.mqd, save.area, save.area_bytes, save.stack_bytes, save.stack_offset},
          [this, prefix](const std::string& line) { trace(prefix + line); }, shader::Deal{xcc, xccs_.size()});
    }
    owner_.dispatch = [](void* self, pkt_queue* q, const void* packet, std::uint64_t at) {
      return static_cast<AqlQueue*>(static_cast<PacketQueue*>(self))->dispatch(*q, packet, at);
    };
    ring_.read = ring_.write = ring.read_pointer / kAqlDwords;
    const auto write = written();
    if (!write) return;
    // The MQD has 32 bits of the read pointer, in dwords; what is above them is that of the write pointer.
    const auto ahead =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(*write * kAqlDwords - ring.read_pointer));
    if (ahead < 0) return;  // memory that was not restored yet: the doorbell will tell
    ring_.write = *write;
    ring_.read = *write - static_cast<std::uint32_t>(ahead) / kAqlDwords;
  }
  // The doorbell names the last packet.
  void ring(std::uint64_t value) override {
    if (static_cast<std::int64_t>(value + 1 - ring_.write) > 0) ring_.write = value + 1;
  }
  std::uint64_t read_pointer() const override { return ring_.read * kAqlDwords; }
  std::uint64_t write_pointer() const override { return ring_.write * kAqlDwords; }
  bool save() override {
    bool saved = false;
    for (OnXcc& xcc : xccs_) {
      saved |= xcc.dispatcher->save();
      chip_.counters().waves_saved += xcc.dispatcher->waves_saved() - xcc.counted_saved;
      xcc.counted_saved = xcc.dispatcher->waves_saved();
    }
    return saved;
  }

 private:
  static shader::Surroundings surroundings_of(const Chip& chip, const UserRing& ring) {
    return {ring.tba,
            ring.tma,
            std::uint64_t{ring.sh_mem_bases >> 16} << 48,
            std::uint64_t{ring.sh_mem_bases & 0xffff} << 48,
            ring.doorbell / 4 & 0x3ff,
            chip.model().presets_scratch};
  }
  // A dispatch's part on one XCC.
  struct OnXcc {
    std::unique_ptr<shader::Dispatcher> dispatcher;
    bool done = false;
    std::uint64_t counted_saved = 0, counted_resumed = 0;
  };
  // What the runtime keeps for the queue: the read pointer is reported into its amd_queue_t.
  shader::DispatchPlace place_of(std::uint64_t at) const {
    shader::DispatchPlace place;
    place.packet = at;
    place.queue = user_.read_pointer_report - shader::amd_queue::kReadPointer;
    place.id = ring_.read;
    place.presets_scratch = chip_.model().presets_scratch;
    shader::read_queue(space_.space(), place);
    return place;
  }
  // How many instructions a step may run; 0: kernels stand.
  std::uint64_t shader_budget() {
    const auto& left = chip_.faults().shader_instructions_left;
    return left ? std::min(*left, shader::Dispatcher::kStepInstructions)
                : shader::Dispatcher::kStepInstructions;
  }
  void ran(OnXcc& xcc, std::uint64_t instructions) {
    chip_.counters().shader_instructions += instructions;
    chip_.counters().waves_resumed += xcc.dispatcher->waves_resumed() - xcc.counted_resumed;
    xcc.counted_resumed = xcc.dispatcher->waves_resumed();
    auto& left = chip_.faults().shader_instructions_left;
    if (left) *left -= std::min(*left, instructions);
  }
  // A kernel wants more scratch than its queue has: the runtime hears of it by a signal, finds more, and
  // takes the signal back (DynamicScratchHandler of amd_aql_queue.cpp; amd_hsa_signal.h).
  bool lacks_scratch(const shader::DispatchPacket& packet, const shader::DispatchPlace& place) {
    constexpr std::uint64_t kValue = 8, kMailbox = 16, kEvent = 24, kInsufficientScratch = 1;
    const std::uint64_t signal = place.inactive_signal;
    if (std::uint64_t{packet.private_bytes} * shader::kLanes <= place.scratch_wave_bytes || signal == 0)
      return false;
    const auto value = space_.space().load64(signal + kValue);
    const auto mailbox = space_.space().load64(signal + kMailbox);
    const auto event = space_.space().load64(signal + kEvent);
    if (!value || !mailbox || !event || *value != 0) return true;
    const auto id = static_cast<std::uint32_t>(*event);
    if (store(signal + kValue, kInsufficientScratch, 8) && *mailbox != 0 && store(*mailbox, id, 8))
      interrupt(id);
    return true;
  }

  pkt_result dispatch(pkt_queue& q, const void* bytes, std::uint64_t at) {
    shader::DispatchPacket packet;
    std::memcpy(&packet, bytes, sizeof packet);
    const shader::DispatchPlace place = place_of(at);
    if (lacks_scratch(packet, place)) return PKT_WAITS;
    pkt_result result = PKT_DONE;
    for (OnXcc& xcc : xccs_) {
      if (xcc.done) continue;
      const std::uint64_t budget = shader_budget();
      if (budget == 0) {
        ++chip_.counters().shader_holds;
        if (result == PKT_DONE) result = PKT_WAITS;
        break;
      }
      const std::uint64_t before = xcc.dispatcher->executed();
      const auto step = xcc.dispatcher->step(packet, place, budget);
      ran(xcc, xcc.dispatcher->executed() - before);
      switch (step) {
        case shader::Dispatcher::Step::kDone:
          xcc.done = true;
          break;
        case shader::Dispatcher::Step::kMore:
          result = PKT_MORE;
          break;
        case shader::Dispatcher::Step::kWaits:
          if (result == PKT_DONE) result = PKT_WAITS;
          break;
        case shader::Dispatcher::Step::kStopped:
          q.fault = PKT_REFUSED;
          q.fault_at = at;
          q.fault_why = xcc.dispatcher->why().c_str();
          return PKT_FAULT;
      }
    }
    if (result != PKT_DONE) return result;
    for (OnXcc& xcc : xccs_) {
      xcc.dispatcher->finish();
      xcc.done = false;
    }
    return PKT_DONE;
  }
  // s_sendmsg MSG_INTERRUPT.
  void message(std::uint32_t data) {
    raise(kClientShaderEngine, kSourceWaveMessage, false,
          (data & 0xfff) | kEncodingInstruction | (data & 0xf000) << 16, data >> 16 & 0xff);
  }
  std::optional<Fault> asked_fault() override { return process_.take_fault(); }

  pkt_result decode(const pkt_space& space, std::uint64_t&) override {
    return pkt_aql_step(&ring_, &space, &owner_);
  }
  bool write_back() override { return report(ring_.read, 8); }
  void interrupt(std::uint32_t event) override { raise(kClientCp, kSourceEndOfPipe, false, event); }

  shader::ProcessMemory process_;
  std::vector<OnXcc> xccs_;
};

class Pm4Queue final : public UserQueue {
 public:
  Pm4Queue(Chip& chip, const AddressSpace& space, const UserRing& ring)
      : UserQueue(chip, space, ring, "pm4") {
    ring_.read = ring_.write = ring.read_pointer;
    if (const auto write = written()) this->ring(*write);
  }
  // The read pointer may have been reported as a place in the ring, so only the write pointer's place counts.
  void ring(std::uint64_t value) override {
    const std::uint64_t dwords = user_.bytes / 4;
    if (dwords != 0) ring_.write = ring_.read + (value - ring_.read) % dwords;
  }

 private:
  pkt_result decode(const pkt_space& space, std::uint64_t& budget) override {
    static constexpr pkt_pm4_rules kRules{PKT_PM4_SYNC | PKT_PM4_SHADERS};
    return pkt_pm4_step(&ring_, &space, &owner_, &kRules, &budget);
  }
  bool write_back() override { return report(ring_.read % (user_.bytes / 4), 4); }
  void interrupt(std::uint32_t context) override { raise(kClientCp, kSourceEndOfPipe, false, context); }
};

class SdmaUserQueue final : public UserQueue {
 public:
  SdmaUserQueue(Chip& chip, const AddressSpace& space, const UserRing& ring)
      : UserQueue(chip, space, ring, "sdma"), pace_(chip) {
    ring_.read = ring_.write = ring.read_pointer;
    if (const auto write = written()) ring_.write = *write;
  }
  void ring(std::uint64_t value) override { ring_.write = value; }

 private:
  pkt_result decode(const pkt_space& space, std::uint64_t& budget) override {
    return pkt_sdma_step(&ring_, &space, &owner_, &kSdmaUserRules, &budget);
  }
  bool write_back() override { return report(ring_.read, 8); }
  void interrupt(std::uint32_t context) override {
    raise(chip_.model().sdma.at(user_.engine).client, kSourceSdmaTrap, true, context);
  }
  std::uint64_t budget() override { return pace_.budget(); }
  unsigned sdma_engine() const override { return user_.engine; }
  void moved_bytes(std::uint64_t bytes) override {
    chip_.counters().sdma_bytes += bytes;
    pace_.moved(bytes);
  }

  SdmaPace pace_;
};

}  // namespace

std::unique_ptr<Queue> make_user_queue(Chip& chip, const AddressSpace& space, const UserRing& ring) {
  switch (ring.kind) {
    case UserRing::Kind::kAql:
      return std::make_unique<AqlQueue>(chip, space, ring);
    case UserRing::Kind::kPm4:
      return std::make_unique<Pm4Queue>(chip, space, ring);
    case UserRing::Kind::kSdma:
      break;
  }
  return std::make_unique<SdmaUserQueue>(chip, space, ring);
}

}  // namespace sluice::card
