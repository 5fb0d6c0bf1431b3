// SPDX-License-Identifier: MIT
#include "cli/check/criu_binary.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

#include "cli/check/mapped_file.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kLongestPath = 256;

bool is_of_a_path(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' || c == '.' ||
         c == '_' || c == '-' || c == '+';
}

// The string, from its '/' to its NUL, that ends with "/criu" or "/criu/" around `at`; empty if there is
// none.
std::string_view path_around(std::string_view bytes, std::size_t at) {
  constexpr std::string_view kLast = "/criu";
  std::size_t end = at + kLast.size();
  if (end < bytes.size() && bytes[end] == '/') ++end;
  if (end == bytes.size() || bytes[end] != '\0') return {};
  std::size_t begin = at;
  while (begin > 0 && at - begin < kLongestPath && is_of_a_path(bytes[begin - 1])) --begin;
  if (begin > 0 && bytes[begin - 1] != '\0') return {};
  const std::string_view path = bytes.substr(begin, end - begin);
  return path.starts_with('/') && path.find("lib") != std::string_view::npos ? path : std::string_view();
}

std::optional<std::string> plugin_directory_in(std::string_view bytes) {
  std::set<std::string> found;
  for (std::size_t at = bytes.find("/criu"); at != std::string_view::npos; at = bytes.find("/criu", at + 1)) {
    std::string_view path = path_around(bytes, at);
    if (path.ends_with('/')) path.remove_suffix(1);
    if (!path.empty()) found.emplace(path);
  }
  if (found.size() != 1) return std::nullopt;
  return *found.begin();
}

// The only string that is a version, as in Debian's three; empty if there are more.
std::string version_in(std::string_view bytes) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  constexpr std::size_t kLongest = 16;
  std::string found;
  for (std::size_t at = bytes.find('.'); at != std::string_view::npos; at = bytes.find('.', at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && at - begin < kLongest && is_digit(bytes[begin - 1])) --begin;
    const std::string_view text = bytes.substr(begin, bytes.substr(begin, kLongest).find('\0'));
    const bool whole = begin < at && begin > 0 && bytes[begin - 1] == '\0' && text.size() < kLongest &&
                       is_digit(text.back()) && text.find("..") == std::string_view::npos &&
                       text.find_first_not_of("0123456789.") == std::string_view::npos &&
                       std::count(text.begin(), text.end(), '.') <= 2;  // not an IP address
    if (!whole || text == found) continue;
    if (!found.empty()) return "";
    found = text;
  }
  return found;
}

}  // namespace

CriuBinary read_criu_binary(const std::string& path) {
  const MappedFile file(path);
  const std::string_view bytes = file.bytes();
  CriuBinary binary;
  if (!bytes.starts_with("\177ELF")) return binary;
  binary.version = version_in(bytes);
  binary.plugin_directory = plugin_directory_in(bytes);
  binary.has_libbpf = bytes.find("libbpf.so") != std::string_view::npos;
  binary.chooses_plugins = bytes.find("CR_PLUGIN_DESC_SIZE") != std::string_view::npos;
  return binary;
}

}  // namespace sluice::cli
