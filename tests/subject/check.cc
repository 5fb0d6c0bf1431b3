// SPDX-License-Identifier: MIT
// What the subject does once it is built, before and after it was dumped: checks everything, works on, goes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "base/units.h"
#include "subject/bos.h"
#include "subject/device.h"
#include "subject/events.h"
#include "subject/files.h"
#include "subject/gem.h"
#include "subject/queues.h"
#include "subject/share.h"
#include "subject/subject.h"
#include "subject/svm.h"

namespace sluice::subject {
namespace {

constexpr std::uint64_t kUnsignalled = ~0ULL;  // an event page slot that nobody signalled

std::string name_of_map(const MapRecord& map) {
  return "map of " + std::string(map.path.data()) + " at " + std::to_string(map.address);
}

// A map of a BO with contents shows the BO's bytes.
Result<void> check_map(const Arena& arena, const MapRecord& map) {
  // mincore fails with ENOMEM where nothing is mapped: a missing map is an error, not a SIGSEGV.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  unsigned char resident = 0;
  for (std::uint64_t at = 0; at < map.bytes; at += page) {
    if (::mincore(reinterpret_cast<void*>(map.address + at), page, &resident) != 0 && errno == ENOMEM) {
      return Error{ENOMEM, name_of_map(map) + " is gone"};
    }
  }
  if (map.bo >= kGemBoBase) return {};  // checked with its BO
  const BoRecord& bo = arena.bos[map.bo];
  // Registers: reading them means nothing. A running queue's memory: it knows.
  if (!has_contents(bo) || bo.role == BoRole::Running || bo.role == BoRole::Shared) return {};
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(map.address), map.bytes);
  if (bo.role == BoRole::EventPage) {
    for (std::uint32_t i = 0; i < arena.num_events; ++i) {
      const EventRecord& event = arena.events[i];
      if (event.type != KFD_IOC_EVENT_SIGNAL) continue;
      std::uint64_t slot = 0;
      std::memcpy(&slot, bytes.data() + std::uint64_t{event.id} * 8, sizeof(slot));
      if (slot != kUnsignalled)
        return Error{EIO, "slot of event " + std::to_string(event.id) + " has changed"};
    }
    return {};
  }
  const auto difference = pattern_of(bo).first_difference(bytes, map.bo_offset);
  if (difference) return Error{EIO, name_of_map(map) + " differs at byte " + std::to_string(*difference)};
  return {};
}

// BOs by their KFD handles.
Result<void> check_bos(const Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, i));
    for (std::uint32_t b = 0; b < arena.num_bos; ++b) {
      const BoRecord& bo = arena.bos[b];
      if (bo.gpu != i) continue;
      if (has_pattern(bo)) SLUICE_TRY(check_bo(arena, window.get(), bo));
      // The handle is known and the BO is mapped for its GPU: mapping a mapped BO succeeds and changes
      // nothing.
      if (Result<void> mapped = map_memory(arena.kfd_fd, bo.handle, arena.gpus[bo.gpu].gpu_id); !mapped) {
        return Error{mapped.error().err, name_of(arena, bo) + ": " + mapped.error().what};
      }
    }
  }
  return {};
}

Result<void> check_userptrs(const Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    const BoRecord& bo = arena.bos[i];
    if (bo.role != BoRole::Userptr) continue;
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(bo.va), bo.bytes);
    if (const auto difference = pattern_of(bo).first_difference(bytes, 0))
      return Error{EIO, name_of(arena, bo) + " differs at byte " + std::to_string(*difference)};
  }
  return {};
}

