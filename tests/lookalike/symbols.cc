// SPDX-License-Identifier: MIT
// What the criu executable exports to plugins, per version: names, types and sizes as found in Debian's
// binaries (3.17.1, 4.1.1, 4.2.1) and, for 3.19, 4.0 and what comes after 4.2, in sources. The only file of
// the host that is compiled once per version; everything not named in host_symbols_*.list stays inside.
//
// HOST_VERSION: 3171, 319, 400, 411, 420 or 999 (criu-dev). Symbols whose layout differs between versions and
// that a plugin must not look into are opaque bytes of the right size.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lookalike/log.h"
#include "lookalike/plugins.h"
#include "lookalike/restore.h"
#include "lookalike/service_fds.h"
#include "lookalike/stream.h"
#include "lookalike/version.h"

#if HOST_VERSION == 3171
#define HOST_HOOKS 10
#define HOST_OPTS_BYTES 472
#elif HOST_VERSION == 319
#define HOST_HOOKS 10
#define HOST_OPTS_BYTES 504
#elif HOST_VERSION == 400 || HOST_VERSION == 411
#define HOST_HOOKS 12
#define HOST_OPTS_BYTES 504
#elif HOST_VERSION == 420
#define HOST_HOOKS 13
#define HOST_OPTS_BYTES 512
#elif HOST_VERSION == 999
#define HOST_HOOKS 15
#define HOST_OPTS_BYTES 512
#else
#error "HOST_VERSION must be 3171, 319, 400, 411, 420 or 999"
#endif

namespace sluice::lookalike {

#if HOST_VERSION == 3171
const HostVersion kHostVersion = {"3.17.1", HOST_HOOKS, true, false, false, true, false, 14, false};
#elif HOST_VERSION == 319
const HostVersion kHostVersion = {"3.19", HOST_HOOKS, true, false, false, false, false, 15, false};
#elif HOST_VERSION == 400
const HostVersion kHostVersion = {"4.0", HOST_HOOKS, true, false, false, false, false, 15, true};
#elif HOST_VERSION == 411
const HostVersion kHostVersion = {"4.1.1", HOST_HOOKS, false, true, false, false, false, 15, false};
#elif HOST_VERSION == 420
const HostVersion kHostVersion = {"4.2", HOST_HOOKS, false, true, true, false, false, 15, false};
#else
const HostVersion kHostVersion = {"dev", HOST_HOOKS, false, true, true, false, true, 15, false};
#endif

}  // namespace sluice::lookalike

namespace lookalike = sluice::lookalike;

