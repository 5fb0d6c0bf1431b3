// SPDX-License-Identifier: MIT
// The host's log: one static buffer without a lock, as CRIU has, so that only the main thread may log. A line
// from any other thread is written down as a violation, which makes the host fail in the end. Levels: 0
// message, 1 error, 2 warning, 3 info, 4 debug.
#pragma once

#include <cstdarg>
#include <string>

namespace sluice::lookalike {

enum Level : unsigned { kMessage = 0, kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

// Sends lines up to `level` to `fd` (borrowed).
void log_init(int fd, unsigned level);
int log_fd();
unsigned log_level();

void log_line(unsigned level, const char* format, ...) __attribute__((format(printf, 2, 3)));
void log_line_v(unsigned level, const char* format, std::va_list arguments)
    __attribute__((format(printf, 2, 0)));

// What the host itself has to say in whichever thread has called it: "in a thread: " comes before, where that
// is not the main one. CRIU's own log knows no difference, so a plugin does well not to bring that about.
void log_in_any_thread(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Something that a real host would break on, seen by a check of ours. Logged as "violation: ...". Shared
// between the main process and the restored tasks.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));
unsigned violations();

}  // namespace sluice::lookalike
