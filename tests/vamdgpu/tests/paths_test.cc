// SPDX-License-Identifier: MIT
// Every name wrapper of the front, called directly, through libstdc++ and through libdrm, on a machine with
// two CPU nodes and three GPUs: the second is hidden by the device cgroup, the third has render minor 140.
// The program makes the machine and runs itself again on it, with the library preloaded.
#include <amdgpu.h>
#include <amdgpu_drm.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <xf86drm.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "machine_directory.h"

namespace vamdgpu::tests {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTopology = "/sys/class/kfd/kfd/topology";
constexpr unsigned kKfdMajor = 235;
constexpr unsigned kDrmMajor = 226;

MachineOptions machine_options() {
  MachineOptions options;
  options.gpus = 3;
  options.cpu_nodes = 2;
  options.minors = {128, 129, 140};
  options.hidden = {1};
  options.vram_bytes = 1 << 20;
  options.gtt_bytes = 1 << 20;
  options.kfd_major = kKfdMajor;
  return options;
}

// What libc exports only by name: the fortified calls and those of old binaries.
template <typename Function>
Function* exported(const char* name) {
  void* found = ::dlsym(RTLD_DEFAULT, name);
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<Function*>(found);
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string contents(int fd) {
  char text[8192];
  const ssize_t got = ::read(fd, text, sizeof text);
  return got < 0 ? std::string("unreadable") : std::string(text, static_cast<std::size_t>(got));
}

std::string file_contents(const char* path) {
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  return fd.get() < 0 ? std::string("no file: ") + std::strerror(errno) : contents(fd.get());
}

std::string fd_path(int fd) {
  return "/proc/self/fd/" + std::to_string(fd);
}

std::string link_contents(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t length = ::readlink(path.c_str(), text, sizeof text);
  return length < 0 ? std::string("no link: ") + std::strerror(errno)
                    : std::string(text, static_cast<std::size_t>(length));
}

std::set<std::string> names_in(const char* path) {
  std::set<std::string> names;
  DIR* directory = ::opendir(path);
  if (directory == nullptr) return {std::strerror(errno)};
  while (const dirent* entry = ::readdir(directory))
    if (entry->d_name[0] != '.') names.insert(entry->d_name);
  ::closedir(directory);
  return names;
}

void expect_device(const struct stat& status, unsigned major_number, unsigned minor_number) {
  EXPECT_TRUE(S_ISCHR(status.st_mode)) << std::oct << status.st_mode;
  EXPECT_EQ(major(status.st_rdev), major_number);
  EXPECT_EQ(minor(status.st_rdev), minor_number);
}

// Gives the working directory back.
class InDirectory {
 public:
  explicit InDirectory(const char* path) : old_(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    EXPECT_EQ(::chdir(path), 0) << path;
  }
  ~InDirectory() { EXPECT_EQ(::fchdir(old_.get()), 0); }

 private:
  Fd old_;
};

TEST(Open, EveryWayOfNamingATopologyFile) {
  const std::string expected = "5\n";  // two CPU nodes, three GPUs
  for (const char* path :
       {"/sys/class/kfd/kfd/topology/generation_id", "/sys/devices/virtual/kfd/kfd/topology/generation_id",
        "//sys//class/./kfd/kfd/topology//generation_id",
        "/sys/class/kfd/kfd/topology/nodes/../generation_id",
        "/tmp/../sys/class/kfd/kfd/topology/generation_id", "/../sys/class/kfd/kfd/topology/generation_id",
        "/sys/class/kfd/kfd/../kfd/topology/generation_id", "/sys/dev/char/235:0/topology/generation_id",
        "/proc/self/root/sys/class/kfd/kfd/topology/generation_id"})
    EXPECT_EQ(file_contents(path), expected) << path;
}

// ".." after a symbolic link leaves what the link leads to, as in the kernel.
TEST(Open, DotDotLeavesTheTargetOfALink) {
  EXPECT_EQ(file_contents("/sys/class/drm/card0/device/../0000:63:00.0/vendor"), "0x1002\n");
  EXPECT_EQ(file_contents("/sys/class/kfd/kfd/../../../virtual/kfd/kfd/dev"), "235:0\n");
}

TEST(Open, AllVariants) {
  const char* path = "/sys/class/kfd/kfd/topology/generation_id";
  const auto check = [](int descriptor, const char* name) {
    const Fd fd(descriptor);
    ASSERT_GE(fd.get(), 0) << name << ": " << std::strerror(errno);
    EXPECT_EQ(contents(fd.get()), "5\n") << name;
  };
  for (const char* name : {"open", "open64", "__open", "__open64"})
    check(exported<int(const char*, int, ...)>(name)(path, O_RDONLY | O_CLOEXEC), name);
  for (const char* name : {"openat", "openat64"})
    check(exported<int(int, const char*, int, ...)>(name)(AT_FDCWD, path, O_RDONLY | O_CLOEXEC), name);
  for (const char* name : {"__open_2", "__open64_2"})
    check(exported<int(const char*, int)>(name)(path, O_RDONLY | O_CLOEXEC), name);
  for (const char* name : {"__openat_2", "__openat64_2"})
    check(exported<int(int, const char*, int)>(name)(AT_FDCWD, path, O_RDONLY | O_CLOEXEC), name);
}

TEST(Open, DevicesByEveryName) {
  for (const char* path : {"/dev/kfd", "//dev//kfd", "/dev/./kfd", "/dev/dri/../kfd", "/dev/char/235:0"}) {
    const Fd fd(::open(path, O_RDWR | O_CLOEXEC));
    ASSERT_GE(fd.get(), 0) << path << ": " << std::strerror(errno);
    struct stat status {};
    ASSERT_EQ(::fstat(fd.get(), &status), 0);
    expect_device(status, kKfdMajor, 0);
    EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  for (const char* path : {"/dev/dri/renderD140", "/dev/char/226:140"}) {
    const Fd fd(::open(path, O_RDWR | O_CLOEXEC));
    ASSERT_GE(fd.get(), 0) << path << ": " << std::strerror(errno);
    struct stat status {};
    ASSERT_EQ(::fstat(fd.get(), &status), 0);
    expect_device(status, kDrmMajor, 140);
  }
}

// Nobody's driver hears of it.
TEST(Open, APathDescriptorIsTheNodeAndNoOpenDevice) {
  const std::pair<const char*, dev_t> nodes[] = {{"/dev/kfd", makedev(kKfdMajor, 0)},
                                                 {"/dev/char/226:140", makedev(kDrmMajor, 140)},
                                                 {"/dev/dri/renderD129", makedev(kDrmMajor, 129)}};  // hidden
  for (const auto& [path, number] : nodes) {
    const Fd fd(::open(path, O_PATH | O_CLOEXEC));
    ASSERT_GE(fd.get(), 0) << path << ": " << std::strerror(errno);
    struct stat status {};
    ASSERT_EQ(::fstat(fd.get(), &status), 0);
    expect_device(status, major(number), minor(number));
    char byte = 0;
    EXPECT_EQ(::read(fd.get(), &byte, 1), -1);
    EXPECT_EQ(errno, EBADF);
    const Fd again(::open(fd_path(fd.get()).c_str(), O_RDWR | O_CLOEXEC));
    if (minor(number) == 129) {
      EXPECT_EQ(again.get() < 0 ? errno : 0, EPERM);
      continue;
    }
    ASSERT_GE(again.get(), 0) << path << ": " << std::strerror(errno);
    ASSERT_EQ(::fstat(again.get(), &status), 0);
    expect_device(status, major(number), minor(number));
  }
}

// As of any other name.
TEST(Open, ALinkInPlaceOfADeviceNodeIsFollowed) {
  const fs::path node = fs::path(::getenv("VAMDGPU_DIR")) / "sysfs/dev/dri/renderD140";
  const fs::path kept = node.string() + ".kept";
  const fs::path file = node.string() + ".file";
  std::ofstream(file) << "somebody's";
  fs::rename(node, kept);
  fs::create_symlink(file, node);
  EXPECT_EQ(file_contents("/dev/dri/renderD140"), "somebody's");
  EXPECT_TRUE(fs::is_symlink("/dev/dri/renderD140"));
  EXPECT_TRUE(fs::is_regular_file("/dev/dri/renderD140"));
  fs::rename(kept, node);
  fs::remove(file);
  EXPECT_TRUE(fs::is_character_file("/dev/dri/renderD140"));
}

TEST(Open, DeviceErrors) {
  const auto error_of = [](const char* path, int flags) {
    const Fd fd(::open(path, flags, 0600));
    return fd.get() >= 0 ? 0 : errno;
  };
  EXPECT_EQ(error_of("/dev/dri/renderD130", O_RDWR), ENOENT);
  EXPECT_EQ(error_of("/dev/char/226:130", O_RDWR), ENOENT);
  EXPECT_EQ(error_of("/dev/kfd", O_RDONLY | O_DIRECTORY), ENOTDIR);
  EXPECT_EQ(error_of("/dev/kfd/", O_RDONLY), ENOTDIR);
  EXPECT_EQ(error_of("/dev/kfd", O_RDWR | O_CREAT | O_EXCL), EEXIST);
  EXPECT_EQ(error_of("/dev/char/226:128", O_RDWR | O_NOFOLLOW), ELOOP);
  EXPECT_EQ(error_of("/dev/dri/card0", O_RDWR), EACCES);
  EXPECT_EQ(error_of("/sys/class/kfd/none", O_RDONLY), ENOENT);
}

TEST(Open, RelativeToADirectory) {
  const auto read_at = [](const char* directory, const char* path) {
    const Fd at(::open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC));
    EXPECT_GE(at.get(), 0) << directory;
    const Fd fd(::openat(at.get(), path, O_RDONLY | O_CLOEXEC));
    return fd.get() < 0 ? std::string("no file: ") + std::strerror(errno) : contents(fd.get());
  };
  EXPECT_EQ(read_at("/sys", "class/kfd/kfd/topology/generation_id"), "5\n");
  EXPECT_EQ(read_at("/", "sys/class/kfd/kfd/topology/generation_id"), "5\n");
  EXPECT_EQ(read_at("/sys/class/kfd", "kfd/topology/generation_id"), "5\n");
  EXPECT_EQ(read_at(kTopology, "generation_id"), "5\n");
  EXPECT_EQ(read_at("/sys/class/kfd/kfd/topology/nodes", "../generation_id"), "5\n");
  EXPECT_EQ(read_at("/sys/class/kfd", "../drm/version"), "drm 1.1.0 20060810\n");
  EXPECT_EQ(read_at("/proc", "self/root/sys/class/kfd/kfd/dev"), "235:0\n");
  const std::string version = file_contents("/proc/version");
  EXPECT_EQ(read_at("/sys/class/kfd", "../../../proc/version"), version);
  EXPECT_EQ(read_at("/proc", "version"), version);

  struct stat status {};
  const Fd dri(::open("/dev/dri", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Fd render(::openat(dri.get(), "renderD128", O_RDWR | O_CLOEXEC));
  ASSERT_GE(render.get(), 0);
  ASSERT_EQ(::fstat(render.get(), &status), 0);
  expect_device(status, kDrmMajor, 128);
  const Fd dev(::open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Fd kfd(::openat(dev.get(), "kfd", O_RDWR | O_CLOEXEC));
  ASSERT_GE(kfd.get(), 0);
  ASSERT_EQ(::fstat(kfd.get(), &status), 0);
  expect_device(status, kKfdMajor, 0);
  EXPECT_EQ(::openat(-1, "kfd", O_RDWR), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(Open, RelativeToTheWorkingDirectory) {
  char where[PATH_MAX];
  {
    const InDirectory there("/sys/class/kfd");
    EXPECT_EQ(file_contents("kfd/topology/generation_id"), "5\n");
    EXPECT_STREQ(::getcwd(where, sizeof where), "/sys/class/kfd");
  }
  {
    const InDirectory there("/sys/class/kfd/kfd/topology/nodes/2");
    EXPECT_EQ(file_contents("name"), "aldebaran\n");
    EXPECT_EQ(file_contents("../../generation_id"), "5\n");
    EXPECT_STREQ(::getcwd(where, sizeof where), "/sys/devices/virtual/kfd/kfd/topology/nodes/2");
    EXPECT_EQ(::getcwd(where, 10), nullptr);
    EXPECT_EQ(errno, ERANGE);
    char* made = ::getcwd(nullptr, 0);
    EXPECT_STREQ(made, "/sys/devices/virtual/kfd/kfd/topology/nodes/2");
    ::free(made);
    EXPECT_EQ(link_contents("/proc/self/cwd"), "/sys/devices/virtual/kfd/kfd/topology/nodes/2");
  }
  {
    const InDirectory there("/dev");
    struct stat status {};
    ASSERT_EQ(::stat("dri/renderD128", &status), 0);
    expect_device(status, kDrmMajor, 128);
    EXPECT_STREQ(::getcwd(where, sizeof where), "/dev");
  }
  EXPECT_EQ(::chdir("/dev/kfd"), -1);
  EXPECT_EQ(errno, ENOTDIR);
}

TEST(Untouched, OtherPathsAreTheHosts) {
  struct stat null {};
  ASSERT_EQ(::stat("/dev/null", &null), 0);
  expect_device(null, 1, 3);
  EXPECT_EQ(::access("/dev/kfdx", F_OK), -1);
  EXPECT_EQ(::access("/sys/class/kfdx", F_OK), -1);
  EXPECT_NE(file_contents("/proc/self/status").find("vamdgpu_paths"), std::string::npos);
  EXPECT_TRUE(fs::is_directory("/sys/class"));
  EXPECT_EQ(names_in("/sys/class").count("mem"), names_in("/sys/class/../../sys/class").count("mem"));
  EXPECT_EQ(::open("/no/such/file", O_RDONLY), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(::open("", O_RDONLY), -1);
  EXPECT_EQ(errno, ENOENT);
  const std::string too_long(PATH_MAX, 'x');
  EXPECT_EQ(::open(("/sys/class/kfd/" + too_long).c_str(), O_RDONLY), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
}

TEST(Untouched, FilesAreCreatedWithTheirMode) {
  const fs::path path = fs::temp_directory_path() / ("vamdgpu-mode-" + std::to_string(::getpid()));
  const mode_t mask = ::umask(0);
  {
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
    ASSERT_GE(fd.get(), 0);
    ASSERT_EQ(::write(fd.get(), "text", 4), 4);
  }
  ::umask(mask);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640U);
  EXPECT_TRUE(S_ISREG(status.st_mode));
  EXPECT_EQ(file_contents(path.c_str()), "text");
  fs::remove(path);
}

// The host's PCI devices are still there beside the GPUs.
TEST(Untouched, PciDevicesOfTheHostStay) {
  const std::set<std::string> names = names_in("/sys/bus/pci/devices");
  EXPECT_EQ(names.count("0000:63:00.0"), 1U);
  EXPECT_EQ(names.count("0000:43:00.0"), 1U);
  for (const std::string& name : names)
    EXPECT_EQ(file_contents(("/sys/bus/pci/devices/" + name + "/vendor").c_str()).substr(0, 2), "0x") << name;
  EXPECT_EQ(file_contents("/sys/devices/pci0000:63/0000:63:00.0/device"), "0x740f\n");
}

TEST(Stat, DeviceNodes) {
  struct stat status {};
  ASSERT_EQ(::stat("/dev/kfd", &status), 0);
  expect_device(status, kKfdMajor, 0);
  EXPECT_EQ(status.st_mode & 0777, 0666U);
  EXPECT_EQ(status.st_size, 0);
  ASSERT_EQ(::lstat("/dev/dri/renderD128", &status), 0);
  expect_device(status, kDrmMajor, 128);
  ASSERT_EQ(::stat("/dev/dri/card12", &status), 0);
  expect_device(status, kDrmMajor, 12);
  ASSERT_EQ(::fstatat(AT_FDCWD, "/dev/dri/renderD140", &status, 0), 0);
  expect_device(status, kDrmMajor, 140);
  ASSERT_EQ(::stat("/dev/char/226:128", &status), 0);
  expect_device(status, kDrmMajor, 128);
  ASSERT_EQ(::lstat("/dev/char/226:128", &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
  EXPECT_EQ(::stat("/dev/dri/renderD130", &status), -1);
  EXPECT_EQ(errno, ENOENT);
  ASSERT_EQ(::stat("/dev/dri", &status), 0);
  EXPECT_TRUE(S_ISDIR(status.st_mode));
  ASSERT_EQ(::stat("/sys/class/kfd/kfd/topology/generation_id", &status), 0);
  EXPECT_TRUE(S_ISREG(status.st_mode));
  ASSERT_EQ(::lstat("/sys/class/kfd/kfd", &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
  ASSERT_EQ(::lstat("/sys/class/kfd/kfd/", &status), 0);
  EXPECT_TRUE(S_ISDIR(status.st_mode));
}

TEST(Stat, AllVariants) {
  using ByPath = int(const char*, struct stat*);
  using ByFd = int(int, struct stat*);
  using OldByPath = int(int, const char*, struct stat*);
  using OldByFd = int(int, int, struct stat*);
  const Fd fd(::open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC));
  ASSERT_GE(fd.get(), 0);
  struct stat status {};
  for (const char* name : {"stat", "stat64", "lstat", "lstat64"}) {
    status = {};
    ASSERT_EQ(exported<ByPath>(name)("/dev/dri/renderD128", &status), 0) << name;
    expect_device(status, kDrmMajor, 128);
  }
  for (const char* name : {"fstat", "fstat64"}) {
    status = {};
    ASSERT_EQ(exported<ByFd>(name)(fd.get(), &status), 0) << name;
    expect_device(status, kDrmMajor, 128);
  }
  for (const char* name : {"__xstat", "__xstat64", "__lxstat", "__lxstat64"}) {
    status = {};
    ASSERT_EQ(exported<OldByPath>(name)(1, "/dev/dri/renderD128", &status), 0) << name;
    expect_device(status, kDrmMajor, 128);
  }
  for (const char* name : {"__fxstat", "__fxstat64"}) {
    status = {};
    ASSERT_EQ(exported<OldByFd>(name)(1, fd.get(), &status), 0) << name;
    expect_device(status, kDrmMajor, 128);
  }
  for (const char* name : {"fstatat", "fstatat64"}) {
    status = {};
    ASSERT_EQ(exported<int(int, const char*, struct stat*, int)>(name)(fd.get(), "", &status, AT_EMPTY_PATH),
              0);
    expect_device(status, kDrmMajor, 128);
  }
  for (const char* name : {"__fxstatat", "__fxstatat64"}) {
    status = {};
    ASSERT_EQ(
        exported<int(int, int, const char*, struct stat*, int)>(name)(1, AT_FDCWD, "/dev/kfd", &status, 0),
        0);
    expect_device(status, kKfdMajor, 0);
  }
}

TEST(Stat, Statx) {
  const Fd fd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
  const Fd dri(::open("/dev/dri", O_PATH | O_CLOEXEC));
  const auto check = [](int directory, const char* path, int flags, unsigned major_number,
                        unsigned minor_number) {
    struct statx status {};
    ASSERT_EQ(::statx(directory, path, flags, STATX_BASIC_STATS, &status), 0) << path;
    EXPECT_TRUE(S_ISCHR(status.stx_mode)) << path;
    EXPECT_EQ(status.stx_rdev_major, major_number) << path;
    EXPECT_EQ(status.stx_rdev_minor, minor_number) << path;
  };
  check(AT_FDCWD, "/dev/kfd", 0, kKfdMajor, 0);
  check(AT_FDCWD, "/dev/dri/renderD140", AT_SYMLINK_NOFOLLOW, kDrmMajor, 140);
  check(dri.get(), "renderD128", 0, kDrmMajor, 128);
  check(fd.get(), "", AT_EMPTY_PATH, kKfdMajor, 0);
  check(AT_FDCWD, fd_path(fd.get()).c_str(), 0, kKfdMajor, 0);
  check(AT_FDCWD, "/dev/null", 0, 1, 3);
  struct statx status {};
  ASSERT_EQ(::statx(AT_FDCWD, fd_path(fd.get()).c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status), 0);
  EXPECT_TRUE(S_ISLNK(status.stx_mode));
  ASSERT_EQ(::statx(AT_FDCWD, kTopology, 0, STATX_BASIC_STATS, &status), 0);
  EXPECT_TRUE(S_ISDIR(status.stx_mode));
}

TEST(Access, Family) {
  for (const char* name : {"access", "euidaccess", "eaccess"}) {
    auto* call = exported<int(const char*, int)>(name);
    EXPECT_EQ(call("/dev/kfd", R_OK | W_OK), 0) << name;
    EXPECT_EQ(call("/dev/dri/renderD128", F_OK), 0) << name;
    EXPECT_EQ(call("/dev/kfd", X_OK), -1) << name;
    EXPECT_EQ(errno, EACCES);
    EXPECT_EQ(call("/dev/dri/renderD130", F_OK), -1) << name;
    EXPECT_EQ(errno, ENOENT);
    EXPECT_EQ(call("/sys/class/kfd/kfd/topology/generation_id", R_OK), 0) << name;
    EXPECT_EQ(call("/no/such/file", F_OK), -1) << name;
    EXPECT_EQ(call("/dev/null", W_OK), 0) << name;
  }
  const Fd sys(::open("/sys", O_PATH | O_CLOEXEC));
  EXPECT_EQ(::faccessat(sys.get(), "class/kfd/kfd", F_OK, 0), 0);
  EXPECT_EQ(::faccessat(AT_FDCWD, "/dev/kfd", R_OK, AT_EACCESS), 0);
  EXPECT_EQ(::faccessat(sys.get(), "class/kfd/none", F_OK, 0), -1);
  char value[64];
  EXPECT_EQ(::getxattr("/dev/kfd", "user.none", value, sizeof value), -1);
  EXPECT_EQ(errno, ENODATA);
  EXPECT_EQ(::lgetxattr("/dev/dri/renderD130", "user.none", value, sizeof value), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST(Links, Readlink) {
  EXPECT_EQ(link_contents("/sys/class/kfd/kfd"), "../../devices/virtual/kfd/kfd");
  EXPECT_EQ(link_contents("/sys/dev/char/226:128"), "../../devices/pci0000:63/0000:63:00.0/drm/renderD128");
  EXPECT_EQ(link_contents("/sys/dev/char/226:140/device/subsystem"), "../../../bus/pci");
  EXPECT_EQ(link_contents("/dev/char/235:0"), "../kfd");
  EXPECT_EQ(link_contents("/dev/kfd"), std::string("no link: ") + std::strerror(EINVAL));
  EXPECT_EQ(link_contents("/dev/dri/renderD130"), std::string("no link: ") + std::strerror(ENOENT));
  const Fd drm(::open("/sys/class/drm", O_PATH | O_CLOEXEC));
  char text[PATH_MAX];
  const std::string target = "../../devices/pci0000:63/0000:63:00.0/drm/card0";
  EXPECT_EQ(::readlinkat(drm.get(), "card0", text, sizeof text), static_cast<ssize_t>(target.size()));
  EXPECT_EQ(std::string(text, target.size()), target);
  EXPECT_EQ(::readlink("/sys/class/drm/card0", text, 5), 5);
  EXPECT_EQ(std::string(text, 5), "../..");
  EXPECT_EQ(exported<ssize_t(const char*, char*, size_t, size_t)>("__readlink_chk")("/sys/class/drm/card0",
                                                                                    text, 9, sizeof text),
            9);
  EXPECT_EQ(exported<ssize_t(int, const char*, char*, size_t, size_t)>("__readlinkat_chk")(
                drm.get(), "card0", text, 9, sizeof text),
            9);
}

TEST(Links, OpenDeviceFilesHaveTheKernelsText) {
  const Fd kfd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
  const Fd render(::open("/dev/dri/renderD140", O_RDWR | O_CLOEXEC));
  const Fd file(::open("/sys/class/kfd/kfd/topology/generation_id", O_RDONLY | O_CLOEXEC));
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(link_contents(fd_path(kfd.get())), "/dev/kfd");
  EXPECT_EQ(link_contents(fd_path(render.get())), "/dev/dri/renderD140");
  EXPECT_EQ(link_contents("/dev/fd/" + std::to_string(kfd.get())), "/dev/kfd");
  EXPECT_EQ(link_contents("/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(kfd.get())),
            "/dev/kfd");
  EXPECT_EQ(link_contents("/proc/thread-self/fd/" + std::to_string(kfd.get())), "/dev/kfd");
  EXPECT_EQ(link_contents(fd_path(file.get())), "/sys/devices/virtual/kfd/kfd/topology/generation_id");
  EXPECT_EQ(link_contents(fd_path(null.get())), "/dev/null");
  const Fd fds(::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char text[PATH_MAX];
  const ssize_t length = ::readlinkat(fds.get(), std::to_string(kfd.get()).c_str(), text, sizeof text);
  EXPECT_EQ(std::string(text, length < 0 ? 0 : static_cast<std::size_t>(length)), "/dev/kfd");
  struct stat status {};
  ASSERT_EQ(::stat(fd_path(render.get()).c_str(), &status), 0);
  expect_device(status, kDrmMajor, 140);
  ASSERT_EQ(::fstatat(fds.get(), std::to_string(render.get()).c_str(), &status, 0), 0);
  expect_device(status, kDrmMajor, 140);
  ASSERT_EQ(::lstat(fd_path(render.get()).c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
}

TEST(Links, Realpath) {
  char text[PATH_MAX];
  EXPECT_STREQ(::realpath("/sys/class/kfd/kfd/topology", text), "/sys/devices/virtual/kfd/kfd/topology");
  EXPECT_STREQ(::realpath("/sys/dev/char/226:128/device", text), "/sys/devices/pci0000:63/0000:63:00.0");
  EXPECT_STREQ(::realpath("/dev/char/226:128", text), "/dev/dri/renderD128");
  EXPECT_STREQ(::realpath("/dev/../dev/kfd", text), "/dev/kfd");
  EXPECT_STREQ(::realpath("/proc/self/../../usr", text), "/usr");
  EXPECT_EQ(::realpath("/sys/class/kfd/none", text), nullptr);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(::realpath("/dev/dri/renderD130", text), nullptr);
  EXPECT_EQ(errno, ENOENT);
  char* made = ::realpath("/sys/class/drm/card12", nullptr);
  EXPECT_STREQ(made, "/sys/devices/pci0000:03/0000:03:00.0/drm/card12");
  ::free(made);
  made = ::canonicalize_file_name("/sys/class/kfd/kfd");
  EXPECT_STREQ(made, "/sys/devices/virtual/kfd/kfd");
  ::free(made);
  EXPECT_STREQ(
      exported<char*(const char*, char*, size_t)>("__realpath_chk")("/sys/class/kfd/kfd", text, sizeof text),
      "/sys/devices/virtual/kfd/kfd");
  const Fd kfd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
  EXPECT_STREQ(::realpath(fd_path(kfd.get()).c_str(), text), "/dev/kfd");
}

TEST(ProcFd, OpeningTheLinkMakesANewFile) {
  for (const char* path : {"/dev/kfd", "/dev/dri/renderD128"}) {
    const Fd first(::open(path, O_RDWR | O_CLOEXEC));
    ASSERT_GE(first.get(), 0);
    const Fd same(::fcntl(first.get(), F_DUPFD_CLOEXEC, 0));
    const Fd second(::open(fd_path(first.get()).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_GE(second.get(), 0) << std::strerror(errno);
    struct stat one {};
    struct stat duplicate {};
    struct stat other {};
    ASSERT_EQ(::fstat(first.get(), &one), 0);
    ASSERT_EQ(::fstat(same.get(), &duplicate), 0);
    ASSERT_EQ(::fstat(second.get(), &other), 0);
    EXPECT_EQ(one.st_rdev, other.st_rdev);
    EXPECT_EQ(one.st_ino, duplicate.st_ino);
    EXPECT_NE(one.st_ino, other.st_ino);
  }
}

TEST(ProcFd, OfAnotherProcess) {
  int ready[2];
  int go[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(go[1]);
    const int fd = ::open("/dev/dri/renderD140", O_RDWR);
    char answer = 0;
    const bool told = ::write(ready[1], &fd, sizeof fd) == sizeof fd && ::read(go[0], &answer, 1) == 0;
    ::_exit(told ? 0 : 1);
  }
  ::close(go[0]);
  int number = -1;
  ASSERT_EQ(::read(ready[0], &number, sizeof number), static_cast<ssize_t>(sizeof number));
  const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(number);
  EXPECT_EQ(link_contents(path), "/dev/dri/renderD140");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  expect_device(status, kDrmMajor, 140);
  const Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat opened {};
  ASSERT_EQ(::fstat(again.get(), &opened), 0);
  expect_device(opened, kDrmMajor, 140);
  EXPECT_NE(opened.st_ino, status.st_ino);
  EXPECT_EQ(file_contents(("/proc/" + std::to_string(child) + "/root/sys/class/kfd/kfd/dev").c_str()),
            "235:0\n");
  ::close(go[1]);
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
}

TEST(Streams, FopenFamily) {
  for (const char* name : {"fopen", "fopen64"}) {
    FILE* stream =
        exported<FILE*(const char*, const char*)>(name)("/sys/class/kfd/kfd/topology/generation_id", "re");
    ASSERT_NE(stream, nullptr) << name;
    unsigned value = 0;
    EXPECT_EQ(std::fscanf(stream, "%u", &value), 1);
    EXPECT_EQ(value, 5U);
    stream = ::freopen("/sys/class/kfd/kfd/dev", "r", stream);
    ASSERT_NE(stream, nullptr);
    char line[32];
    EXPECT_STREQ(std::fgets(line, sizeof line, stream), "235:0\n");
    std::fclose(stream);
  }
  FILE* device = std::fopen("/dev/kfd", "r+e");
  ASSERT_NE(device, nullptr);
  struct stat status {};
  ASSERT_EQ(::fstat(::fileno(device), &status), 0);
  expect_device(status, kKfdMajor, 0);
  std::fclose(device);
  EXPECT_EQ(std::fopen("/dev/dri/renderD130", "r"), nullptr);
  EXPECT_EQ(errno, ENOENT);
}

TEST(Directories, OpendirAndScandir) {
  const std::set<std::string> nodes = {"card0", "card1", "card12", "renderD128", "renderD129", "renderD140"};
  EXPECT_EQ(names_in("/dev/dri"), nodes);
  EXPECT_EQ(names_in("/sys/class/kfd/kfd/topology/nodes"), (std::set<std::string>{"0", "1", "2", "3", "4"}));
  EXPECT_EQ(names_in("/sys/dev/char/226:140/device/drm"), (std::set<std::string>{"card12", "renderD140"}));
  EXPECT_EQ(names_in("/dev/kfd"), std::set<std::string>{std::strerror(ENOTDIR)});
  for (const char* name : {"scandir", "scandir64"}) {
    dirent** list = nullptr;
    auto* call = exported<decltype(::scandir)>(name);
    const int count = call("/dev/dri", &list, nullptr, ::alphasort);
    ASSERT_EQ(count, 8) << name;  // "." and ".." too
    EXPECT_STREQ(list[2]->d_name, "card0");
    for (int i = 0; i < count; ++i) ::free(list[i]);
    ::free(list);
  }
}

TEST(Hidden, TopologyFilesCannotBeRead) {
  EXPECT_EQ(file_contents("/sys/class/kfd/kfd/topology/nodes/2/gpu_id").find("no file"), std::string::npos);
  for (const char* path :
       {"/sys/class/kfd/kfd/topology/nodes/3/gpu_id", "/sys/class/kfd/kfd/topology/nodes/3/name",
        "/sys/devices/virtual/kfd/kfd/topology/nodes/3/properties",
        "/sys/class/kfd/kfd/topology/nodes/3/mem_banks/0/properties"}) {
    EXPECT_EQ(::open(path, O_RDONLY), -1) << path;
    EXPECT_EQ(errno, EPERM) << path;
    EXPECT_EQ(std::fopen(path, "r"), nullptr) << path;
    EXPECT_EQ(errno, EPERM) << path;
    struct stat status {};
    EXPECT_EQ(::stat(path, &status), 0) << path;
  }
  const Fd nodes(::open("/sys/class/kfd/kfd/topology/nodes", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(::openat(nodes.get(), "3/gpu_id", O_RDONLY), -1);
  EXPECT_EQ(errno, EPERM);
  const Fd node(::openat(nodes.get(), "3", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(::openat(node.get(), "gpu_id", O_RDONLY), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(names_in("/sys/class/kfd/kfd/topology/nodes/3").count("gpu_id"), 1U);
  std::ifstream stream("/sys/class/kfd/kfd/topology/nodes/3/gpu_id");
  EXPECT_FALSE(stream.is_open());
}

TEST(Hidden, RenderNodeCannotBeOpened) {
  EXPECT_EQ(::open("/dev/dri/renderD129", O_RDWR), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::open("/dev/char/226:129", O_RDWR), -1);
  EXPECT_EQ(errno, EPERM);
  struct stat status {};
  ASSERT_EQ(::stat("/dev/dri/renderD129", &status), 0);
  expect_device(status, kDrmMajor, 129);
}

TEST(Libstdcxx, StreamsAndFilesystem) {
  std::ifstream stream("/sys/class/kfd/kfd/topology/nodes/4/properties");
  std::string name;
  std::uint64_t value = 0;
  std::uint64_t render_minor = 0;
  std::size_t lines = 0;
  for (; stream >> name >> value; ++lines)
    if (name == "drm_render_minor") render_minor = value;
  EXPECT_EQ(lines, 41U);
  EXPECT_EQ(render_minor, 140U);

  std::set<std::string> nodes;
  for (const auto& entry : fs::directory_iterator("/sys/class/kfd/kfd/topology/nodes")) {
    EXPECT_TRUE(entry.is_directory());
    nodes.insert(entry.path().filename());
  }
  EXPECT_EQ(nodes, (std::set<std::string>{"0", "1", "2", "3", "4"}));

  std::size_t links = 0;
  for (const auto& entry : fs::recursive_directory_iterator("/sys/class/kfd/kfd/topology/nodes/2/io_links"))
    if (entry.path().filename() == "properties") ++links;
  EXPECT_EQ(links, 3U);  // its CPU and two GPUs of its hive

  for (const auto& entry : fs::directory_iterator("/dev/dri"))
    EXPECT_TRUE(entry.is_character_file()) << entry.path();
  EXPECT_TRUE(fs::is_character_file("/dev/kfd"));
  EXPECT_TRUE(fs::exists("/dev/dri/renderD128"));
  EXPECT_FALSE(fs::exists("/dev/dri/renderD130"));
  EXPECT_EQ(fs::canonical("/sys/class/drm/renderD128/device"), "/sys/devices/pci0000:63/0000:63:00.0");
  EXPECT_EQ(fs::read_symlink("/sys/class/kfd/kfd"), "../../devices/virtual/kfd/kfd");
  const InDirectory there("/sys/class/kfd");
  EXPECT_EQ(fs::current_path(), "/sys/class/kfd");
}

TEST(Libdrm, DevicesAreTheMachinesAndDiffer) {
  drmDevicePtr devices[8] = {};
  const int count = ::drmGetDevices2(0, devices, 8);
  ASSERT_EQ(count, 3);
  std::set<std::string> found;
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(devices[i]->bustype, DRM_BUS_PCI);
    EXPECT_EQ(devices[i]->deviceinfo.pci->vendor_id, 0x1002);
    EXPECT_EQ(devices[i]->deviceinfo.pci->device_id, 0x740F);
    found.insert(std::string(devices[i]->nodes[DRM_NODE_PRIMARY]) + " " + devices[i]->nodes[DRM_NODE_RENDER] +
                 " " + std::to_string(devices[i]->businfo.pci->bus));
  }
  EXPECT_EQ(found, (std::set<std::string>{"/dev/dri/card0 /dev/dri/renderD128 99",
                                          "/dev/dri/card1 /dev/dri/renderD129 67",
                                          "/dev/dri/card12 /dev/dri/renderD140 3"}));
  ::drmFreeDevices(devices, count);
}

TEST(Libdrm, NodesOfOpenFiles) {
  for (const auto& [path, card] : {std::pair("/dev/dri/renderD128", "/dev/dri/card0"),
                                   std::pair("/dev/dri/renderD140", "/dev/dri/card12")}) {
    const Fd fd(::open(path, O_RDWR | O_CLOEXEC));
    ASSERT_GE(fd.get(), 0);
    EXPECT_EQ(::drmGetNodeTypeFromFd(fd.get()), DRM_NODE_RENDER);
    char* primary = ::drmGetPrimaryDeviceNameFromFd(fd.get());
    char* render = ::drmGetRenderDeviceNameFromFd(fd.get());
    EXPECT_STREQ(primary, card);
    EXPECT_STREQ(render, path);
    ::free(primary);
    ::free(render);
  }
}

TEST(Libdrm, AmdgpuDevicesAreNotTakenForOne) {
  const Fd first(::open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC));
  const Fd again(::open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC));
  const Fd second(::open("/dev/dri/renderD140", O_RDWR | O_CLOEXEC));
  std::uint32_t major_version = 0;
  std::uint32_t minor_version = 0;
  amdgpu_device_handle one = nullptr;
  amdgpu_device_handle same = nullptr;
  amdgpu_device_handle other = nullptr;
  ASSERT_EQ(::amdgpu_device_initialize(first.get(), &major_version, &minor_version, &one), 0);
  ASSERT_EQ(::amdgpu_device_initialize(again.get(), &major_version, &minor_version, &same), 0);
  ASSERT_EQ(::amdgpu_device_initialize(second.get(), &major_version, &minor_version, &other), 0);
  EXPECT_EQ(one, same);
  EXPECT_NE(one, other);
  ::amdgpu_device_deinitialize(other);
  ::amdgpu_device_deinitialize(same);
  ::amdgpu_device_deinitialize(one);
}

TEST(ProcFd, DmaBufHasItsTextAndCannotBeOpened) {
  const Fd render(::open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC));
  drm_amdgpu_gem_create create{};
  create.in.bo_size = 65536;
  create.in.alignment = 4096;
  create.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
  ASSERT_EQ(::drmIoctl(render.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0);
  int exported_fd = -1;
  ASSERT_EQ(::drmPrimeHandleToFD(render.get(), create.out.handle, DRM_CLOEXEC | DRM_RDWR, &exported_fd), 0);
  const Fd buffer(exported_fd);
  EXPECT_EQ(link_contents(fd_path(buffer.get())).substr(0, 7), "/dmabuf");
  EXPECT_EQ(::open(fd_path(buffer.get()).c_str(), O_RDWR), -1);
  EXPECT_EQ(errno, ENXIO);
  struct stat status {};
  ASSERT_EQ(::fstat(buffer.get(), &status), 0);
  EXPECT_EQ(status.st_size, 65536);
  EXPECT_FALSE(S_ISREG(status.st_mode));
  struct statx extended {};
  ASSERT_EQ(::statx(buffer.get(), "", AT_EMPTY_PATH, STATX_MODE, &extended), 0);
  EXPECT_EQ(extended.stx_size, 65536U);
  EXPECT_FALSE(S_ISREG(extended.stx_mode));
}

TEST(Descriptors, NoneIsLeftBehind) {
  const std::set<std::string> before = names_in("/proc/self/fd");
  char text[PATH_MAX];
  struct stat status {};
  for (int i = 0; i < 3; ++i) {
    const Fd fd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
    const Fd again(::open(fd_path(fd.get()).c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_NE(::realpath("/sys/class/kfd/kfd/../kfd", text), nullptr);
    EXPECT_GT(::readlink(fd_path(fd.get()).c_str(), text, sizeof text), 0);
    EXPECT_EQ(::stat("/sys/class/drm/card0/device/../0000:63:00.0", &status), 0);
    names_in("/dev/dri");
  }
  EXPECT_EQ(names_in("/proc/self/fd"), before);
}

}  // namespace
}  // namespace vamdgpu::tests

int main(int argc, char** argv) {
  if (::getenv("VAMDGPU_DIR") == nullptr) {
    const vamdgpu::Machine machine = vamdgpu::Machine::create(vamdgpu::tests::machine_options());
    std::vector<std::string> arguments(argv, argv + argc);
    arguments[0] = std::filesystem::read_symlink("/proc/self/exe");
    return machine.run(arguments);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
