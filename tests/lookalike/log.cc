// SPDX-License-Identifier: MIT
#include "lookalike/log.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

namespace sluice::lookalike {
namespace {

int g_fd = STDERR_FILENO;
unsigned g_level = kWarning;

// In memory that forked tasks share with the main process.
std::atomic<unsigned>& violation_count() {
  static auto* const shared = static_cast<std::atomic<unsigned>*>(::mmap(
      nullptr, sizeof(std::atomic<unsigned>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *shared;
}

void write_line(const char* text, std::size_t length) {
  while (length > 0) {
    const ssize_t wrote = ::write(g_fd, text, length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    text += wrote;
    length -= static_cast<std::size_t>(wrote);
  }
}

// "(pid) <what>: <text>" in one write.
void write_text(const char* what, const char* format, std::va_list arguments)
    __attribute__((format(printf, 2, 0)));

void write_text(const char* what, const char* format, std::va_list arguments) {
  char text[512];
  const int length = std::snprintf(text, sizeof(text), "(%d) %s", ::getpid(), what);
  const int more =
      std::vsnprintf(text + length, sizeof(text) - static_cast<std::size_t>(length) - 1, format, arguments);
  std::size_t whole = std::min(static_cast<std::size_t>(length + std::max(more, 0)), sizeof(text) - 2);
  text[whole++] = '\n';
  write_line(text, whole);
}

bool in_main_thread() {
  return ::syscall(SYS_gettid) == ::getpid();
}

}  // namespace

void log_init(int fd, unsigned level) {
  g_fd = fd;
  g_level = level;
  violation_count();  // mapped before the first fork
}

int log_fd() {
  return g_fd;
}
unsigned log_level() {
  return g_level;
}

void log_line_v(unsigned level, const char* format, std::va_list arguments) {
  static char buffer[8192];
  const int saved = errno;
  if (!in_main_thread()) {
    static const char kText[] = "violation: a thread that is not the main one logs\n";
    ++violation_count();
    write_line(kText, sizeof(kText) - 1);
    errno = saved;
    return;
  }
  if (level <= g_level) {
    const int pid = std::snprintf(buffer, sizeof(buffer), "(%d) ", ::getpid());
    const int text =
        std::vsnprintf(buffer + pid, sizeof(buffer) - static_cast<std::size_t>(pid), format, arguments);
    if (text >= 4096) violation("a log line of %d bytes", text);
    const auto whole = static_cast<std::size_t>(pid) + static_cast<std::size_t>(std::max(text, 0));
    write_line(buffer, std::min(whole, sizeof(buffer) - 1));
  }
  errno = saved;
}

void log_line(unsigned level, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  log_line_v(level, format, arguments);
  va_end(arguments);
}

void log_in_any_thread(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  write_text(in_main_thread() ? "" : "in a thread: ", format, arguments);
  va_end(arguments);
}

void violation(const char* format, ...) {
  ++violation_count();
  std::va_list arguments;
  va_start(arguments, format);
  write_text("violation: ", format, arguments);
  va_end(arguments);
}

unsigned violations() {
  return violation_count();
}

}  // namespace sluice::lookalike
