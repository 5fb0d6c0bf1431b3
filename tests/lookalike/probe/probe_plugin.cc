// SPDX-License-Identifier: MIT
// A plugin that writes down what the host does with it: every call, in which process, with what arguments. It
// restores device files by opening them anew, so that a restore gets to its end (without any GPU state).
//
// By environment: PROBE_LOG names the file lines are appended to; PROBE_HOOKS sets max_hooks (default: as
// many as the host knows); PROBE_FAIL=HOOK makes that hook (or "init") answer -EIO; PROBE_HANG=HOOK makes
// that one, which has a pid, wait for ever; PROBE_UPSTREAM=early or late makes it restore images of the
// amdgpu plugin as upstream's versions look for them: they open the metadata, and the contents of a KFD
// process in RESTORE_EXT_FILE or in RESUME_DEVICES_LATE; PROBE_THREAD=1 leaves a thread running after
// RESTORE_EXT_FILE; PROBE_FD=1 leaves a descriptor open there.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr unsigned kAllHooks = 15;
constexpr int kNotMine = -ENOTSUP;
constexpr const char* kUpstreamsName = "amdgpu_plugin";

pid_t g_main = 0;
unsigned g_host_hooks = 10;

struct Descriptor {
  const char* name;
  int (*init)(int);
  void (*exit)(int, int);
  unsigned version;
  unsigned max_hooks;
  void* hooks[kAllHooks];
};

void note(const std::string& line) {
  const char* path = std::getenv("PROBE_LOG");
  if (path == nullptr) return;
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::string text = (::getpid() == g_main ? "main " : "task ") + line + "\n";
  (void)!::write(fd, text.data(), text.size());
  ::close(fd);
}

// Whether it stands in for upstream's plugin; `when`: that opens contents then.
bool is_upstreams(const char* when) {
  const char* const opens = std::getenv("PROBE_UPSTREAM");
  return opens != nullptr && (when == nullptr || std::strcmp(opens, when) == 0);
}

int answer(const char* hook, int ordinary) {
  const char* failing = std::getenv("PROBE_FAIL");
  return failing != nullptr && std::strcmp(failing, hook) == 0 ? -EIO : ordinary;
}

int image_dir() {
  const auto get = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "criu_get_image_dir"));
  return get == nullptr ? -1 : get();
}

bool exported(const char* symbol) {
  return ::dlsym(RTLD_DEFAULT, symbol) != nullptr;
}

unsigned host_hooks() {
  void* list = ::dlsym(RTLD_DEFAULT, "cr_plugin_ctl");
  Dl_info info;
  ElfW(Sym)* symbol = nullptr;
  if (list == nullptr || ::dladdr1(list, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0)
    return 10;
  return static_cast<unsigned>((symbol->st_size - 16) / 16);
}

int init(int stage) {
  g_main = ::getpid();
  note("init " + std::to_string(stage) + " hooks " + std::to_string(g_host_hooks));
  for (const char* symbol : {"add_inventory_plugin", "has_children", "dump_criu_run_id",
                             "dont_use_freeze_cgroup", "fdstore_add", "opts"}) {
    note(std::string("symbol ") + symbol + (exported(symbol) ? " yes" : " no"));
  }
  if (stage == 0) {
    if (const auto add =
            reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "add_inventory_plugin"))) {
      add("probe_plugin");
    }
  }
  if (stage == 2) {
    using Check = bool (*)(const char*, std::size_t);
    if (const auto check =
            reinterpret_cast<Check>(::dlsym(RTLD_DEFAULT, "check_and_remove_inventory_plugin"))) {
      const char* name = is_upstreams(nullptr) ? kUpstreamsName : "probe_plugin";
      note(std::string("inventory ") + (check(name, std::strlen(name)) ? "yes" : "no"));
    }
  }
  return answer("init", 0);
}

void finish(int stage, int ret) {
  note("exit " + std::to_string(stage) + " " + std::to_string(ret));
}

// The name by which a device file is opened again.
std::string device_path(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISCHR(status.st_mode)) return {};
  if (major(status.st_rdev) == 226) return "/dev/dri/renderD" + std::to_string(minor(status.st_rdev));
  return "/dev/kfd";
}

std::string image_name(int id) {
  return "probe-" + std::to_string(id) + ".img";
}

