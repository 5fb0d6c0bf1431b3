// SPDX-License-Identifier: MIT
// What this process has used and what the machine has left. Sizes in bytes, times in seconds.
#pragma once

#include <cstdint>

namespace sluice::bench {

// User and system time of all threads so far: those that ended and the kernel's io-wq workers included.
double process_cpu_seconds();

// Of the calling thread.
double thread_cpu_seconds();

// Resident memory of this process at its highest since the last reset (VmHWM; page cache is not in it).
// reset_resident_peak() needs /proc/self/clear_refs; where that is refused the peak is the process' whole
// life's.
std::uint64_t resident_peak_bytes();
void reset_resident_peak();

// A line of /proc/meminfo ("MemFree"), 0 when there is none.
std::uint64_t memory_line(const char* name);

// Takes `bytes` of free memory (at most 80 % of it), writes every page, gives it back: what is allocated next
// is memory that a hypervisor has given already. Done right before each timed run, since free memory may be
// reported and taken back within seconds.
void touch_free_memory(std::uint64_t bytes);

}  // namespace sluice::bench
