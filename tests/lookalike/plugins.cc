// SPDX-License-Identifier: MIT
#include "lookalike/plugins.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "lookalike/log.h"
#include "lookalike/version.h"

namespace sluice::lookalike {
namespace {

struct Plugin {
  void* library = nullptr;
  const PluginDescriptor* descriptor = nullptr;
};

std::vector<Plugin> g_plugins;  // in load order
std::array<std::vector<const Plugin*>, kMostHooks> g_chains;
std::vector<std::string> g_added;  // dump
bool g_inventory_present = false;  // restore
std::vector<std::string> g_required;

constexpr std::array<const char*, kMostHooks> kNames = {
    "DUMP_UNIX_SK",      "RESTORE_UNIX_SK",    "DUMP_EXT_FILE",     "RESTORE_EXT_FILE", "DUMP_EXT_MOUNT",
    "RESTORE_EXT_MOUNT", "DUMP_EXT_LINK",      "HANDLE_DEVICE_VMA", "UPDATE_VMA_MAP",   "RESUME_DEVICES_LATE",
    "PAUSE_DEVICES",     "CHECKPOINT_DEVICES", "POST_FORKING",      "RESTORE_INIT",     "DUMP_DEVICES_LATE"};

// Walks the chain of a hook. `call(function pointer)` is the call itself.
template <class Function, class Call>
int run(Hook hook, Call call) {
  if (!kHostVersion.has(hook)) return kNotSupported;
  int result = kNotSupported;
  for (const Plugin* plugin : g_chains[hook]) {
    result = call(reinterpret_cast<Function>(plugin->descriptor->hooks[hook]));
    log_line(kDebug, "plugin: `%s' hook %u %s -> %d\n", plugin->descriptor->name, static_cast<unsigned>(hook),
             kNames[hook], result);
    if (result != kNotSupported) break;
  }
  return result;
}

bool verified(const PluginDescriptor& descriptor, const char* path) {
  if (descriptor.version > kPluginVersion || descriptor.version == kOldPluginVersion) {
    log_line(kError, "Error: Corrupted plugin %s: version 0x%x, supported up to 0x%x\n", path,
             descriptor.version, kPluginVersion);
    return false;
  }
  if (descriptor.max_hooks > kHostVersion.hooks) {
    log_line(kError, "Error: Corrupted plugin %s has %u assigned while max %u supported\n", path,
             descriptor.max_hooks, kHostVersion.hooks);
    return false;
  }
  return true;
}

int load(const std::string& path, Stage stage) {
  void* library = ::dlopen(path.c_str(), RTLD_LAZY);
  if (library == nullptr) {
    log_line(kError, "Error: Can't open plugin: %s\n", ::dlerror());
    return -1;
  }
  const auto* descriptor = static_cast<const PluginDescriptor*>(::dlsym(library, "CR_PLUGIN_DESC"));
  if (descriptor == nullptr) {
    log_line(kError, "Error: %s has no CR_PLUGIN_DESC\n", path.c_str());
    ::dlclose(library);
    return -1;
  }
  if (!verified(*descriptor, path.c_str())) {
    ::dlclose(library);
    return -1;
  }
  log_line(kInfo, "Plugin \"%s\" (version %u hooks %u)\n", descriptor->name, descriptor->version,
           descriptor->max_hooks);
  // Listed before init() and chained after it: an init() that fails is not followed by exit().
  g_plugins.push_back({library, descriptor});
  const int result = descriptor->init == nullptr ? 0 : descriptor->init(stage);
  log_line(kDebug, "plugin: `%s' init %d -> %d\n", descriptor->name, static_cast<int>(stage), result);
  if (result != 0) {
    g_plugins.pop_back();
    ::dlclose(library);
    return -1;
  }
  return 0;
}

}  // namespace

int plugins_init(const std::string& directory, Stage stage) {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(directory.c_str()), &::closedir);
  if (!entries) {
    log_line(kError, "Error: Can't open directory %s: %s\n", directory.c_str(), std::strerror(errno));
    return -1;
  }
  g_plugins.reserve(16);
  int result = 0;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name(entry->d_name);
    if (!name.ends_with(".so")) continue;
    result = load(directory + "/" + std::string(name), stage);
    if (result != 0) break;
  }
  if (result != 0) {
    plugins_fini(stage, -1);
    return result;
  }
  for (const Plugin& plugin : g_plugins) {
    for (unsigned hook = 0; hook < plugin.descriptor->max_hooks; ++hook) {
      if (plugin.descriptor->hooks[hook] != nullptr) g_chains[hook].push_back(&plugin);
    }
  }
  return 0;
}