// A new BO: allocated, mapped through the acquired file as the thunk maps, filled, checked, freed.
Result<void> work_bo(Arena& arena, std::uint32_t gpu) {
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, gpu));
  NewBo wanted{.gpu = gpu, .bytes = 2 * kMiB, .zero_percent = 10};
  wanted.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC | kWritable;
  std::uint64_t offset = 0;
  SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
  const BoRecord& bo = arena.bos[index];
  const bool can_map = arena.gpus[gpu].render_fd >= 0;
  if (can_map) SLUICE_TRY(map_bo(arena, index, offset));
  if (can_map || arena.can_export != 0) SLUICE_TRY(fill_bo(arena, window.get(), bo));
  if (can_map) {
    const Result<void> seen = check_map(arena, arena.maps[--arena.num_maps]);
    (void)::munmap(reinterpret_cast<void*>(bo.va), bo.bytes);
    SLUICE_TRY(seen);
  }
  SLUICE_TRY(check_bo(arena, window.get(), bo));
  SLUICE_TRY(unmap_memory(arena.kfd_fd, bo.handle, arena.gpus[gpu].gpu_id));
  SLUICE_TRY(free_memory(arena.kfd_fd, bo.handle));
  --arena.num_bos;
  return {};
}

enum class Which : std::uint8_t { Oldest, Largest };

// One of the GPU's BOs in VRAM that no CPU maps: no queue uses it. Where BOs cannot be exported all are
// mapped: `mapped` takes such a one, too.
Result<std::uint32_t> data_bo(const Arena& arena, std::uint32_t gpu, bool mapped,
                              Which which = Which::Oldest) {
  const auto maps = std::span(arena.maps).first(arena.num_maps);
  std::uint32_t found = arena.num_bos;
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    const BoRecord& bo = arena.bos[i];
    const bool in_vram = (bo.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) != 0;
    if (bo.gpu != gpu || bo.role != BoRole::Data || !in_vram) continue;
    const bool is_mapped =
        std::any_of(maps.begin(), maps.end(), [i](const MapRecord& map) { return map.bo == i; });
    if (is_mapped && !mapped) continue;
    const bool is_first = found == arena.num_bos;
    if (is_first ||
        (which == Which::Oldest ? bo.va < arena.bos[found].va : bo.bytes > arena.bos[found].bytes))
      found = i;
  }
  if (found == arena.num_bos) return Error{ENOENT, "a GPU has no BO in VRAM that no CPU maps"};
  return found;
}

Result<void> change_bo(Arena& arena, std::uint32_t gpu, Which which) {
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, gpu));
  SLUICE_TRY_ASSIGN(const std::uint32_t index, data_bo(arena, gpu, arena.can_export == 0, which));
  arena.bos[index].seed = mix(arena.bos[index].seed);
  return fill_bo(arena, window.get(), arena.bos[index]);
}

Result<void> replace_bo(Arena& arena, std::uint32_t gpu) {
  SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, gpu));
  SLUICE_TRY_ASSIGN(const std::uint32_t index, data_bo(arena, gpu, false));
  const BoRecord old = arena.bos[index];
  for (std::uint32_t each = 0; each < arena.num_gpus; ++each) {
    if ((old.mapped >> each & 1) != 0)
      SLUICE_TRY(unmap_memory(arena.kfd_fd, old.handle, arena.gpus[each].gpu_id));
  }
  SLUICE_TRY(free_memory(arena.kfd_fd, old.handle));
  NewBo wanted{.gpu = gpu, .bytes = old.bytes, .flags = old.flags, .zero_percent = old.zero_percent};
  std::uint64_t offset = 0;
  SLUICE_TRY_ASSIGN(const std::uint32_t made, add_bo(arena, wanted, &offset));
  arena.bos[made].seed = mix(old.seed);
  arena.bos[index] = arena.bos[made];
  --arena.num_bos;
  return fill_bo(arena, window.get(), arena.bos[index]);
}

// What the kernel is to be asked to take away.
Result<void> tear_down_kfd(Arena& arena) {
  if (arena.waiter.tid != 0) SLUICE_TRY(stop_waiter(arena));
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) {
    kfd_ioctl_destroy_queue_args args{};
    args.queue_id = arena.queues[i].id;
    SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_DESTROY_QUEUE, &args, "DESTROY_QUEUE"));
    if (arena.run_queues != 0) SLUICE_TRY(destroy_event(arena.kfd_fd, arena.queues[i].event_id));
  }
  for (std::uint32_t i = 0; i < arena.num_events; ++i)
    SLUICE_TRY(destroy_event(arena.kfd_fd, arena.events[i].id));
  return {};
}

