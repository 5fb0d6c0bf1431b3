// SPDX-License-Identifier: MIT
#include "proc/mapped_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <utility>

namespace sluice::proc {
namespace {

// A line of /proc/PID/maps about a file.
struct FileMap {
  std::uint64_t begin = 0, end = 0, offset = 0;
  std::pair<std::string, std::uint64_t> file;  // file system and inode
  std::string name;
};

std::optional<FileMap> parse_file_map(const std::string& line) {
  // "7f00-7f01 rw-s 00000000 00:05 123    /dev/kfd"
  FileMap map;
  char system[16];
  int name_at = 0;
  if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %15s %" SCNu64 " %n", &map.begin,
                  &map.end, &map.offset, system, &map.file.second, &name_at) != 5 ||
      map.file.second == 0) {
    return std::nullopt;
  }
  map.file.first = system;
  map.name = line.substr(static_cast<std::size_t>(name_at));
  return map;
}

// Nothing if it is no device, or unknown: the map is gone, the caller may not look, the file's server is
// gone. A device that cannot be examined is an error.
Result<std::optional<dev_t>> device_of(const std::string& directory, const FileMap& map) {
  char range[48];
  (void)std::snprintf(range, sizeof range, "/map_files/%" PRIx64 "-%" PRIx64, map.begin, map.end);
  struct stat st {};
  if (::stat((directory + range).c_str(), &st) == 0)
    return S_ISCHR(st.st_mode) ? std::optional(st.st_rdev) : std::nullopt;
  if (errno == ENOENT || errno == ESRCH || errno == EPERM || errno == EACCES ||
      !map.name.starts_with("/dev/"))  // unreached: a race
    return std::optional<dev_t>();
  return make_error(errno, "stat of " + directory + range);
}

// Calls `take` for every map of a file, with the file's device number; `first`: the file's first map.
template <class Take>
Result<void> for_each_file_map(pid_t pid, const char* proc, Take take) {
  const std::string directory = std::string(proc) + "/" + std::to_string(pid);
  std::ifstream maps(directory + "/maps");
  if (!maps) {
    if (errno == ENOENT || errno == ESRCH) return {};
    return make_error(errno, "open " + directory + "/maps");
  }
  std::map<std::pair<std::string, std::uint64_t>, std::optional<dev_t>> seen;
  for (std::string line; std::getline(maps, line);) {
    auto map = parse_file_map(line);
    if (!map) continue;
    const auto [at, first] = seen.try_emplace(map->file);
    if (first) {
      SLUICE_TRY_ASSIGN(at->second, device_of(directory, *map));
    }
    take(std::move(*map), at->second, first);
  }
  if (maps.bad()) return make_error(EIO, "read " + directory + "/maps");  // the stream keeps no errno
  return {};
}

}  // namespace

Result<std::vector<MappedFile>> mapped_files(pid_t pid, const char* proc) {
  std::vector<MappedFile> files;
  SLUICE_TRY(for_each_file_map(pid, proc, [&](FileMap map, std::optional<dev_t> device, bool first) {
    if (first) files.push_back({map.begin, std::move(map.name), device});
  }));
  return files;
}

Result<std::vector<DeviceMap>> device_maps(pid_t pid, const char* proc) {
  std::vector<DeviceMap> found;
  SLUICE_TRY(for_each_file_map(pid, proc, [&](const FileMap& map, std::optional<dev_t> device, bool) {
    if (device) found.push_back({map.begin, map.offset, *device, map.end - map.begin});
  }));
  return found;
}

}  // namespace sluice::proc