void plugins_fini(Stage stage, int ret) {
  for (auto& chain : g_chains) chain.clear();
  for (const Plugin& plugin : g_plugins) {
    log_line(kDebug, "plugin: `%s' exit %d ret %d\n", plugin.descriptor->name, static_cast<int>(stage), ret);
    if (plugin.descriptor->exit != nullptr) plugin.descriptor->exit(stage, ret);
    ::dlclose(plugin.library);
  }
  g_plugins.clear();
}

bool plugins_loaded() {
  return !g_plugins.empty();
}

int run_dump_ext_file(int fd, int id) {
  using Function = int (*)(int, int);
  return run<Function>(kDumpExtFile, [&](Function hook) { return hook(fd, id); });
}

int run_restore_ext_file(int id, bool* retry_needed) {
  if (kHostVersion.retry) {
    using Function = int (*)(int, bool*);
    return run<Function>(kRestoreExtFile, [&](Function hook) { return hook(id, retry_needed); });
  }
  // A host with one argument leaves garbage where a plugin compiled for two would look: here an address that
  // faults.
  using Garbage = int (*)(int, void*);
  return run<Garbage>(kRestoreExtFile, [&](Garbage hook) { return hook(id, reinterpret_cast<void*>(8)); });
}

int run_handle_device_vma(int fd, const struct stat* status) {
  using Function = int (*)(int, const struct stat*);
  return run<Function>(kHandleDeviceVma, [&](Function hook) { return hook(fd, status); });
}

int run_update_vma_map(const char* path, std::uint64_t address, std::uint64_t old_pgoff,
                       std::uint64_t* new_pgoff, int* plugin_fd) {
  using Function = int (*)(const char*, std::uint64_t, std::uint64_t, std::uint64_t*, int*);
  return run<Function>(kUpdateVmaMap,
                       [&](Function hook) { return hook(path, address, old_pgoff, new_pgoff, plugin_fd); });
}

int run_pid_hook(Hook hook, int pid) {
  using Function = int (*)(int);
  return run<Function>(hook, [&](Function function) { return function(pid); });
}

int run_void_hook(Hook hook) {
  using Function = int (*)();
  return run<Function>(hook, [&](Function function) { return function(); });
}

const std::vector<std::string>& inventory_added() {
  return g_added;
}
void inventory_free() {
  g_added.clear();
}

void inventory_load(bool present, std::vector<std::string> names) {
  g_inventory_present = present;
  g_required = std::move(names);
}

int inventory_add(const char* name) {
  g_added.emplace_back(name);
  return 0;
}

bool inventory_check_and_remove(const char* name, unsigned long length) {
  if (!g_inventory_present) return true;  // an image of an older host: every plugin is enabled
  const auto found = std::find_if(g_required.begin(), g_required.end(), [&](const std::string& required) {
    return std::strncmp(required.c_str(), name, length) == 0;
  });
  if (found == g_required.end()) return false;
  g_required.erase(found);
  return true;
}

int inventory_check_left() {
  for (const std::string& name : g_required)
    log_line(kError, "Error: Missing required plugin: %s\n", name.c_str());
  return g_required.empty() ? 0 : -1;
}

}  // namespace sluice::lookalike
