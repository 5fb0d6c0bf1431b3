// SPDX-License-Identifier: MIT
#include "kfd/memory/open_dmabufs.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string>
#include <string_view>

#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

constexpr std::size_t kMostMetadataBytes = 256;  // sizeof drm_amdgpu_gem_metadata::data.data

Result<bool> same_table(pid_t a, pid_t b) {
  const long order = ::syscall(SYS_kcmp, a, b, KCMP_FILES, 0UL, 0UL);
  if (order >= 0) return order == 0;
  return make_error(errno, formatted("kcmp of processes {} and {}", a, b));
}

// Whether a process of `listed` shares the descriptor table of `pid`.
Result<bool> counts_already(const OpenDmaBuf& listed, pid_t pid) {
  for (const pid_t holder : listed.holders) {
    SLUICE_TRY_ASSIGN(const bool same, same_table(holder, pid));
    if (same) return true;
  }
  return false;
}

}  // namespace

Result<ino_t> inode_of_dmabuf(int dmabuf) {
  struct stat st {};
  if (::fstat(dmabuf, &st) != 0) return make_error(errno, "fstat of a dma-buf");
  return st.st_ino;
}

Result<std::vector<OpenDmaBuf>> open_dmabufs(const std::vector<pid_t>& pids) {
  std::vector<OpenDmaBuf> found;
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<proc::DmaBufDescriptor> descriptors, proc::dmabuf_descriptors(pid));
    std::map<ino_t, std::vector<int>> fds;
    for (const proc::DmaBufDescriptor& descriptor : descriptors)
      fds[descriptor.inode].push_back(descriptor.fd);
    for (const auto& [inode, numbers] : fds) {
      auto dmabuf = std::find_if(found.begin(), found.end(),
                                 [wanted = inode](const OpenDmaBuf& one) { return one.inode == wanted; });
      if (dmabuf == found.end()) dmabuf = found.insert(found.end(), {inode, {pid, numbers.front()}, {}, 0});
      SLUICE_TRY_ASSIGN(const bool counted, counts_already(*dmabuf, pid));
      if (!counted) dmabuf->entries += numbers.size();
      dmabuf->holders.push_back(pid);
    }
  }
  return found;
}

Result<UniqueFd> take_dmabuf(const OpenDmaBuf& listed) {
  SLUICE_TRY_ASSIGN(UniqueFd fd, proc::take_descriptor(listed.first));
  SLUICE_TRY_ASSIGN(const ino_t inode, inode_of_dmabuf(fd.get()));
  SLUICE_TRY_ASSIGN(const FileClass file, classify_fd(fd.get(), 0));
  if (file.kind == FileKind::DmaBuf && inode == listed.inode) return fd;
  return Error{ESTALE,
               formatted("descriptor {} of process {}, a dma-buf, changed while it was examined; stop every "
                         "process that shares the tree's descriptors, or dump it, too [SL-D02]",
                         listed.first.fd, listed.first.pid)};
}

Result<std::uint32_t> gpu_of_dmabuf(const KfdDevice& kfd, int dmabuf) {
  // Linux 6.12 and 7.2 return EINVAL if the metadata exceed the buffer, wanted or not.
  std::array<std::uint8_t, kMostMetadataBytes> metadata;
  DmabufInfoArgs args{};
  args.metadata = reinterpret_cast<std::uintptr_t>(metadata.data());
  args.metadata_size = metadata.size();
  args.dmabuf_fd = static_cast<std::uint32_t>(dmabuf);
  if (const int err = call_ioctl(kfd.ioctl_function(), kfd.fd(), kIocGetDmabufInfo, &args); err != 0)
    return make_error(err, "ask the KFD whose memory a dma-buf is");
  return std::uint32_t{args.gpu_id};
}

Result<std::uint64_t> references_of_dmabuf(int dmabuf) {
  constexpr std::string_view kCount = "\ncount:\t";
  const std::string name = "/proc/self/fdinfo/" + std::to_string(dmabuf);
  const UniqueFd file(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return make_error(errno, "open " + name);
  std::array<char, 4096> text{};
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  if (length < 0) return make_error(errno, "read " + name);
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  const std::size_t at = all.find(kCount);
  std::uint64_t count = 0;
  if (at == all.npos ||
      std::from_chars(all.data() + at + kCount.size(), all.data() + all.size(), count).ec != std::errc())
    return make_error(ENODATA, "read the number of references from " + name);
  return count;
}

}  // namespace sluice::kfd
