// SPDX-License-Identifier: MIT
// KFD events as the subject uses them. Functions over the KFD file, without state; errors carry the errno of
// the ioctl.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "subject/arena.h"

namespace sluice::subject {

inline constexpr std::uint32_t kWaitForEver = 0xffffffff;  // milliseconds, in the kernel's ABI

enum class Waited { Complete, Timeout };
Result<Waited> wait_event(int kfd_fd, std::uint32_t event_id, std::uint32_t timeout_ms);
Result<void> set_event(int kfd_fd, std::uint32_t event_id);
Result<void> reset_event(int kfd_fd, std::uint32_t event_id);
Result<void> destroy_event(int kfd_fd, std::uint32_t event_id);
// A new event's id. `page_handle`: KFD handle of the event page's BO for the first event, else 0.
Result<std::uint32_t> create_event(int kfd_fd, std::uint32_t type, bool auto_reset,
                                   std::uint64_t page_handle = 0);

// The event page (BO and map) and events of all types, some signalled, with a gap in their ids.
Result<void> add_events(Arena& arena);
// The event is in the state the arena says.
Result<void> check_event(const Arena& arena, const EventRecord& event);
// Signals and resets every signal event that is not signalled.
Result<void> work_events(const Arena& arena);

// Where the slot of a signal event is in the event page: the CPU's address, and the GPUs'.
std::uint64_t event_slot(const Arena& arena, std::uint32_t event_id);

// The second thread. start: makes it and returns when it is about to wait. work: wakes it and sees it wake.
// stop: ends it. check: it is there. Only for a process with arena.waiter.tid.
Result<void> start_waiter(Arena& arena);
Result<void> check_waiter(const Arena& arena);
Result<void> work_waiter(Arena& arena);
Result<void> stop_waiter(Arena& arena);

}  // namespace sluice::subject
