// SPDX-License-Identifier: MIT
// What the subject does once it is built, before and after it was dumped: checks everything, works on, goes.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "pipeline/units.h"
#include "subject.h"
#include "subject_bos.h"
#include "subject_device.h"

namespace sluice::subject {
namespace {

constexpr std::uint64_t kUnsignalled = ~0ULL;  // an event page slot that nobody signalled

enum class Waited { Complete, Timeout };

Result<Waited> wait_event(int kfd_fd, std::uint32_t event_id) {
  kfd_event_data data{};
  data.event_id = event_id;
  kfd_ioctl_wait_events_args args{};
  args.events_ptr = reinterpret_cast<std::uintptr_t>(&data);
  args.num_events = 1;
  args.wait_for_all = 1;
  args.timeout = 0;
  SLUICE_TRY(device_ioctl(kfd_fd, AMDKFD_IOC_WAIT_EVENTS, &args, "WAIT_EVENTS"));
  if (args.wait_result == KFD_IOC_WAIT_RESULT_FAIL) return Error{EIO, "WAIT_EVENTS failed"};
  return args.wait_result == KFD_IOC_WAIT_RESULT_COMPLETE ? Waited::Complete : Waited::Timeout;
}

Result<void> set_event(int kfd_fd, std::uint32_t event_id) {
  kfd_ioctl_set_event_args args{};
  args.event_id = event_id;
  return device_ioctl(kfd_fd, AMDKFD_IOC_SET_EVENT, &args, "SET_EVENT");
}

Result<void> reset_event(int kfd_fd, std::uint32_t event_id) {
  kfd_ioctl_reset_event_args args{};
  args.event_id = event_id;
  return device_ioctl(kfd_fd, AMDKFD_IOC_RESET_EVENT, &args, "RESET_EVENT");
}

// The event is in the state the arena says. Waiting consumes an auto-reset event: it is signalled anew.
Result<void> check_event(const Arena& arena, const EventRecord& event) {
  SLUICE_TRY_ASSIGN(const Waited waited, wait_event(arena.kfd_fd, event.id));
  if ((waited == Waited::Complete) != (event.signaled != 0)) {
    return Error{EINVAL, "event " + std::to_string(event.id) + " is " + (event.signaled != 0 ? "not " : "") +
                             "signalled"};
  }
  if (event.signaled != 0 && event.auto_reset != 0) SLUICE_TRY(set_event(arena.kfd_fd, event.id));
  return {};
}

// UPDATE_QUEUE with the queue's own values: -EINVAL if the queue does not exist.
Result<void> touch_queue(const Arena& arena, const QueueRecord& queue) {
  kfd_ioctl_update_queue_args args{};
  args.ring_base_address = queue.ring_va;
  args.queue_id = queue.id;
  args.ring_size = queue.ring_bytes;
  args.queue_percentage = KFD_MAX_QUEUE_PERCENTAGE;
  args.queue_priority = 7;
  return device_ioctl(arena.kfd_fd, AMDKFD_IOC_UPDATE_QUEUE, &args, "UPDATE_QUEUE");
}

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
  const BoRecord& bo = arena.bos[map.bo];
  if (!has_contents(bo)) return {};  // registers: reading them means nothing
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

Result<void> check_files(const Arena& arena) {
  struct stat kfd {};
  if (::fstat(arena.kfd_fd, &kfd) != 0 || !S_ISCHR(kfd.st_mode)) return Error{EBADF, "/dev/kfd is not open"};
  for (const int fd : {arena.kfd_dup_fd, arena.second_kfd_fd}) {
    struct stat other {};
    if (fd >= 0 && (::fstat(fd, &other) != 0 || other.st_rdev != kfd.st_rdev)) {
      return Error{EBADF, "descriptor " + std::to_string(fd) + " is no /dev/kfd"};
    }
  }
  // Both open files of /dev/kfd belong to one KFD process: each answers.
  for (const int fd : {arena.kfd_fd, arena.kfd_dup_fd, arena.second_kfd_fd}) {
    if (fd < 0) continue;
    SLUICE_TRY_ASSIGN(const std::vector<std::uint32_t> ids, aperture_gpu_ids(fd));
    if (ids.size() < arena.num_gpus) return Error{ENODEV, "GPUs are missing"};
  }
  return {};
}

}  // namespace

Totals totals_of(const Arena& arena) {
  Totals totals;
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    const BoRecord& bo = arena.bos[i];
    if (!has_contents(bo)) continue;
    ++totals.bos;
    totals.bytes += bo.bytes;
    if (bo.role != BoRole::EventPage) totals.zero_bytes += pattern_of(bo).zero_bytes();
  }
  return totals;
}