int dump_ext_file(int fd, int id) {
  const std::string path = device_path(fd);
  note("DUMP_EXT_FILE " + std::to_string(id) + " " + path);
  if (path.empty()) return kNotMine;
  const int image =
      ::openat(image_dir(), image_name(id).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (image < 0) return -errno;
  const bool wrote = ::write(image, path.data(), path.size()) == static_cast<ssize_t>(path.size());
  ::close(image);
  return wrote ? answer("DUMP_EXT_FILE", 0) : -EIO;
}

void* wait_for_ever(void*) {
  for (;;) ::pause();
}

// The error of upstream's plugin if a file with that beginning is missing.
int look_for(const std::string& begin) {
  const int fd = ::openat(image_dir(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const directory = fd < 0 ? nullptr : ::fdopendir(fd);
  if (directory == nullptr) return -EIO;
  int found = -ENOENT;
  while (const dirent* entry = ::readdir(directory)) {
    if (std::strncmp(entry->d_name, begin.c_str(), begin.size()) == 0) found = 0;
  }
  ::closedir(directory);
  return found;
}

int restore_as_upstream(int id) {
  const std::string number = std::to_string(id);
  if (look_for("amdgpu-kfd-" + number + ".img") == 0) {
    const int missing = is_upstreams("early") ? look_for("amdgpu-pages-" + number + "-") : 0;
    return missing != 0 ? missing : ::open("/dev/kfd", O_RDWR | O_CLOEXEC);
  }
  const int missing = look_for("amdgpu-renderD-" + number + ".img");
  return missing != 0 ? missing : ::open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
}

int restore_ext_file(int id, bool* retry) {
  if (g_host_hooks >= 14) *retry = false;
  if (is_upstreams(nullptr)) return restore_as_upstream(id);
  char path[64] = {};
  const int image = ::openat(image_dir(), image_name(id).c_str(), O_RDONLY | O_CLOEXEC);
  if (image < 0) return kNotMine;
  const bool known = ::read(image, path, sizeof(path) - 1) > 0;
  ::close(image);
  note("RESTORE_EXT_FILE " + std::to_string(id) + " " + path);
  if (!known) return -EIO;
  if (std::getenv("PROBE_THREAD") != nullptr) {
    pthread_t thread;
    ::pthread_create(&thread, nullptr, wait_for_ever, nullptr);
    ::pthread_setname_np(thread, "probe");
  }
  if (std::getenv("PROBE_FD") != nullptr) (void)::fcntl(image_dir(), F_DUPFD_CLOEXEC, 500);
  return answer("RESTORE_EXT_FILE", ::open(path, O_RDWR | O_CLOEXEC));
}

int handle_device_vma(int fd, const struct stat* status) {
  note("HANDLE_DEVICE_VMA " + device_path(fd) + (S_ISCHR(status->st_mode) ? "" : " not a device"));
  return answer("HANDLE_DEVICE_VMA", 0);
}

int update_vma_map(const char* path, std::uint64_t, std::uint64_t, std::uint64_t*, int*) {
  note(std::string("UPDATE_VMA_MAP ") + path);
  return answer("UPDATE_VMA_MAP", 0);
}

template <int Number>
int pid_hook(int) {
  constexpr const char* kNames[] = {"RESUME_DEVICES_LATE", "PAUSE_DEVICES", "CHECKPOINT_DEVICES", "", "",
                                    "DUMP_DEVICES_LATE"};
  const char* name = kNames[Number - 9];
  itimerval alarm{};
  (void)::getitimer(ITIMER_REAL, &alarm);
  note(std::string(name) + (timerisset(&alarm.it_value) ? " under the alarm" : ""));
  const char* hanging = std::getenv("PROBE_HANG");
  while (hanging != nullptr && std::strcmp(hanging, name) == 0) (void)::pause();
  if (Number == 9 && is_upstreams("late")) return look_for("amdgpu-pages-");
  return answer(name, kNotMine);
}

int post_forking() {
  note("POST_FORKING");
  return answer("POST_FORKING", 0);
}

int restore_init() {
  note("RESTORE_INIT");
  return answer("RESTORE_INIT", 0);
}

template <class Function>
void* pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) Descriptor CR_PLUGIN_DESC;
Descriptor CR_PLUGIN_DESC = {
    "probe_plugin",
    init,
    finish,
    0x000200,
    kAllHooks,
    {nullptr, nullptr, pointer(dump_ext_file), pointer(restore_ext_file), nullptr, nullptr, nullptr,
     pointer(handle_device_vma), pointer(update_vma_map), pointer(pid_hook<9>), pointer(pid_hook<10>),
     pointer(pid_hook<11>), pointer(post_forking), pointer(restore_init), pointer(pid_hook<14>)},
};

// Runs within dlopen(), before the host looks at the descriptor.
__attribute__((constructor)) static void declare_hooks() {
  g_host_hooks = host_hooks();
  const char* asked = std::getenv("PROBE_HOOKS");
  if (is_upstreams(nullptr)) CR_PLUGIN_DESC.name = kUpstreamsName;
  CR_PLUGIN_DESC.max_hooks = asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : g_host_hooks;
}
