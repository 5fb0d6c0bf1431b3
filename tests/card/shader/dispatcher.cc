// SPDX-License-Identifier: MIT
#include "shader/dispatcher.h"

#include <algorithm>
#include <array>

#include "cp/mqd.h"

namespace sluice::card::shader {

namespace {

constexpr U64 kPage = 4096;
// The control stack begins a page behind the MQD (kfd_mqd_manager_v9.c, get_wave_state).
constexpr U64 kStackBehindMqd = kPage;
// EXEC's answer to MSG_SAVEWAVE: this wave saves LDS, too.
constexpr U64 kFirstOfGroup = U64{1} << 58;
constexpr U32 kHardwareRegisterBytes = 128;
constexpr U32 kStackMark = 0x57617665;  // "Wave"
// Instructions that waves may need to leave a trap handler, each. The drivers' need some hundreds.
constexpr U64 kTrapInstructions = 100'000;
// And those of a whole group to save itself.
constexpr U64 kSaveInstructions = 1'000'000;

constexpr U32 round_up(U32 bytes, U32 to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

// ---- memory ----

std::span<std::byte> ProcessMemory::at(U64 address, std::size_t length, Access access) {
  const U64 key = address / kPage * 2 + (access == Access::kWrite ? 1 : 0);
  const std::size_t in_page = address % kPage;
  auto found = pages_.find(key);
  if (found == pages_.end()) {
    const auto page = space_.at(address - in_page, kPage, access);
    if (!page) {
      fault_ = page.error();
      fault_->address = address;
      return {};
    }
    found = pages_.emplace(key, *page).first;
  }
  const auto page = found->second;
  if (in_page >= page.size()) return {};
  return page.subspan(in_page, std::min(length, page.size() - in_page));
}

std::optional<Fault> ProcessMemory::take_fault() {
  std::optional<Fault> fault = fault_;
  fault_.reset();
  return fault;
}

// ---- dispatching ----

Dispatcher::Dispatcher(ProcessMemory& process, const AddressSpace& firmware, const Surroundings& surroundings,
                       const ContextSave& save, std::function<void(const std::string&)> log, Deal deal)
    : process_(process),
      firmware_(firmware),
      surroundings_(surroundings),
      save_(save),
      deal_(deal),
      log_(std::move(log)),
      machine_(process, surroundings),
      next_group_(deal.first) {}

Dispatcher::Step Dispatcher::stop(const std::string& why) {
  why_ = why;
  log_("a wave stopped: " + why);
  return Step::kStopped;
}

Dispatcher::Step Dispatcher::step(const DispatchPacket& packet, const DispatchPlace& place, U64 budget) {
  if (packet.grid_x == 0 || packet.grid_y == 0 || packet.grid_z == 0) return Step::kDone;  // no work-item
  process_.forget_translations();
  const auto dispatch = Dispatch::read(process_, packet, place);
  if (!dispatch) return stop("the dispatch or its kernel descriptor makes no sense");
  if (!asked_for_saved_ && !resume())
    return stop("the saved waves do not come back: the control stack has none");
  asked_for_saved_ = true;
  while (group_ || next_group_ < dispatch->groups()) {
    if (!group_) {
      group_ = dispatch->group(next_group_, static_cast<unsigned>(deal_.first) * kMostWaves);
      next_group_ += deal_.step;
    }
    switch (machine_.run(*group_, budget)) {
      case Machine::Result::kDone:
        group_.reset();
        break;
      case Machine::Result::kMore:
        return Step::kMore;
      case Machine::Result::kHalted:
        return Step::kWaits;
      case Machine::Result::kStopped:
        return stop(machine_.why());
    }
  }
  return Step::kDone;
}

// ---- unmapping ----

// Hardware does not interrupt a wave in a trap handler: it leaves that first. Waves that come back wait for
// each other in the handler.
bool Dispatcher::leave_traps() {
  for (U64 i = 0; i < kTrapInstructions * group_->waves.size();) {
    bool in_handler = false, went_on = false, all_wait = true;
    for (const auto& wave : group_->waves) {
      if (wave->ended) continue;
      in_handler |= wave->privileged();
      all_wait &= wave->at_barrier;
      if (!wave->privileged() || wave->at_barrier) continue;
      if (!machine_.step(*group_, *wave)) return false;
      ++i;
      went_on = true;
    }
    if (!in_handler) return true;
    if (went_on) continue;
    if (!all_wait) return false;
    for (const auto& wave : group_->waves) wave->at_barrier = false;
  }
  return false;
}

// Every wave goes to the handler with its place in the area.
void Dispatcher::enter_handler() {
  saved_.clear();
  state_end_ = save_.stack_bytes;
  std::erase_if(group_->waves, [](const auto& wave) { return wave->ended; });
  for (const auto& wave : group_->waves) {
    const bool first = saved_.empty();
    wave->first_of_group = first;
    saved_.push_back(
        {state_end_, wave->sgprs, wave->vgprs, wave->arch_vgprs, first ? 1U : 0U, wave->status, {}});
    if (wave->at_barrier) wave->pc -= 4;  // it comes to the barrier again
    wave->at_barrier = false;
    wave->trapsts |= trapsts::kSaveContext;
    wave->save_address = (save_.area + state_end_) | (first ? kFirstOfGroup : 0);
    machine_.enter_trap(*wave, 0, wave->pc);
    const auto lds = static_cast<U32>(group_->lds.size());
    state_end_ += wave->vgprs * kLanes * 4 + wave->sgprs * 4 + kHardwareRegisterBytes + (first ? lds : 0);
    state_end_ = round_up(state_end_, 256);
  }
}

bool Dispatcher::write_stack() {
  StackTop top;
  top.mark = kStackMark;
  top.waves = static_cast<U32>(saved_.size());
  top.lds_bytes = group_ ? static_cast<U32>(group_->lds.size()) : 0;
  top.next_group = next_group_;
  U32 offset = save_.stack_bytes;
  // Linux 7.2 makes the MQD of a restored queue without room for a stack. Firmware does not know that: what
  // it writes there is lost, as by the dummy page, and the MQD says that there are waves.
  bool there = true;
  const auto push = [&](const auto& entry) {
    if (offset < sizeof entry) return false;
    offset -= static_cast<U32>(sizeof entry);
    there &= firmware_.write(save_.mqd + kStackBehindMqd + offset, std::as_bytes(std::span(&entry, 1))).ok();
    return true;
  };
  for (const SavedWave& wave : saved_) {
    if (!push(wave)) return false;
  }
  if (!push(top)) return false;
  if (!there) log_("waves are lost: there is no memory behind the MQD for their control stack");
  const U64 slot = save_.mqd + mqd::compute::kSlot * 4;
  return firmware_.store32(slot + mqd::compute::kStackOffset * 4, offset).ok() &&
         firmware_.store32(slot + mqd::compute::kWaveStateOffset * 4, state_end_).ok();
}

bool Dispatcher::save() {
  // What an earlier mapping left was not looked at: it stays.
  if (!asked_for_saved_ && save_.stack_offset < save_.stack_bytes) return true;
  if (!group_ && next_group_ == deal_.first) return false;
  process_.forget_translations();
  saved_.clear();
  state_end_ = save_.stack_bytes;
  const U64 before = machine_.executed();
  if (group_) {
    if (surroundings_.tba == 0 || save_.stack_bytes == 0) {
      log_("waves are lost: the process has no trap handler, or the queue no context save area");
      return false;
    }
    if (!leave_traps()) {
      log_("waves are lost: one does not leave its trap handler");
      return false;
    }
    enter_handler();
    U64 budget = kSaveInstructions;
    const auto result = machine_.run(*group_, budget);
    const bool all =
        std::all_of(group_->waves.begin(), group_->waves.end(), [](const auto& w) { return w->saved; });
    if (result != Machine::Result::kDone || !all) {
      log_("waves are lost: the trap handler did not save them: " + machine_.why());
      return false;
    }
  }
  if (!write_stack()) {
    log_("waves are lost: the control stack has no room for them, or the MQD is gone");
    return false;
  }
  log_(std::to_string(saved_.size()) + " waves saved by the driver's handler in " +
       std::to_string(machine_.executed() - before) + " instructions, " +
       std::to_string(state_end_ - save_.stack_bytes) + " bytes");
  waves_saved_ += saved_.size();
  group_.reset();
  finish();
  return true;
}

// ---- mapping ----

bool Dispatcher::make_waves(const StackTop& top) {
  Group group;
  group.lds.resize(std::min<U32>(top.lds_bytes, 64 * 1024));
  U32 offset = save_.stack_bytes;
  for (U32 i = 0; i < top.waves; ++i) {
    SavedWave saved;
    if (offset < sizeof saved) return false;
    offset -= static_cast<U32>(sizeof saved);
    if (!firmware_.read(save_.mqd + kStackBehindMqd + offset, std::as_writable_bytes(std::span(&saved, 1)))) {
      return false;
    }
    auto wave = std::make_unique<Wave>();
    wave->sgprs = std::clamp(saved.sgprs, 16U, 112U);
    wave->vgprs = std::clamp(saved.vgprs, 8U, 2 * kVectorRegisters);
    wave->arch_vgprs = std::clamp(saved.arch_vgprs, 4U, kVectorRegisters);
    wave->first_of_group = saved.first_of_group != 0;
    wave->status = saved.status | status::kPrivileged;
    wave->pc = surroundings_.tba + 4;  // the handler's entry for this
    wave->exec((save_.area + saved.at) | (wave->first_of_group ? kFirstOfGroup : 0));
    group.waves.push_back(std::move(wave));
  }
  group_ = std::move(group);
  return true;
}

// What an earlier mapping of the queue left. False: the MQD says that there is something, and it is not
// there.
bool Dispatcher::resume() {
  if (save_.stack_offset >= save_.stack_bytes) return true;
  StackTop top;
  if (!firmware_.read(save_.mqd + kStackBehindMqd + save_.stack_offset,
                      std::as_writable_bytes(std::span(&top, 1))) ||
      top.mark != kStackMark || top.waves > save_.stack_bytes / sizeof(SavedWave)) {
    return false;
  }
  if (top.waves > 0 && !make_waves(top)) return false;
  waves_resumed_ += top.waves;
  next_group_ = top.next_group;
  const U64 slot = save_.mqd + mqd::compute::kSlot * 4;
  (void)firmware_.store32(slot + mqd::compute::kStackOffset * 4, save_.stack_bytes);
  (void)firmware_.store32(slot + mqd::compute::kWaveStateOffset * 4, save_.stack_bytes);
  log_(std::to_string(top.waves) + " waves come back; the next workgroup is " +
       std::to_string(top.next_group));
  return true;
}

}  // namespace sluice::card::shader
