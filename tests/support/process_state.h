// SPDX-License-Identifier: MIT
// What a process must not leave behind: descriptors and threads. Reentrant.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::test {

// Open descriptors, except the one used for looking.
std::size_t open_fds();

// Names of this process's threads, io_uring's workers ("iou-wrk-...") included.
std::vector<std::string> thread_names();

// Threads that are not the kernel's: io_uring's workers live as long as the thread that submitted.
std::size_t own_threads();

// Wait until at most `count` threads (of any kind, or of our own) are listed; false if that does not happen.
// For threads that have been joined, but are listed until they have left the kernel.
bool threads_come_down_to(std::size_t count);
bool own_threads_come_down_to(std::size_t count);

}  // namespace sluice::test
