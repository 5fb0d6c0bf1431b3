// SPDX-License-Identifier: MIT
#include "kfd/mapped_files.h"

#include <sys/stat.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <set>
#include <utility>

namespace sluice::kfd {

Result<std::vector<MappedFile>> mapped_files(pid_t pid, const char* proc) {
  const std::string directory = std::string(proc) + "/" + std::to_string(pid);
  std::ifstream maps(directory + "/maps");
  if (!maps) {
    if (errno == ENOENT || errno == ESRCH) return std::vector<MappedFile>();
    return make_error(errno, "open " + directory + "/maps");
  }
  std::vector<MappedFile> files;
  std::set<std::pair<std::string, std::uint64_t>> seen;  // file system and inode
  for (std::string line; std::getline(maps, line);) {
    // "7f00-7f01 rw-s 00000000 00:05 123    /dev/kfd"
    std::uint64_t begin = 0, end = 0, inode = 0;
    char system[16];
    int name_at = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*s %15s %" SCNu64 " %n", &begin, &end, system,
                    &inode, &name_at) != 4 ||
        inode == 0 || !seen.emplace(system, inode).second) {
      continue;
    }
    MappedFile file{begin, line.substr(static_cast<std::size_t>(name_at)), std::nullopt};
    char range[48];
    (void)std::snprintf(range, sizeof range, "/map_files/%" PRIx64 "-%" PRIx64, begin, end);
    struct stat st {};
    if (::stat((directory + range).c_str(), &st) == 0 && S_ISCHR(st.st_mode)) file.device = st.st_rdev;
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace sluice::kfd