Result<void> check_everything(Arena& arena) {
  SLUICE_TRY(check_files(arena));
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, i));
    for (std::uint32_t b = 0; b < arena.num_bos; ++b) {
      const BoRecord& bo = arena.bos[b];
      if (bo.gpu != i) continue;
      if (bo.role == BoRole::Userptr) {
        const std::span bytes(reinterpret_cast<const std::uint8_t*>(bo.va), bo.bytes);
        const auto difference = pattern_of(bo).first_difference(bytes, 0);
        if (difference)
          return Error{EIO, name_of(arena, bo) + " differs at byte " + std::to_string(*difference)};
      }
      if (has_contents(bo) && bo.role != BoRole::EventPage) SLUICE_TRY(check_bo(arena, window.get(), bo));
      // The handle is known and the BO is mapped for its GPU: mapping a mapped BO succeeds and changes
      // nothing.
      if (Result<void> mapped = map_memory(arena.kfd_fd, bo.handle, arena.gpus[bo.gpu].gpu_id); !mapped) {
        return Error{mapped.error().err, name_of(arena, bo) + ": " + mapped.error().what};
      }
    }
  }
  for (std::uint32_t i = 0; i < arena.num_maps; ++i) SLUICE_TRY(check_map(arena, arena.maps[i]));
  for (std::uint32_t i = 0; i < arena.num_events; ++i) SLUICE_TRY(check_event(arena, arena.events[i]));
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) SLUICE_TRY(touch_queue(arena, arena.queues[i]));
  ++arena.checks;
  return {};
}

Result<void> work_on(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    SLUICE_TRY_ASSIGN(const UniqueFd window, open_window_file(arena, i));
    NewBo wanted{.gpu = i, .bytes = 2 * kMiB, .zero_percent = 10};
    wanted.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC |
                   static_cast<std::uint32_t>(KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE);
    std::uint64_t offset = 0;
    SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, wanted, &offset));
    const BoRecord& bo = arena.bos[index];
    SLUICE_TRY(fill_bo(arena, window.get(), bo));
    // A new CPU map through the acquired file, as the thunk makes one.
    void* map =
        ::mmap(nullptr, bo.bytes, PROT_READ, MAP_SHARED, arena.gpus[i].render_fd, static_cast<off_t>(offset));
    if (map == MAP_FAILED) return make_error(errno, "mmap of a new BO");
    const auto difference =
        pattern_of(bo).first_difference(std::span(static_cast<const std::uint8_t*>(map), bo.bytes), 0);
    (void)::munmap(map, bo.bytes);
    if (difference) return Error{EIO, "a new BO's map differs at byte " + std::to_string(*difference)};
    SLUICE_TRY(unmap_memory(arena.kfd_fd, bo.handle, arena.gpus[i].gpu_id));
    SLUICE_TRY(free_memory(arena.kfd_fd, bo.handle));
    --arena.num_bos;
  }
  for (std::uint32_t i = 0; i < arena.num_events; ++i) {
    const EventRecord& event = arena.events[i];
    if (event.type != KFD_IOC_EVENT_SIGNAL || event.signaled != 0) continue;
    SLUICE_TRY(set_event(arena.kfd_fd, event.id));
    SLUICE_TRY_ASSIGN(const Waited waited, wait_event(arena.kfd_fd, event.id));
    if (waited != Waited::Complete)
      return Error{EIO, "event " + std::to_string(event.id) + " does not signal"};
    SLUICE_TRY(reset_event(arena.kfd_fd, event.id));
  }
  return {};
}

Result<void> tear_down(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_queues; ++i) {
    kfd_ioctl_destroy_queue_args args{};
    args.queue_id = arena.queues[i].id;
    SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_DESTROY_QUEUE, &args, "DESTROY_QUEUE"));
  }
  for (std::uint32_t i = 0; i < arena.num_events; ++i) {
    kfd_ioctl_destroy_event_args args{};
    args.event_id = arena.events[i].id;
    SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_DESTROY_EVENT, &args, "DESTROY_EVENT"));
  }
  for (std::uint32_t i = 0; i < arena.num_maps; ++i) {
    (void)::munmap(reinterpret_cast<void*>(arena.maps[i].address), arena.maps[i].bytes);
  }
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    const BoRecord& bo = arena.bos[i];
    SLUICE_TRY(unmap_memory(arena.kfd_fd, bo.handle, arena.gpus[bo.gpu].gpu_id));
    // The event page belongs to the process until it exits: the kernel refuses to free it.
    if (bo.role != BoRole::EventPage) SLUICE_TRY(free_memory(arena.kfd_fd, bo.handle));
  }
  arena.num_queues = arena.num_events = arena.num_maps = arena.num_bos = 0;
  return {};
}

void say(const std::string& line) {
  const std::string text = line + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // nobody listens any more
    done += static_cast<std::size_t>(wrote);
  }
}

int subject_continue(Arena& arena) {
  int status = 0;
  std::string line;
  for (;;) {
    char letter = 0;
    const ssize_t got = ::read(STDIN_FILENO, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return status;
    if (letter != '\n') {
      line += letter;
      continue;
    }
    const std::string command = std::exchange(line, {});
    Result<void> result;
    std::string more;
    if (command == "check") {
      result = check_everything(arena);
      const Totals totals = totals_of(arena);
      more = " bos=" + std::to_string(totals.bos) + " bytes=" + std::to_string(totals.bytes) +
             " zero=" + std::to_string(totals.zero_bytes);
    } else if (command == "work") {
      result = work_on(arena);
    } else if (command == "quit") {
      result = tear_down(arena);
    } else {
      result = Error{EINVAL, "unknown command " + command};
    }
    if (!result) status = 1;
    say(result ? "ok " + command + more : "bad " + result.error().what);
    if (command == "quit") return status;
  }
}

}  // namespace sluice::subject
