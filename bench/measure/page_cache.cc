// SPDX-License-Identifier: MIT
#include "measure/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"

namespace sluice::bench {
namespace {

constexpr long kCachestat = 451;  // the same on all architectures; not in Debian 12's headers
struct CachestatRange {
  std::uint64_t offset, bytes;
};
struct Cachestat {  // pages
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

// Enough for the disk to fill a page before it can be dropped.
constexpr int kDropAttempts = 1000;
constexpr auto kDropPause = std::chrono::milliseconds(1);

Result<UniqueFd> open_read(const std::filesystem::path& file) {
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return make_error(errno, "open " + file.string());
  return fd;
}

Result<std::uint64_t> resident_pages(int fd, std::uint64_t bytes, std::uint64_t pages) {
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return make_error(errno, "map");
  std::vector<unsigned char> resident(pages);
  const int outcome = ::mincore(map, bytes, resident.data());
  const int error = errno;
  (void)::munmap(map, bytes);
  if (outcome != 0) return make_error(error, "mincore");
  return static_cast<std::uint64_t>(
      std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1U) != 0; }));
}

}  // namespace

Result<double> cached_share(const std::filesystem::path& file) {
  SLUICE_TRY_ASSIGN(const UniqueFd fd, open_read(file));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return make_error(errno, "stat " + file.string());
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes == 0) return 0.0;
  const std::uint64_t pages = div_ceil(bytes, static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  CachestatRange range{0, bytes};
  Cachestat found{};
  std::uint64_t cached = 0;
  if (::syscall(kCachestat, fd.get(), &range, &found, 0) == 0) {
    cached = found.cached;
  } else {
    SLUICE_TRY_ASSIGN(cached, resident_pages(fd.get(), bytes, pages));
  }
  return static_cast<double>(cached) / static_cast<double>(pages);
}

Result<void> drop_cached(const std::filesystem::path& file) {
  SLUICE_TRY_ASSIGN(const UniqueFd fd, open_read(file));
  // Dirty pages stay, so write them first.
  if (::fdatasync(fd.get()) != 0) return make_error(errno, "sync " + file.string());
  if (const int error = ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
    return make_error(error, "posix_fadvise " + file.string());
  return {};
}

Result<void> read_in(const std::filesystem::path& file, std::uint64_t bytes) {
  SLUICE_TRY_ASSIGN(const UniqueFd fd, open_read(file));
  std::vector<char> buffer(kMiB);
  for (std::uint64_t at = 0; at < bytes;) {
    const ssize_t got = ::pread(fd.get(), buffer.data(), std::min<std::uint64_t>(buffer.size(), bytes - at),
                                static_cast<off_t>(at));
    if (got <= 0) return make_error(got < 0 ? errno : EIO, "read " + file.string());
    at += static_cast<std::uint64_t>(got);
  }
  // Drops what was read ahead. Reading without read-ahead would leave the cache in single pages, which are
  // slower to read back. A page that the disk still fills cannot be dropped: wait for it.
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return make_error(errno, "stat " + file.string());
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const double wanted =
      static_cast<double>(align_up(bytes, page)) / static_cast<double>(std::max<off_t>(status.st_size, 1));
  for (int attempt = 0; attempt < kDropAttempts; ++attempt) {
    if (const int error = ::posix_fadvise(fd.get(), static_cast<off_t>(bytes), 0, POSIX_FADV_DONTNEED);
        error != 0)
      return make_error(error, "posix_fadvise " + file.string());
    SLUICE_TRY_ASSIGN(const double share, cached_share(file));
    if (share <= wanted) break;
    std::this_thread::sleep_for(kDropPause);
  }
  return {};
}

}  // namespace sluice::bench
