// SPDX-License-Identifier: MIT
#include "subject/events.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>
#include <string>

#include "subject/bos.h"
#include "subject/device.h"

namespace sluice::subject {
namespace {

constexpr std::uint64_t kEventPageBytes = 32768;
constexpr std::uint64_t kSlotBytes = 8;
constexpr std::time_t kWakeSeconds = 30;  // more than any machine needs

void* waiter_main(void* argument) {
  Arena& arena = *static_cast<Arena*>(argument);
  WaiterRecord& waiter = arena.waiter;
  std::atomic_ref(waiter.tid).store(static_cast<std::int32_t>(::syscall(SYS_gettid)));
  ::syscall(SYS_futex, &waiter.tid, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  while (std::atomic_ref(waiter.stop).load() == 0) {
    const Result<Waited> waited = wait_event(arena.kfd_fd, waiter.event_id, kWaitForEver);
    if (!waited) break;  // nobody sees another wake: that is how it shows
    std::atomic_ref(waiter.wakes).fetch_add(1);
    ::syscall(SYS_futex, &waiter.wakes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  return nullptr;
}

// Returns when the word is no longer `value`. ETIME: it stays.
template <class Word>
Result<void> wait_for_change(Word& word, Word value, const char* what) {
  while (std::atomic_ref(word).load() == value) {
    const timespec bound{kWakeSeconds, 0};
    if (::syscall(SYS_futex, &word, FUTEX_WAIT, value, &bound, nullptr, 0) != 0 && errno == ETIMEDOUT)
      return Error{ETIME, what};
  }
  return {};
}

pthread_t g_waiter;  // of this process: a real restore brings it back with the thread

}  // namespace

Result<Waited> wait_event(int kfd_fd, std::uint32_t event_id, std::uint32_t timeout_ms) {
  kfd_event_data data{};
  data.event_id = event_id;
  kfd_ioctl_wait_events_args args{};
  args.events_ptr = reinterpret_cast<std::uintptr_t>(&data);
  args.num_events = 1;
  args.wait_for_all = 1;
  args.timeout = timeout_ms;
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

Result<void> destroy_event(int kfd_fd, std::uint32_t event_id) {
  kfd_ioctl_destroy_event_args args{};
  args.event_id = event_id;
  return device_ioctl(kfd_fd, AMDKFD_IOC_DESTROY_EVENT, &args, "DESTROY_EVENT");
}

Result<std::uint32_t> create_event(int kfd_fd, std::uint32_t type, bool auto_reset,
                                   std::uint64_t page_handle) {
  kfd_ioctl_create_event_args args{};
  args.event_type = type;
  args.auto_reset = auto_reset ? 1 : 0;
  args.event_page_offset = page_handle;
  SLUICE_TRY(device_ioctl(kfd_fd, AMDKFD_IOC_CREATE_EVENT, &args, "CREATE_EVENT"));
  return std::uint32_t{args.event_id};
}

std::uint64_t event_slot(const Arena& arena, std::uint32_t event_id) {
  for (std::uint32_t i = 0; i < arena.num_bos; ++i) {
    if (arena.bos[i].role == BoRole::EventPage) return arena.bos[i].va + event_id * kSlotBytes;
  }
  return 0;
}

Result<void> add_events(Arena& arena) {
  std::uint64_t offset = 0;
  const NewBo page{.gpu = 0,
                   .bytes = kEventPageBytes,
                   .flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT | kWritable | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT,
                   .role = BoRole::EventPage};
  SLUICE_TRY_ASSIGN(const std::uint32_t index, add_bo(arena, page, &offset));
  SLUICE_TRY(map_bo(arena, index, offset));

  struct Kind {
    std::uint32_t type, auto_reset, signaled;
  };
  const std::array<Kind, 8> kinds = {{{KFD_IOC_EVENT_SIGNAL, 0, 0},
                                      {KFD_IOC_EVENT_SIGNAL, 0, 1},
                                      {KFD_IOC_EVENT_SIGNAL, 1, 0},
                                      {KFD_IOC_EVENT_SIGNAL, 1, 1},
                                      {KFD_IOC_EVENT_HW_EXCEPTION, 0, 0},
                                      {KFD_IOC_EVENT_MEMORY, 0, 0},
                                      {KFD_IOC_EVENT_DEBUG_EVENT, 0, 0},
                                      {KFD_IOC_EVENT_SIGNAL, 0, 0}}};
  for (const Kind& kind : kinds) {
    const std::uint64_t page_handle = arena.num_events == 0 ? arena.bos[index].handle : 0;
    SLUICE_TRY_ASSIGN(const std::uint32_t id,
                      create_event(arena.kfd_fd, kind.type, kind.auto_reset != 0, page_handle));
    if (kind.signaled != 0) SLUICE_TRY(set_event(arena.kfd_fd, id));
    arena.events[arena.num_events++] = EventRecord{id, kind.type, kind.auto_reset, kind.signaled};
  }
  // A gap in the ids.
  SLUICE_TRY(destroy_event(arena.kfd_fd, arena.events[2].id));
  std::copy(arena.events.begin() + 3, arena.events.begin() + arena.num_events, arena.events.begin() + 2);
  --arena.num_events;
  return {};
}

Result<void> check_event(const Arena& arena, const EventRecord& event) {
  SLUICE_TRY_ASSIGN(const Waited waited, wait_event(arena.kfd_fd, event.id, 0));
  if ((waited == Waited::Complete) != (event.signaled != 0)) {
    return Error{EINVAL, "event " + std::to_string(event.id) + " is " + (event.signaled != 0 ? "not " : "") +
                             "signalled"};
  }
  // Waiting has consumed an auto-reset event: it is signalled anew.
  if (event.signaled != 0 && event.auto_reset != 0) SLUICE_TRY(set_event(arena.kfd_fd, event.id));
  return {};
}

Result<void> work_events(const Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_events; ++i) {
    const EventRecord& event = arena.events[i];
    if (event.type != KFD_IOC_EVENT_SIGNAL || event.signaled != 0) continue;
    SLUICE_TRY(set_event(arena.kfd_fd, event.id));
    SLUICE_TRY_ASSIGN(const Waited waited, wait_event(arena.kfd_fd, event.id, 0));
    if (waited != Waited::Complete)
      return Error{EIO, "event " + std::to_string(event.id) + " does not signal"};
    SLUICE_TRY(reset_event(arena.kfd_fd, event.id));
  }
  return {};
}

Result<void> start_waiter(Arena& arena) {
  SLUICE_TRY_ASSIGN(arena.waiter.event_id, create_event(arena.kfd_fd, KFD_IOC_EVENT_SIGNAL, true));
  const int error = ::pthread_create(&g_waiter, nullptr, waiter_main, &arena);
  if (error != 0) return make_error(error, "pthread_create");
  return wait_for_change(arena.waiter.tid, 0, "the waiting thread does not start");
}

Result<void> check_waiter(const Arena& arena) {
  const std::string task = "/proc/self/task/" + std::to_string(arena.waiter.tid);
  if (::access(task.c_str(), F_OK) != 0) return make_error(errno, "the waiting thread");
  return {};
}

Result<void> work_waiter(Arena& arena) {
  const std::uint32_t wakes = std::atomic_ref(arena.waiter.wakes).load();
  SLUICE_TRY(set_event(arena.kfd_fd, arena.waiter.event_id));
  return wait_for_change(arena.waiter.wakes, wakes, "the waiting thread does not wake");
}

Result<void> stop_waiter(Arena& arena) {
  std::atomic_ref(arena.waiter.stop).store(1);
  SLUICE_TRY(set_event(arena.kfd_fd, arena.waiter.event_id));
  ::pthread_join(g_waiter, nullptr);
  arena.waiter.tid = 0;
  return destroy_event(arena.kfd_fd, arena.waiter.event_id);
}

}  // namespace sluice::subject
