// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/printable.h"
#include "base/unique_fd.h"
#include "cli/check/check.h"
#include "cli/check/plugin_file.h"
#include "cli/command.h"
#include "cli/text.h"
#include "images/files/key.h"
#include "pipeline/arena.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/reactor/uring_reactor.h"

namespace sluice::cli {
namespace {

constexpr auto kAnswerTime = std::chrono::milliseconds(35);  // criu --version takes a few milliseconds
constexpr char kPluginName[] = "amdgpu_plugin.so";

std::string in_directories(const char* program, const std::string& list) {
  std::stringstream directories(list);
  for (std::string directory; std::getline(directories, directory, ':');) {
    std::string file = directory + "/" + program;
    if (!directory.empty() && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

bool has_capability(unsigned capability) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("CapEff:"))
      return (std::strtoull(line.c_str() + sizeof("CapEff:"), nullptr, 16) >> capability & 1U) != 0;
  }
  return false;  // unreached: another machine
}

constexpr unsigned kCapIpcLock = 14, kCapSysPtrace = 19, kCapSysAdmin = 21, kCapCheckpointRestore = 40;

Finding check_ring() {
  auto ring = UringReactor::make(4);
  if (!ring) {
    return {Weight::Warning, "io_uring", ring.error().what + ": threads do its work, slower",
            "allow it: sysctl kernel.io_uring_disabled=0, and in a container's seccomp profile"};
  }
  return {Weight::Good, "io_uring", (*ring)->features(), ""};
}

// What a dump of all GPUs needs at once.
struct Staging {
  std::uint64_t bytes = 0;
  std::string whose;
};
Staging staging_of(const settings::Config& config, std::size_t gpus) {
  if (gpus < 2) return {staging_bytes_of(config, 1), "per GPU"};
  return {staging_bytes_of(config, gpus), "for " + std::to_string(gpus) + " GPUs"};
}

Finding check_pinning(const Staging& staging) {
  const std::string need = bytes_text(staging.bytes) + " " + staging.whose;
  rlimit limit{};
  (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (has_capability(kCapIpcLock) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= staging.bytes)
    return {Weight::Good, "memlock", "staging memory may be pinned: " + need, ""};
  return {Weight::Warning, "memlock",
          "only " + bytes_text(limit.rlim_cur) + " may be locked, the staging memory is " + need +
              ": it is not registered with io_uring, which costs some speed",
          "raise the limit (ulimit -l unlimited), or run as root"};
}

Finding check_memory(const Staging& staging) {
  std::ifstream info("/proc/meminfo");
  std::uint64_t available = 0;
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) available = std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  }
  const std::string text = bytes_text(available) + " available, " + bytes_text(staging.bytes) +
                           " of staging memory needed " + staging.whose;
  if (available >= staging.bytes) return {Weight::Good, "memory", text, ""};
  return {Weight::Problem, "memory", text, "free memory, or lower SLUICE_STAGING_SIZE"};
}

// How fast contents are hashed: takes a few milliseconds, on more memory than the caches hold.
Finding check_checksum(const settings::Config& config, const ImageKeys& keys) {
  if (!config.checksum) {
    return {Weight::Warning, "checksum", "switched off (SLUICE_CHECKSUM): damaged images will not be noticed",
            "leave SLUICE_CHECKSUM on"};
  }
  const std::vector<std::byte> block(4 * kMiB, std::byte{1});
  const auto began = std::chrono::steady_clock::now();
  const Sum128 sum = keys.contents().of(block);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  return {Weight::Good, "checksum", rate_text(block.size() + (sum[0] & 0U), took.count()) + " on one CPU",
          ""};
}

// The key for the images.
Finding check_key(const settings::Config& config, const ImageKeys& keys) {
  if (!config.key_file)
    return {Weight::Good, "key", "none (SLUICE_KEY_FILE): images are protected against accidents only", ""};
  if (const auto usable = keys.usable(); !usable) {
    return {Weight::Problem, "key", usable.error().what,
            "make one (openssl rand -hex 32), mode 0600, or leave SLUICE_KEY_FILE out"};
  }
  return {Weight::Good, "key",
          "images are made with the key in " + printable(*config.key_file) + ", and no others restored", ""};
}

Finding check_capabilities() {
  if (has_capability(kCapSysAdmin) ||
      (has_capability(kCapCheckpointRestore) && has_capability(kCapSysPtrace)))
    return {Weight::Good, "permission", "criu may trace and dump other processes", ""};
  return {Weight::Problem, "permission", "this user may not dump processes with GPUs",
          "run as root on the host: criu needs CAP_SYS_PTRACE, and CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN "
          "in the initial user namespace"};
}

}  // namespace