Result<void> check_xnack(const Arena& arena) {
  if (arena.xnack == 0) return {};
  SLUICE_TRY_ASSIGN(const bool on, xnack_is_on(arena.kfd_fd));
  return on ? Result<void>{} : Error{EIO, "XNACK is off"};
}

}  // namespace

Totals totals_of(const Arena& arena) {
  Totals totals;
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    const BoRecord& bo = arena.bos[i];
    if (!has_contents(bo)) continue;
    ++totals.bos;
    totals.bytes += bo.bytes;
    if (has_pattern(bo)) totals.zero_bytes += pattern_of(bo).zero_bytes();
  }
  return totals;
}

Pattern plain_data(const Arena& arena) {
  return Pattern{arena.seed, kUserptrBytes, arena.zero_percent};
}

Result<void> check_everything(Arena& arena) {
  SLUICE_TRY(check_files(arena));
  if (arena.shape == Shape::Plain && plain_data(arena).first_difference(arena.userptr[0], 0))
    return Error{EIO, "memory differs"};
  for (std::uint32_t i = 0; i < arena.num_maps; ++i) SLUICE_TRY(check_map(arena, arena.maps[i]));
  if (arena.kfd_fd >= 0) SLUICE_TRY(check_bos(arena));
  SLUICE_TRY(check_userptrs(arena));
  SLUICE_TRY(check_gem_bos(arena));
  if (arena.has_share != 0) SLUICE_TRY(peek_shared_bo(arena));
  if (arena.kfd_fd >= 0) {
    for (std::uint32_t i = 0; i < arena.num_events; ++i) SLUICE_TRY(check_event(arena, arena.events[i]));
    SLUICE_TRY(check_xnack(arena));
    SLUICE_TRY(check_svm(arena));
    SLUICE_TRY(check_queues(arena));
    if (arena.waiter.tid != 0) SLUICE_TRY(check_waiter(arena));
  }
  ++arena.checks;
  return {};
}

Result<void> work_on(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    if (arena.kfd_fd >= 0) SLUICE_TRY(work_bo(arena, i));
  }
  SLUICE_TRY(work_gem_bos(arena));
  if (arena.kfd_fd < 0) return {};
  SLUICE_TRY(work_events(arena));
  if (arena.waiter.tid != 0) SLUICE_TRY(work_waiter(arena));
  SLUICE_TRY(work_svm(arena));
  return work_queues(arena);
}

Result<void> change_data(Arena& arena, bool largest) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i)
    SLUICE_TRY(change_bo(arena, i, largest ? Which::Largest : Which::Oldest));
  return {};
}

Result<void> replace_data(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) SLUICE_TRY(replace_bo(arena, i));
  return {};
}

Result<void> tear_down(Arena& arena) {
  SLUICE_TRY(end_children(arena));
  if (arena.kfd_fd >= 0) SLUICE_TRY(tear_down_kfd(arena));
  for (std::uint32_t i = 0; i < arena.num_maps; ++i) {
    (void)::munmap(reinterpret_cast<void*>(arena.maps[i].address), arena.maps[i].bytes);
  }
  for (std::uint32_t i = 0; i < arena.num_bos && arena.kfd_fd >= 0; ++i) {
    const BoRecord& bo = arena.bos[i];
    for (std::uint32_t gpu = 0; gpu < arena.num_gpus; ++gpu) {
      if ((bo.mapped >> gpu & 1) == 0) continue;
      SLUICE_TRY(unmap_memory(arena.kfd_fd, bo.handle, arena.gpus[gpu].gpu_id));
    }
    // The event page belongs to the process until it exits: the kernel refuses to free it.
    if (bo.role != BoRole::EventPage) SLUICE_TRY(free_memory(arena.kfd_fd, bo.handle));
  }
  arena.num_queues = arena.num_events = arena.num_maps = arena.num_bos = 0;
  return {};
}

}  // namespace sluice::subject