extern "C" {

struct list_head {
  list_head* next;
  list_head* prev;
};

// Plugins measure it to learn how many hooks the host knows.
struct {
  list_head head;
  list_head hook_chain[HOST_HOOKS];
} cr_plugin_ctl;
static_assert(sizeof(cr_plugin_ctl) == 16 + 16 * HOST_HOOKS);

char opts[HOST_OPTS_BYTES];
char kdat[512];
void* root_item = nullptr;
void* current = nullptr;
void* task_entries = nullptr;
#if HOST_VERSION == 3171 || HOST_VERSION == 319 || HOST_VERSION == 400
std::uint64_t criu_run_id = 0x5eed;
#else
char criu_run_id[37] = "5eed5eed-0000-4000-8000-000000000000";
char dump_criu_run_id[37] = "5eed5eed-0000-4000-8000-000000000000";
list_head inventory_plugins_list = {&inventory_plugins_list, &inventory_plugins_list};
#endif

int criu_get_image_dir(void);
int get_service_fd(int type);
int install_service_fd(int type, int fd);
int close_service_fd(int type);
bool is_any_service_fd(int fd);
int service_fd_rlim_cur(void);
int img_streamer_open(char* name, int flags);
int fdstore_add(int fd);
int fdstore_get(int id);
int find_unused_fd_pid(pid_t pid);
void print_on_level(unsigned level, const char* format, ...);
unsigned log_get_loglevel(void);
int log_get_fd(void);
void* pstree_item_by_virt(pid_t pid);
void* pstree_item_by_real(pid_t pid);
void* shmalloc(std::size_t bytes);
void shfree_last(void* pointer);
int open_parent(int directory, int* parent);
void rlimit_unlimit_nofile(void);
int read_fd_link(int fd, char* text, std::size_t bytes);

int criu_get_image_dir(void) {
  return lookalike::service(lookalike::kImageFd);
}
int get_service_fd(int type) {
  return lookalike::service(type);
}
int install_service_fd(int type, int fd) {
  lookalike::install_service(type, fd);
  return lookalike::service(type);
}
int close_service_fd(int type) {
  lookalike::close_service(type);
  return 0;
}
bool is_any_service_fd(int fd) {
  return lookalike::is_service(fd);
}
int service_fd_rlim_cur(void) {
  return lookalike::service_limit();
}

int img_streamer_open(char* name, int flags) {
  return lookalike::stream_open(name, flags);
}

int fdstore_add(int fd) {
  return lookalike::fdstore_add_fd(fd);
}
int fdstore_get(int id) {
  return lookalike::fdstore_get_fd(id);
}
int find_unused_fd_pid(pid_t) {
  return lookalike::first_free_task_fd();
}

void print_on_level(unsigned level, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  lookalike::log_line_v(level, format, arguments);
  va_end(arguments);
}
unsigned log_get_loglevel(void) {
  return lookalike::log_level();
}
int log_get_fd(void) {
  return lookalike::log_fd();
}

// There is no tree in this host: no plugin can do anything with a pointer into it.
void* pstree_item_by_virt(pid_t) {
  return nullptr;
}
void* pstree_item_by_real(pid_t) {
  return nullptr;
}

// Disabled in a restored task, where CRIU stops with a BUG.
void* shmalloc(std::size_t) {
  lookalike::log_line(lookalike::kError, "Error: BUG: shmalloc\n");
  std::abort();
}
void shfree_last(void*) {}

int open_parent(int directory, int* parent) {
  *parent = ::openat(directory, "parent", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *parent >= 0 || errno == ENOENT ? 0 : -1;
}

void rlimit_unlimit_nofile(void) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

int read_fd_link(int fd, char* text, std::size_t bytes) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(path, text, bytes);
  if (length < 0) return -1;
  if (static_cast<std::size_t>(length) == bytes) return -1;
  text[length] = 0;
  return static_cast<int>(length);
}

void network_unlock(void);
void network_unlock(void) {
  lookalike::log_line(lookalike::kInfo, "Unlock network\n");
}

// Exported by CRIU, of no use to a plugin in this host: present, so that whoever looks for them finds what
// CRIU has.
#define HOST_UNUSABLE(name)                                                           \
  [[noreturn]] void name(void);                                                       \
  void name(void) {                                                                   \
    lookalike::log_line(lookalike::kError, "Error: %s is not offered here\n", #name); \
    std::abort();                                                                     \
  }
HOST_UNUSABLE(send_fds)
HOST_UNUSABLE(__recv_fds)
HOST_UNUSABLE(cr_system)
HOST_UNUSABLE(run_command)
HOST_UNUSABLE(call_in_child_process)
HOST_UNUSABLE(switch_ns)
HOST_UNUSABLE(alarm_timeouted)
HOST_UNUSABLE(parse_pid_status)
#if HOST_VERSION != 3171
HOST_UNUSABLE(close_fds)
HOST_UNUSABLE(sk_setbufs)
HOST_UNUSABLE(cr_fchown)
#endif

#if HOST_VERSION == 400
void dont_use_freeze_cgroup(void);
void dont_use_freeze_cgroup(void) {}  // this host always seizes by ptrace
#endif

#if HOST_VERSION != 3171 && HOST_VERSION != 319 && HOST_VERSION != 400
int add_inventory_plugin(const char* name);
bool check_and_remove_inventory_plugin(const char* name, std::size_t length);
int check_inventory_plugins(void);
void free_inventory_plugins_list(void);
void set_compel_interrupt_only_mode(void);

int add_inventory_plugin(const char* name) {
  return lookalike::inventory_add(name);
}
bool check_and_remove_inventory_plugin(const char* name, std::size_t length) {
  return lookalike::inventory_check_and_remove(name, length);
}
int check_inventory_plugins(void) {
  return lookalike::inventory_check_left();
}
void free_inventory_plugins_list(void) {
  lookalike::inventory_free();
}
void set_compel_interrupt_only_mode(void) {}  // this host always seizes by ptrace
#endif

#if HOST_VERSION >= 420
bool has_children(void* item);
bool has_children(void*) {
  return false;
}
#endif

}  // extern "C"