CriuQuestion::CriuQuestion() : name_("criu"), began_(std::chrono::steady_clock::now()) {
  const char* path = std::getenv("PATH");
  path_ = in_directories("criu", path != nullptr ? path : "");
  if (path_.empty()) {
    path_ = in_directories("criu", "/usr/local/sbin:/usr/sbin");
    if (path_.empty()) return;
    name_ = path_;
  }
  std::array<int, 2> pipe_fds{};
  if (::pipe2(pipe_fds.data(), O_CLOEXEC) != 0) return;  // unreached: does not fail
  posix_spawn_file_actions_t actions;
  (void)posix_spawn_file_actions_init(&actions);
  (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  (void)posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  (void)posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDERR_FILENO);
  std::string version = "--version";
  std::array<char*, 3> arguments{path_.data(), version.data(), nullptr};
  if (posix_spawn(&pid_, path_.c_str(), &actions, nullptr, arguments.data(), environ) != 0) pid_ = -1;
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)::close(pipe_fds[1]);
  output_ = pipe_fds[0];
}

CriuQuestion::~CriuQuestion() {
  if (output_ >= 0) (void)::close(output_);
  if (pid_ < 0) return;
  (void)::kill(pid_, SIGKILL);
  (void)TEMP_FAILURE_RETRY(::waitpid(pid_, nullptr, 0));
}

CriuQuestion::Answer CriuQuestion::answer(const CriuBinary& binary) {
  if (path_.empty()) {
    return {{Weight::Problem, "criu", "no criu in the PATH",
             "install it (apt install criu), or name its directory in PATH", "criu-missing"},
            std::nullopt};
  }
  std::string text;
  const auto deadline = began_ + kAnswerTime;
  while (output_ >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    // Existing output is read, however late it is.
    pollfd ready{output_, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0))) <= 0)
      break;
    std::array<char, 512> part{};
    const ssize_t got = ::read(output_, part.data(), part.size());
    if (got <= 0 || text.size() > 4096) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  constexpr std::string_view kVersion = "Version: ";
  const std::size_t at = text.find(kVersion);
  const std::string version =
      at == std::string::npos ? binary.version
                              : text.substr(at + kVersion.size(), text.find('\n', at) - at - kVersion.size());
  if (version.empty()) {
    return {{Weight::Warning, "criu", path_ + " does not tell its version",
             "try " + path_ + " --version by hand", "criu-version"},
            std::nullopt};
  }
  CriuVersion told;
  (void)std::sscanf(version.c_str(), "%d.%d.%d", &told.major, &told.minor, &told.patch);
  if (told < CriuVersion{3, 17, 0}) {
    return {{Weight::Problem, "criu", path_ + ", version " + version + ", has no hooks for GPUs",
             "install 3.17 or newer; 4.0 and newer dump GPU memory beside the rest", "criu-too-old"},
            told};
  }
  const std::string note = told.major < 4 ? "; 4.0 and newer dump GPU memory beside the rest" : "";
  return {{Weight::Good, "criu", path_ + ", version " + version + note, ""}, told};
}

namespace {

// Where criu looks for plugins, in its order: the environment; the path it was built with; if its file does
// not tell that, the path we were built with. Its configuration files and its option -L come before all
// these, and are unknown here.
std::string plugin_directory(const CriuBinary& criu) {
  if (const char* named = std::getenv("CRIU_LIBS_DIR"); named != nullptr) return named;
  return criu.plugin_directory.value_or(SLUICE_PLUGIN_DIRECTORY);
}

std::optional<Finding> not_where_criu_looks(const std::string& directory, int err) {
  const std::string built_for = SLUICE_PLUGIN_DIRECTORY;
  if (err != ENOENT || directory == built_for || ::access((built_for + "/" + kPluginName).c_str(), R_OK) != 0)
    return std::nullopt;
  return Finding{
      Weight::Problem, "plugin", "criu looks in " + directory + ", the plugin is in " + built_for,
      "build it with -Dplugindir=" + directory + ", or name its directory with criu -L or CRIU_LIBS_DIR",
      "plugin-directory"};
}

// A plugin for amdgpu, in the directory that criu loads plugins from.
struct AmdgpuPlugin {
  std::string path;
  PluginFile file;

