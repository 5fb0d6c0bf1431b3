// SPDX-License-Identifier: MIT
#include "kfd/device.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "base/device_node.h"
#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

constexpr unsigned kDrmMajor = 226;
constexpr unsigned kFirstRenderMinor = 128;

const char* open_remedy(int err) {
  switch (err) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return "; there is no KFD here: load the amdgpu module, and give the container /dev/kfd [SL-G19]";
    case EACCES:
      return "; run as root or in the group that owns it [SL-G20]";
    case EPERM:
      return "; the device cgroup denies it: give the container a GPU (--device /dev/kfd, amd.com/gpu) "
             "[SL-G21]";
    case EINVAL:
      return "; the KFD shows this process no GPU, or is resetting one: see the kernel's log [SL-G22]";
    default:
      return "";
  }
}

Result<KfdVersion> version_of(int fd, const char* path, const IoctlFunction& ioctl_function) {
  GetVersionArgs args{};
  if (const int err = call_ioctl(ioctl_function, fd, kIocGetVersion, &args); err != 0) {
    return make_error(err, std::string("AMDKFD_IOC_GET_VERSION on ") + path);
  }
  return KfdVersion{args.major_version, args.minor_version};
}

}  // namespace

dev_t render_node_device(std::uint32_t minor) {
  return makedev(kDrmMajor, minor);
}

int system_ioctl(int fd, unsigned long request, void* argument) {
  return ::ioctl(fd, request, argument);
}

int call_ioctl(const IoctlFunction& ioctl_function, int fd, unsigned long request, void* argument,
               OnInterrupt on_interrupt) {
  for (;;) {
    if (ioctl_function(fd, request, argument) >= 0) return 0;
    const int err = errno;
    if (err != EINTR || on_interrupt == OnInterrupt::Fail) return err;
  }
}

Result<void> check_version(KfdVersion version) {
  if (version.major == kVersionMajor && version.minor >= kVersionMinorMin) return {};
  return Error{
      EPROTONOSUPPORT,
      formatted("KFD interface {}.{} found, {}.{} or a later 1.x needed; use Linux 6.1 or newer [SL-G23]",
                version.major, version.minor, kVersionMajor, kVersionMinorMin)};
}

Result<KfdVersion> read_version(const char* path) {
  const UniqueFd fd(static_cast<int>(TEMP_FAILURE_RETRY(::open(path, O_RDONLY | O_CLOEXEC))));
  if (!fd) {
    const int err = errno;
    return with_remedy(make_error(err, std::string("open ") + path), open_remedy(err));
  }
  return version_of(fd.get(), path, system_ioctl);
}

Result<KfdDevice> KfdDevice::open(dev_t number, const char* path, IoctlFunction ioctl_function) {
  auto fd = open_device_node(path, number);
  if (!fd) return with_remedy(fd.error(), open_remedy(fd.error().err));
  SLUICE_TRY_ASSIGN(const KfdVersion version, version_of(fd->get(), path, ioctl_function));
  SLUICE_TRY(check_version(version));
  return KfdDevice(std::move(*fd), version, std::move(ioctl_function));
}

Result<dev_t> kfd_device_number(const char* path, const char* sysfs_dev) {
  struct stat st {};
  if (::stat(path, &st) == 0 && S_ISCHR(st.st_mode)) return st.st_rdev;

  const UniqueFd fd(::open(sysfs_dev, O_RDONLY | O_CLOEXEC));
  std::array<char, 32> text{};
  if (fd && ::read(fd.get(), text.data(), text.size() - 1) > 0) {
    unsigned device_major = 0;
    unsigned device_minor = 0;
    if (std::sscanf(text.data(), "%u:%u", &device_major, &device_minor) == 2) {
      return makedev(device_major, device_minor);
    }
  }
  return Error{ENOENT,
               formatted("this machine has no KFD: neither {} nor {} exists; load the amdgpu driver [SL-G24]",
                         path, sysfs_dev)};
}

FileClass classify_device(mode_t mode, dev_t device, dev_t kfd) {
  if (!S_ISCHR(mode)) return {};
  if (kfd != 0 && device == kfd) return {FileKind::Kfd, 0};
  if (major(device) == kDrmMajor && minor(device) >= kFirstRenderMinor) {
    return {FileKind::RenderNode, minor(device)};
  }
  return {};
}

std::string_view describe_unrestorable_file(std::string_view link) {
  if (link == "anon_inode:sync_file") return "a fence (sync_file)";
  if (link == "anon_inode:syncobj_file") return "a syncobj";
  if (link == "anon_inode:kfd_smi_ev") return "a stream of KFD events";
  return {};
}

Result<FileClass> classify_fd(int fd, dev_t kfd) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return make_error(errno, "fstat of descriptor " + std::to_string(fd));
  const FileClass by_device = classify_device(st.st_mode, st.st_rdev, kfd);
  if (by_device.kind != FileKind::Other || S_ISCHR(st.st_mode)) return by_device;

  // A dma-buf is an inode of an anonymous file system; only its name tells it from others.
  constexpr std::string_view kDmaBufName = "/dmabuf";
  std::array<char, kDmaBufName.size()> link{};
  const std::string name = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(name.c_str(), link.data(), link.size());
  if (length < 0) return make_error(errno, "readlink " + name);
  if (std::string_view(link.data(), static_cast<std::size_t>(length)) == kDmaBufName) {
    return FileClass{FileKind::DmaBuf, 0};
  }
  return FileClass{};
}

}  // namespace sluice::kfd
