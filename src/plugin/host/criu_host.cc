// SPDX-License-Identifier: MIT
#include "plugin/host/criu_host.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "base/printable.h"

// Symbols of the host, as its headers declare them. All are weak: a missing one is a null pointer and does
// not fail dlopen.
extern "C" {
[[gnu::weak]] int criu_get_image_dir(void);
[[gnu::weak]] int get_service_fd(int type);
[[gnu::weak]] int find_unused_fd_pid(int pid);
[[gnu::weak]] int img_streamer_open(char* filename, int flags);
[[gnu::weak]] int fdstore_add(int fd);
[[gnu::weak]] int fdstore_get(int id);
[[gnu::weak]] int add_inventory_plugin(const char* name);
[[gnu::weak]] void network_unlock(void);
[[gnu::weak]] int cr_fchown(int fd, unsigned int uid, unsigned int gid);
[[gnu::weak]] bool check_and_remove_inventory_plugin(const char* name, std::size_t length);
[[gnu::weak]] void print_on_level(unsigned int level, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
}

namespace sluice::plugin {

namespace {

constexpr const char* kName = "amdgpu_plugin";  // upstream's: images stay interchangeable
// Outside any hook, such as at the process' end.
constexpr const char* kNoHook = "end";
constexpr unsigned kOldestHookCount = 10;
constexpr int kImageStreamerServiceFd = 3, kProcServiceFd = 4;  // the same in every version

const char* running_hook = kNoHook;
const char* name_without_host = kName;
Level last_without_host = Level::Debug;

unsigned read_hook_count() {
  void* control = dlsym(RTLD_DEFAULT, "cr_plugin_ctl");
  if (control == nullptr) return kOldestHookCount;
  Dl_info info;
  ElfW(Sym)* symbol = nullptr;
  // unreached: another machine
  if (dladdr1(control, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0 || symbol == nullptr) {
    return kOldestHookCount;
  }
  constexpr std::size_t kListHead = 2 * sizeof(void*);
  const std::size_t size = symbol->st_size;
  if (size < (kOldestHookCount + 1) * kListHead || size % kListHead != 0 || size > 256 * kListHead)
    return kOldestHookCount;  // unreached: another machine
  return static_cast<unsigned>(size / kListHead - 1);
}

}  // namespace

unsigned host_hook_count() {
  static const unsigned count = read_hook_count();
  return count;
}

bool host_takes_vma_fd() {
  return host_hook_count() > kOldestHookCount || ::cr_fchown != nullptr;
}

RunningHook::RunningHook(const char* name) {
  running_hook = name;
}

RunningHook::~RunningHook() {
  running_hook = kNoHook;
}

// Whatever the text contains, it stays one line and cannot command a terminal. Allocates nothing, because the
// line may be about lack of memory.
void log_line(Level level, std::string_view text) {
  std::array<char, kLongestLine> line;
  text = text.substr(0, line.size());
  std::transform(text.begin(), text.end(), line.begin(), [](char c) { return printable(c); });
  const int length = static_cast<int>(text.size());
  const bool is_error = level == Level::Error;
  const char* const sign = is_error ? "Error (" : "";
  const char* const where = is_error ? running_hook : "";
  const char* const end = is_error ? "): " : "";
  constexpr char kFormat[] = "%s: %s%s%s%.*s\n";
  if (print_on_level != nullptr) {
    print_on_level(static_cast<unsigned>(level), kFormat, kName, sign, where, end, length, line.data());
  } else if (level <= last_without_host) {
    (void)std::fprintf(stderr, kFormat, name_without_host, sign, where, end, length, line.data());
  }
}

void log_without_host(const char* name, Level last) {
  name_without_host = name;
  last_without_host = last;
}

void log_text(Level level, std::string_view text) {
  while (!text.empty()) {
    const std::size_t newline = std::min(text.find('\n'), text.size());
    log_line(level, text.substr(0, newline));
    text.remove_prefix(std::min(newline + 1, text.size()));
  }
}

void log_lines(const LogLines& lines) {
  for (const LogLine& line : lines) log_line(line.level, line.text);
}

HeldAlarm::HeldAlarm() {
  const itimerval none{};
  (void)::setitimer(ITIMER_REAL, &none, &left_);
}

HeldAlarm::~HeldAlarm() {
  if (timerisset(&left_.it_value)) (void)::setitimer(ITIMER_REAL, &left_, nullptr);
}

int proc_fd() {
  return get_service_fd != nullptr ? get_service_fd(kProcServiceFd) : -1;
}

int image_dir_fd() {
  return criu_get_image_dir != nullptr ? criu_get_image_dir() : -1;
}

int first_unused_fd(int pid) {
  return find_unused_fd_pid != nullptr ? find_unused_fd_pid(pid) : -1;
}

int fdstore_add(int fd) {
  return ::fdstore_add != nullptr ? ::fdstore_add(fd) : -1;
}

int fdstore_get(int id) {
  return ::fdstore_get != nullptr ? ::fdstore_get(id) : -1;
}

bool streaming() {
  return get_service_fd != nullptr && get_service_fd(kImageStreamerServiceFd) >= 0;
}

bool streamer_ends_within(int milliseconds) {
  pollfd streamer{get_service_fd(kImageStreamerServiceFd), 0, 0};
  // unreached: another machine
  return ::poll(&streamer, 1, milliseconds) > 0 && (streamer.revents & POLLHUP) != 0;
}

// The host compares the flags with its mode and aborts on others. About a lost streamer it would log, which
// only the main thread may do.
int host_open_stream(const std::string& name, bool dump) {
  if (img_streamer_open == nullptr) return -ENOSYS;
  if (streamer_ends_within(0)) return -ECONNRESET;
  std::string copy = name;
  return img_streamer_open(copy.data(), dump ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY);
}

void end_host() {
  if (network_unlock != nullptr) network_unlock();
  std::exit(EXIT_FAILURE);
}

Result<void> inventory_add_self() {
  if (add_inventory_plugin == nullptr || add_inventory_plugin(kName) == 0) return {};
  return Error{
      ENOMEM,
      formatted("CRIU could not add {} to its inventory image, so it could not restore GPU processes; free "
                "memory, and dump again [SL-D06]",
                kName)};
}

bool inventory_says_not_needed() {
  return check_and_remove_inventory_plugin != nullptr &&
         !check_and_remove_inventory_plugin(kName, std::char_traits<char>::length(kName));
}

}  // namespace sluice::plugin
