// SPDX-License-Identifier: MIT
#include "proc/directory.h"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/unique_fd.h"

namespace sluice::proc {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)::closedir(directory); }
};

}  // namespace

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Result<std::vector<int>> listed_numbers(const std::string& path, int at) {
  UniqueFd fd(::openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC));
  const std::unique_ptr<DIR, CloseDirectory> directory(fd ? ::fdopendir(fd.get()) : nullptr);
  if (directory == nullptr) return make_error(errno, "opendir " + path);
  (void)fd.release();
  std::vector<int> numbers;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    if (const auto number = parse_number(entry->d_name)) numbers.push_back(*number);
  }
  if (errno != 0) return make_error(errno, "readdir " + path);
  return numbers;
}

Result<std::vector<int>> numbered_entries(const std::string& path, int at) {
  SLUICE_TRY_ASSIGN(std::vector<int> numbers, listed_numbers(path, at));
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace sluice::proc