  bool is_ours() const { return !file.sluice_version.empty(); }
  std::string told() const {
    return path + (is_ours() ? ", sluice " + file.sluice_version : ", not sluice's");
  }
};

AmdgpuPlugin amdgpu_plugin(const std::string& path) {
  return {path, read_plugin_file(path)};
}

struct PluginsThere {
  std::vector<AmdgpuPlugin> amdgpu;  // in the order of the directory, in which criu loads them
  bool others = false;
};

PluginsThere plugins_in(const std::string& directory) {
  PluginsThere there;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (!path.native().ends_with(".so")) continue;
    AmdgpuPlugin plugin = amdgpu_plugin(path);
    if (plugin.file.is_amdgpu || path.filename() == kPluginName)
      there.amdgpu.push_back(std::move(plugin));
    else
      there.others = true;
  }
  return there;
}

// criu loads more than one amdgpu plugin.
Finding check_several(const std::vector<AmdgpuPlugin>& plugins, bool criu_chooses) {
  std::string text = "criu could load " + count_text(plugins.size(), "amdgpu plugin");
  for (const AmdgpuPlugin& plugin : plugins) text += "; " + plugin.told();
  const AmdgpuPlugin* taken = &plugins.front();
  if (criu_chooses) {
    std::set<std::uint32_t> versions;
    for (const AmdgpuPlugin& plugin : plugins) {
      const std::uint32_t version = plugin.file.implementation_version;
      if (!versions.insert(version).second) {
        text += ". This criu fails, because two have implementation version " + std::to_string(version);
        taken = nullptr;
        break;
      }
      if (version > taken->file.implementation_version) taken = &plugin;
    }
    if (taken != nullptr)
      text += ". It takes " + taken->path + ", whose implementation version is the highest";
  } else {
    text += ". It loads all of them, and takes " + taken->path + ", the first in the directory";
  }
  return {taken != nullptr && taken->is_ours() ? Weight::Warning : Weight::Problem, "plugin", text,
          "leave one there, and move the others to another directory", "plugin-twice"};
}

Finding check_loading(const AmdgpuPlugin& plugin) {
  if (!plugin.is_ours()) {
    return {Weight::Warning, "plugin", plugin.path + " is not sluice's: CRIU's own, or another",
            "install sluice's over it; there can be only one of this name", "plugin-of-others"};
  }
  void* const handle = ::dlopen(plugin.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {Weight::Problem, "plugin", std::string("cannot be loaded: ") + ::dlerror(),
            "install what it misses: a plugin that cannot be loaded breaks every criu run on this machine",
            "plugin-not-loadable"};
  }
  const bool described = ::dlsym(handle, "CR_PLUGIN_DESC") != nullptr;
  (void)::dlclose(handle);
  if (!described)
    return {Weight::Problem, "plugin", plugin.path + " has no plugin descriptor", "install it again",
            "plugin-not-loadable"};
  return {Weight::Good, "plugin", plugin.told(), ""};
}

Finding check_plugin_in(const std::string& directory, const std::vector<AmdgpuPlugin>& plugins,
                        bool criu_chooses) {
  if (plugins.size() > 1) return check_several(plugins, criu_chooses);
  const AmdgpuPlugin plugin =
      plugins.empty() ? amdgpu_plugin(directory + "/" + kPluginName) : plugins.front();
  if (::access(plugin.path.c_str(), R_OK) == 0) return check_loading(plugin);
  const int err = errno;
  if (auto elsewhere = not_where_criu_looks(directory, err)) return std::move(*elsewhere);
  return {Weight::Problem, "plugin", make_error(err, plugin.path).what,
          "install it there (meson install --tags plugin), or name its directory with criu -L or "
          "CRIU_LIBS_DIR",
          "plugin-missing"};
}

}  // namespace

PluginCheck check_plugin(const CriuBinary& criu) {
  const std::string directory = plugin_directory(criu);
  const PluginsThere there = plugins_in(directory);
  return {check_plugin_in(directory, there.amdgpu, criu.chooses_plugins), there.others};
}

Findings check_host(const settings::Config& config, const ImageKeys& keys, std::size_t gpus) {
  const Staging staging = staging_of(config, gpus);
  return {check_capabilities(),         check_ring(),           check_pinning(staging), check_memory(staging),
          check_checksum(config, keys), check_key(config, keys)};
}

}  // namespace sluice::cli
