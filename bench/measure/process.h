// SPDX-License-Identifier: MIT
// This process' usage and the machine's free resources. Sizes in bytes, times in seconds.
#pragma once

#include <cstdint>

namespace sluice::bench {

// User and system time of all threads so far, including ended ones and the kernel's io-wq workers.
double process_cpu_seconds();

// Of the calling thread.
double thread_cpu_seconds();

// Peak resident memory of this process since the last reset (VmHWM, without page cache). The reset,
// reset_resident_peak(), needs /proc/self/clear_refs; if that is refused, the peak is that of the process'
// whole life.
std::uint64_t resident_peak_bytes();
void reset_resident_peak();

// A line of /proc/meminfo ("MemFree"), 0 if missing.
std::uint64_t memory_line(const char* name);

// Allocates `bytes` of free memory (at most 80 % of it), writes every page, and frees it. The next
// allocations then use memory that the hypervisor has already provided. Done right before each timed run,
// because free memory may be reported and taken back within seconds.
void touch_free_memory(std::uint64_t bytes);

}  // namespace sluice::bench
