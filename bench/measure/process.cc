// SPDX-License-Identifier: MIT
#include "measure/process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "base/units.h"

namespace sluice::bench {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// A line "Name:   123 kB" of a /proc file, in bytes.
std::uint64_t line_of(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":"))
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * kKiB;
  }
  return 0;
}

}  // namespace

double process_cpu_seconds() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

double thread_cpu_seconds() {
  timespec time{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::uint64_t resident_peak_bytes() {
  return line_of("/proc/self/status", "VmHWM");
}

void reset_resident_peak() {
  const UniqueFd fd(::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC));
  if (fd) (void)!::write(fd.get(), "5", 1);
}

std::uint64_t memory_line(const char* name) {
  return line_of("/proc/meminfo", name);
}

void touch_free_memory(std::uint64_t bytes) {
  const std::uint64_t take = std::min(bytes, memory_line("MemFree") / 10 * 8);
  void* memory = ::mmap(nullptr, take, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  (void)::madvise(memory, take, MADV_HUGEPAGE);  // as staging memory is
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for (std::uint64_t at = 0; at < take; at += page) static_cast<volatile char*>(memory)[at] = 1;
  (void)::munmap(memory, take);
}

}  // namespace sluice::bench
