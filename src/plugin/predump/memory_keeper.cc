// SPDX-License-Identifier: MIT
#include "plugin/predump/memory_keeper.h"

#include <algorithm>

#include "pipeline/lane_world.h"

namespace sluice::plugin {
namespace {

constexpr std::uint64_t kPeriodNs = 20'000'000;
// A part of VRAM that processes do not get, although it is free: the KFD keeps it for page tables and bad
// pages.
constexpr std::uint64_t kPartOfTheDriver = 64;

}  // namespace

void MemoryKeeper::set_machine(const kfd::Topology& topology, dev_t kfd_device) {
  vram_.emplace(kfd_device);
  machine_ = topology;
  for (const kfd::Node& node : topology.nodes) {
    if (node.is_gpu()) minors_.push_back(node.drm_render_minor);
  }
}

MemoryKeeper::Rooms MemoryKeeper::rooms() {
  const std::uint64_t system = kfd::gtt_room(minors_).value_or(0);
  Rooms rooms;
  for (const auto& bos : all_) {
    const auto [at, is_new] = rooms.try_emplace(bos->render_minor(), MemoryUse{0, system});
    if (!is_new) continue;
    const kfd::Node* const gpu = machine_.find_render_minor(bos->render_minor());
    const auto use = gpu != nullptr ? vram_->use(*gpu) : std::nullopt;
    if (!use) continue;
    const std::uint64_t reserve = use->total_bytes / kPartOfTheDriver;
    at->second.vram = use->room() > reserve ? use->room() - reserve : 0;
  }
  return rooms;
}

// What a GPU's lanes have of its VRAM, and what all lanes have of the system's memory.
template <class Use>
MemoryUse MemoryKeeper::sum(std::uint32_t render_minor, const Use& use) const {
  MemoryUse sum;
  for (const auto& bos : all_) {
    const MemoryUse of_lane = use(*bos);
    sum += {bos->render_minor() == render_minor ? of_lane.vram : 0, of_lane.system};
  }
  return sum;
}

// Lanes that wait come first.
void MemoryKeeper::choose() {
  Rooms free = rooms();
  std::uint64_t system = free.empty() ? 0 : free.begin()->second.system;
  for (auto& [minor, room] : free) room -= sum(minor, [](const BoKeeper& bos) { return bos.being_copied(); });
  system -= std::min(system, sum(0, [](const BoKeeper& bos) { return bos.being_copied(); }).system);
  std::vector<BoKeeper*> order;
  for (const auto& bos : all_) order.push_back(bos.get());
  std::stable_partition(order.begin(), order.end(), [](const BoKeeper* bos) { return bos->wanted(); });
  for (BoKeeper* const bos : order) {
    MemoryUse room{free[bos->render_minor()].vram, system};
    bos->choose(room);
    free[bos->render_minor()].vram = room.vram;
    system = room.system;
  }
  const Lock lock(mutex_);
  needs_share_ = false;
}

Result<void> MemoryKeeper::start() {
  choose();
  SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("sluice-memory", [this]() -> Result<void> {
                      watch();
                      return {};
                    }));
  thread_.emplace(std::move(thread));
  return {};
}

void MemoryKeeper::stop() {
  if (!thread_) return;
  LaneWorld& world = LaneWorld::real();
  {
    const Lock lock(mutex_);
    stopped_ = true;
    world.wake(changed_);
  }
  (void)thread_->join(LaneThread::Ring::None);
  thread_.reset();
}

void MemoryKeeper::watch() {
  LaneWorld& world = LaneWorld::real();
  Lock lock(mutex_);
  while (!stopped_) {
    world.wait(lock, changed_, world.now_ns() + kPeriodNs);
    if (stopped_) return;
    lock.unlock();
    const bool needs = look();
    lock.lock();
    needs_share_ = needs;
  }
}

// True if a lane needs another share.
bool MemoryKeeper::look() {
  for (const auto& bos : all_) bos->drop_freed();
  const Rooms free = rooms();
  for (const auto& [minor, room] : free) give_back(minor, room);
  bool needs = false;
  for (const auto& bos : all_) needs = is_needed_by(*bos, free.at(bos->render_minor())) || needs;
  return needs;
}

void MemoryKeeper::give_back(std::uint32_t render_minor, const MemoryUse& room) {
  MemoryUse held = sum(render_minor, [](const BoKeeper& bos) { return bos.held(); });
  if (room.has_room_for(held)) return;
  std::vector<BoKeeper::HeldBo> list;
  for (const auto& bos : all_) bos->list_held(list);
  std::sort(list.begin(), list.end(), [](const BoKeeper::HeldBo& a, const BoKeeper::HeldBo& b) {
    return std::max(a.use.vram, a.use.system) > std::max(b.use.vram, b.use.system);
  });
  for (const BoKeeper::HeldBo& one : list) {
    if (room.has_room_for(held)) return;
    const bool own_vram = one.keeper->render_minor() == render_minor;
    const MemoryUse gained{own_vram ? one.use.vram : 0, one.use.system};
    const MemoryUse lacking{held.vram > room.vram ? 1U : 0U, held.system > room.system ? 1U : 0U};
    if (!gained.meets(lacking)) continue;
    one.keeper->give_back(one.bo);
    held -= gained;
  }
}

// A lane waits for a BO that fits beside what is being copied. One that never will is given up.
bool MemoryKeeper::is_needed_by(BoKeeper& bos, const MemoryUse& room) const {
  const auto wanted = bos.wanted();
  if (!wanted) return false;
  const MemoryUse copied =
      sum(bos.render_minor(), [](const BoKeeper& other) { return other.being_copied(); });
  MemoryUse left = room;
  left -= copied;
  if (left.has_room_for(*wanted)) return true;
  if (!copied.meets(*wanted)) bos.give_up_larger(left);
  return false;
}

bool MemoryKeeper::needs_share() const {
  const Lock lock(mutex_);
  return needs_share_;
}

void MemoryKeeper::end_shares() {
  for (const auto& bos : all_) bos->end_shares();
}

BoKeeper::Counts MemoryKeeper::counts() const {
  BoKeeper::Counts sum;
  for (const auto& bos : all_) {
    const BoKeeper::Counts counts = bos->counts();
    sum.freed += counts.freed;
    sum.skipped += counts.skipped;
    sum.skipped_bytes += counts.skipped_bytes;
  }
  return sum;
}

}  // namespace sluice::plugin
