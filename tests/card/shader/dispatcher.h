// SPDX-License-Identifier: MIT
// Runs the kernel dispatches of one AQL queue on one XCC, and carries their waves over while the queue is not
// mapped.
//
// A dispatch runs one workgroup after another, so many instructions a step. If the queue is unmapped in the
// middle, the waves jump to the trap handler that the driver has loaded, which saves them in the process'
// context save area. What firmware keeps is kept here: the control stack behind the MQD says which waves were
// saved, and the MQD says which workgroup is next. If the queue is mapped again, by this process or a
// restored one, the waves are made anew and the same handler loads their registers.
//
// The form of the control stack is ours: the firmware's is not published. Places in the MQD: v9_structs.h
// (v9_mqd).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "memory/address_space.h"
#include "shader/launch.h"
#include "shader/machine.h"

namespace sluice::card::shader {

// Memory of a process as its waves reach it. Translations last for one step of the card, in which nothing can
// change them.
class ProcessMemory final : public Outside {
 public:
  ProcessMemory(const AddressSpace& space, std::function<U64()> clock, std::function<void(U32)> interrupt)
      : space_(space), clock_(std::move(clock)), interrupt_(std::move(interrupt)) {}

  std::span<std::byte> at(U64 address, std::size_t length, Access access) override;
  U64 clock() override { return clock_(); }
  void interrupt(U32 data) override { interrupt_(data); }

  void forget_translations() { pages_.clear(); }
  // Of the last access that failed.
  std::optional<Fault> take_fault();

 private:
  AddressSpace space_;
  std::function<U64()> clock_;
  std::function<void(U32)> interrupt_;
  std::unordered_map<U64, std::span<std::byte>> pages_;  // by page number, and whether to write
  std::optional<Fault> fault_;
};

// Where the state of waves goes while a queue is not mapped.
struct ContextSave {
  U64 mqd = 0;   // address in vmid 0
  U64 area = 0;  // in the process
  U32 area_bytes = 0;
  U32 stack_bytes = 0;   // of the control stack, behind the MQD's first page; in the area it comes first, too
  U32 stack_offset = 0;  // where the control stack's used part begins: it grows down from its end
};

// Which workgroups of a dispatch are one XCC's: the XCCs of a partition are dealt them in turn.
struct Deal {
  U64 first = 0;  // the XCC's number
  U64 step = 1;   // the number of XCCs
};

// One XCC's.
class Dispatcher {
 public:
  enum class Step : U8 { kDone, kMore, kWaits, kStopped };
  static constexpr U64 kStepInstructions = 50'000;

  // `process` and `firmware` (vmid 0) outlive this; `log` gets lines on what a reader of the card's log must
  // know.
  Dispatcher(ProcessMemory& process, const AddressSpace& firmware, const Surroundings& surroundings,
             const ContextSave& save, std::function<void(const std::string&)> log, Deal deal = {});

  // At most `budget` instructions of the dispatch. It is the same one until finish().
  Step step(const DispatchPacket& packet, const DispatchPlace& place, U64 budget = kStepInstructions);
  // The dispatch is over, on all XCCs.
  void finish() { next_group_ = deal_.first; }
  // The queue is unmapped: what runs is saved. True: the MQD says so.
  bool save();

  const std::string& why() const { return why_; }
  U64 executed() const { return machine_.executed(); }
  // Since this was made.
  U64 waves_saved() const { return waves_saved_; }
  U64 waves_resumed() const { return waves_resumed_; }

 private:
  // On the control stack: one of each saved wave, and below them what all share.
  struct SavedWave {
    U32 at = 0;  // in the area
    U32 sgprs = 0, vgprs = 0, arch_vgprs = 0;
    U32 first_of_group = 0;
    U32 status = 0;
    U32 unused[2] = {};
  };
  struct StackTop {
    U32 mark = 0;
    U32 waves = 0;
    U32 lds_bytes = 0;
    U32 unused = 0;
    U64 next_group = 0;
    U64 unused2 = 0;
  };

  bool resume();
  bool make_waves(const StackTop& top);
  void enter_handler();
  bool leave_traps();
  bool write_stack();
  Step stop(const std::string& why);

  ProcessMemory& process_;
  AddressSpace firmware_;
  Surroundings surroundings_;
  ContextSave save_;
  Deal deal_;
  std::function<void(const std::string&)> log_;
  Machine machine_;
  std::optional<Group> group_;
  U64 next_group_;
  bool asked_for_saved_ = false;
  std::vector<SavedWave> saved_;
  U32 state_end_ = 0;  // in the area, after the last saved wave
  U64 waves_saved_ = 0, waves_resumed_ = 0;
  std::string why_;
};

}  // namespace sluice::card::shader
