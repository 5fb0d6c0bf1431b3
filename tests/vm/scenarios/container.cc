// SPDX-License-Identifier: MIT
#include "container.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <system_error>

#include "settings.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kDrmMajor = 226;

void check(int result, const std::string& what) {
  if (result != 0) throw std::system_error(errno, std::generic_category(), what);
}

void make_node(const fs::path& path, dev_t device) {
  fs::create_directories(path.parent_path());
  check(::mknod(path.c_str(), S_IFCHR | 0666, device), "mknod " + path.string());
}

void change_root(const fs::path& root) {
  check(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "private mounts");
  check(::mount(root.c_str(), root.c_str(), nullptr, MS_BIND, nullptr), "bind of the root");
  check(::mount("proc", (root / "proc").c_str(), "proc", 0, nullptr), "mount of /proc");
  check(::mount("sysfs", (root / "sys").c_str(), "sysfs", 0, nullptr), "mount of /sys");
  check(::chdir(root.c_str()), "chdir");
  // The old root ends on top of the new one, and goes.
  check(static_cast<int>(::syscall(SYS_pivot_root, ".", ".")), "pivot_root");
  check(::umount2(".", MNT_DETACH), "umount of the old root");
  check(::chdir("/"), "chdir");
}

}  // namespace

std::vector<fs::path> files_of_program(const fs::path& program) {
  const fs::path list = fs::temp_directory_path() / "loaded-objects";
  fs::remove(list);
  Launch loader;
  loader.arguments = {program.string()};
  loader.environment = {{"LD_TRACE_LOADED_OBJECTS", "1"}};
  loader.output = list;
  if (run(loader) != 0)
    throw std::runtime_error("the loader does not list the libraries of " + program.string());
  std::vector<fs::path> files = {program};
  std::istringstream words(read_file(list));
  for (std::string word; words >> word;) {
    // "libc.so.6 => /lib/libc.so.6 (0x...)" and "/lib64/ld-linux-x86-64.so.2 (0x...)"
    if (word.front() == '/') files.emplace_back(word);
  }
  return files;
}

void copy_below(const fs::path& root, const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    const fs::path target = root / file.relative_path();
    fs::create_directories(target.parent_path());
    fs::copy_file(file, target, fs::copy_options::overwrite_existing);
  }
}

Container::Container(fs::path root, const std::vector<unsigned>& render_minors) : root_(std::move(root)) {
  for (const char* name : {"proc", "sys", "dev/shm", "tmp", "run"}) fs::create_directories(root_ / name);
  copy_below(root_, files_of_program(settings().programs / "gpu-subject"));
  struct stat kfd {};
  check(::stat("/dev/kfd", &kfd), "/dev/kfd");
  make_node(root_ / "dev/null", makedev(1, 3));
  make_node(root_ / "dev/kfd", kfd.st_rdev);
  for (const unsigned minor : render_minors)
    make_node(root_ / "dev/dri" / ("renderD" + std::to_string(minor)), makedev(kDrmMajor, minor));
}

Container::~Container() {
  if (mounted_) (void)::umount2(root_.c_str(), MNT_DETACH);
}

Launch Container::launch(unsigned more, std::function<void()> prepare) const {
  Launch launch;
  launch.namespaces = CLONE_NEWNS | more;
  launch.prepare = [root = root_, prepare = std::move(prepare)] {
    if (prepare) prepare();
    change_root(root);
  };
  return launch;
}

Strings Container::before_restore() {
  if (!mounted_) {
    check(::mount(root_.c_str(), root_.c_str(), nullptr, MS_BIND, nullptr), "bind of the root");
    mounted_ = true;
    check(::mount(nullptr, root_.c_str(), nullptr, MS_PRIVATE, nullptr), "private root");
  }
  return {"--root", root_.string()};
}

DeviceCgroup::DeviceCgroup(fs::path directory, const Strings& denied) : directory_(std::move(directory)) {
  fs::create_directories(directory_);
  check(::mount("cgroup", directory_.c_str(), "cgroup", 0, "devices"), "mount of the devices controller");
  box_ = directory_ / "box";
  fs::create_directory(box_);
  for (const std::string& line : denied) write_file(box_ / "devices.deny", line);
}

DeviceCgroup::~DeviceCgroup() {
  (void)::rmdir(box_.c_str());
  (void)::umount(directory_.c_str());
}

void DeviceCgroup::allow(const Strings& lines) const {
  for (const std::string& line : lines) write_file(box_ / "devices.allow", line);
}

void DeviceCgroup::enter() const {
  write_file(box_ / "tasks", "0");
}

}  // namespace sluice::vm_test
