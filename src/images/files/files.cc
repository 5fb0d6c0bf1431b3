// SPDX-License-Identifier: MIT
#include "images/files/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>

#include "base/format.h"
#include "base/image_file.h"
#include "pipeline/layout.h"

namespace sluice {

namespace {

constexpr std::string_view kStatsPrefix = "sluice-stats-";
constexpr std::string_view kTracePrefix = "sluice-trace-";
constexpr std::string_view kImageEnding = ".img";

constexpr std::string_view kCommonPrefix = "amdgpu-";

constexpr std::array<std::pair<Lacks, std::string_view>, 2> kPartialPrefixes{{
    {Lacks::Parents, "amdgpu-delta-"},
    {Lacks::Replicas, "amdgpu-replica-"},
}};

std::string_view prefix_of(Lacks lacks) {
  for (const auto& [each, prefix] : kPartialPrefixes)
    if (each == lacks) return prefix;
  return kCommonPrefix;
}

// A KFD's or a render file's, by any of its names.
bool is_metadata_of(std::string_view prefix, std::string_view name) {
  return name.starts_with(prefix) ||
         std::any_of(kPartialPrefixes.begin(), kPartialPrefixes.end(), [&](const auto& partial) {
           return name.starts_with(partial_name(prefix, partial.first));
         });
}

std::string gpu_ending(std::uint32_t number) {
  char ending[24];
  (void)std::snprintf(ending, sizeof ending, "-%04" PRIx32 ".img", number);
  return ending;
}

Result<void> write_all(int fd, std::span<const std::uint8_t> bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t done = TEMP_FAILURE_RETRY(write(fd, bytes.data(), bytes.size()));
    if (done <= 0) return make_error(done < 0 ? errno : EIO, "write " + name);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

// `fill` writes the file, given its descriptor and name.
template <class Fill>
Result<void> write_temporary(int dir_fd, const std::string& temporary, bool sync, Fill fill) {
  SLUICE_TRY_ASSIGN(UniqueFd fd, create_image_file(dir_fd, temporary));
  SLUICE_TRY(fill(fd.get(), temporary));
  if (sync && TEMP_FAILURE_RETRY(fdatasync(fd.get())) != 0)
    return make_error(errno, "fdatasync " + temporary);
  if (close(fd.release()) != 0) return make_error(errno, "close " + temporary);
  return {};
}

template <class Fill>
Result<void> replace_file(int dir_fd, const std::string& name, bool sync, Fill fill) {
  const std::string temporary = name + ".tmp";
  Result<void> written = write_temporary(dir_fd, temporary, sync, fill);
  if (written && renameat(dir_fd, temporary.c_str(), dir_fd, name.c_str()) != 0) {
    written = make_error(errno, "rename " + temporary + " to " + name);
  }
  if (!written) (void)unlinkat(dir_fd, temporary.c_str(), 0);
  return written;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)closedir(directory); }
};

// Prefix, a number in its shortest decimal form, ending: no dump makes any other name.
std::optional<int> number_in(std::string_view name, std::string_view prefix, std::string_view ending) {
  if (!name.starts_with(prefix) || !name.ends_with(ending) || name.size() < prefix.size() + ending.size())
    return std::nullopt;
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - ending.size());
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || number < 0 || std::to_string(number) != digits) return std::nullopt;
  return number;
}

// The metadata image that a pages or sums file belongs to, by its name; nothing for other files.
std::optional<std::string> metadata_image_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string (*)(int)>, 8> kKinds{{
      {"amdgpu-pages-", kfd_image_name},
      {"amdgpu-delta-", kfd_image_name},
      {"amdgpu-delta-drm-", render_image_name},
      {"amdgpu-replica-", kfd_image_name},
      {"amdgpu-replica-drm-", render_image_name},
      {"amdgpu-sums-", kfd_image_name},
      {"amdgpu-drm-pages-", render_image_name},
      {"amdgpu-sums-drm-", render_image_name},
  }};
  for (const auto& [prefix, metadata_name] : kKinds) {
    const std::size_t end = name.starts_with(prefix) ? name.find('-', prefix.size()) : name.npos;
    if (end == name.npos || !name.ends_with(kImageEnding)) continue;
    if (const auto id = number_in(name.substr(0, end), prefix, "")) return metadata_name(*id);
  }
  return std::nullopt;
}

std::optional<int> id_in_partial(std::string_view name, std::string_view prefix) {
  if (prefix != kKfdPrefix && prefix != kRenderPrefix) return std::nullopt;
  for (const auto& partial : kPartialPrefixes) {
    if (const auto id = number_in(name, partial_name(prefix, partial.first), kImageEnding)) return id;
  }
  return std::nullopt;
}

Result<std::vector<std::string>> list_images(int dir_fd, std::string_view prefix) {
  SLUICE_TRY_ASSIGN(std::vector<std::string> names, list_names(dir_fd));
  keep_images(names, prefix);
  return names;
}

}  // namespace

std::string kfd_image_name(int id) {
  return std::string(kKfdPrefix) + std::to_string(id) + ".img";
}
std::string pages_image_name(int id, std::uint32_t gpu_id, Lacks lacks) {
  const std::string_view prefix = lacks == Lacks::Nothing ? "amdgpu-pages-" : prefix_of(lacks);
  return std::string(prefix) + std::to_string(id) + gpu_ending(gpu_id);
}
std::string sums_image_name(int id, std::uint32_t gpu_id) {
  return "amdgpu-sums-" + std::to_string(id) + gpu_ending(gpu_id);
}
std::string render_image_name(int id) {
  return std::string(kRenderPrefix) + std::to_string(id) + ".img";
}

std::string drm_pages_image_name(int id, std::uint32_t minor, std::uint32_t bo, Lacks lacks) {
  const std::string_view kind = lacks == Lacks::Nothing ? "drm-pages-" : "drm-";
  return std::string(prefix_of(lacks)) + std::string(kind) + std::to_string(id) + "-" +
         std::to_string(minor) + gpu_ending(bo);
}
std::string dmabuf_image_name(int id) {
  return std::string(kDmaBufPrefix) + std::to_string(id) + ".img";
}
std::string drm_sums_image_name(int id, std::uint32_t minor) {
  return "amdgpu-sums-drm-" + std::to_string(id) + "-" + std::to_string(minor) + ".img";
}

std::string predump_name(std::string_view dump_name) {
  return std::string(kPreDumpPrefix) + std::string(dump_name.substr(kCommonPrefix.size()));
}

std::string partial_name(std::string_view name, Lacks lacks) {
  return std::string(prefix_of(lacks)) + std::string(name.substr(kCommonPrefix.size()));
}

std::optional<std::string> complete_name(std::string_view partial_name) {
  for (const std::string_view prefix : {kKfdPrefix, kRenderPrefix}) {
    if (const auto id = id_in_partial(partial_name, prefix))
      return std::string(prefix) + std::to_string(*id) + std::string(kImageEnding);
  }
  return std::nullopt;
}

Lacks lacks_among(const std::vector<std::string>& names) {
  for (const auto& partial : kPartialPrefixes) {
    const auto is_such = [&](const std::string& name) { return name.starts_with(partial.second); };
    if (std::any_of(names.begin(), names.end(), is_such)) return partial.first;
  }
  return Lacks::Nothing;
}

bool is_metadata(std::string_view name) {
  return is_metadata_of(kKfdPrefix, name) || is_metadata_of(kRenderPrefix, name) ||
         name.starts_with(kDmaBufPrefix) || name == kPreDumpMark;
}

std::string pages_image_ending(std::uint32_t gpu_id) {
  return gpu_ending(gpu_id);
}
std::string unnamed_pages_image(unsigned number, std::uint32_t gpu_id) {
  return "amdgpu-pages-unnamed" + std::to_string(number) + gpu_ending(gpu_id);
}
std::string unnamed_drm_pages_image(unsigned number, std::uint32_t minor, std::uint32_t bo) {
  return "amdgpu-drm-pages-unnamed" + std::to_string(number) + "-" + std::to_string(minor) + gpu_ending(bo);
}

Result<void> write_framed(int fd, std::span<const std::uint8_t> payload, const std::string& name) {
  const std::uint64_t length = payload.size();
  if (length > kLargestImageBytes - kHeaderBytes) {
    return Error{EOVERFLOW,
                 formatted("{} would have {} bytes, more than a restore reads; dump a process with fewer BOs "
                           "[SL-I11]",
                           name, length)};
  }
  std::uint8_t header[kHeaderBytes];
  std::memcpy(header, &length, sizeof header);
  SLUICE_TRY(write_all(fd, header, name));
  return write_all(fd, payload, name);
}

Result<std::vector<std::uint8_t>> unframe(std::vector<std::uint8_t> bytes, const std::string& name) {
  if (bytes.size() < kHeaderBytes)
    return Error{EBADMSG,
                 name + " is not an image: it lacks the 8-byte length; use another checkpoint [SL-I12]"};
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length != bytes.size() - kHeaderBytes) {
    return Error{
        EBADMSG,
        formatted("{} says it holds {} bytes but has {}; copy it again, or use another checkpoint [SL-I13]",
                  name, length, bytes.size() - kHeaderBytes)};
  }
  bytes.erase(bytes.begin(), bytes.begin() + kHeaderBytes);
  return bytes;
}

Result<void> write_image(int dir_fd, const std::string& name, std::span<const std::uint8_t> payload,
                         bool sync) {
  return replace_file(dir_fd, name, sync, [payload](int fd, const std::string& temporary) {
    return write_framed(fd, payload, temporary);
  });
}

Result<void> write_statistics(int dir_fd, const std::string& name, std::string_view text) {
  return replace_file(dir_fd, name, false, [text](int fd, const std::string& temporary) {
    return write_all(fd, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, temporary);
  });
}

Result<std::vector<std::uint8_t>> read_image(int dir_fd, const std::string& name) {
  SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(dir_fd, name));
  SLUICE_TRY_ASSIGN(std::vector<std::uint8_t> bytes, read_whole(file, kLargestImageBytes, name));
  return unframe(std::move(bytes), name);
}

std::string old_pages_image(std::size_t number, const std::string& name) {
  return "amdgpu-pages-old" + std::to_string(number) + name.substr(name.rfind('-'));
}

Result<void> rename_image(int dir_fd, const std::string& from, const std::string& to) {
  if (from == to || renameat(dir_fd, from.c_str(), dir_fd, to.c_str()) == 0) return {};
  return make_error(errno, "rename " + from + " to " + to);
}

Result<void> remove_image(int dir_fd, const std::string& name) {
  if (unlinkat(dir_fd, name.c_str(), 0) != 0 && errno != ENOENT)
    return make_error(errno, "remove stale " + name);
  return {};
}

Result<std::vector<std::string>> remove_plugin_images(int dir_fd, bool keep_pages) {
  SLUICE_TRY_ASSIGN(std::vector<std::string> names, list_names(dir_fd));
  std::erase_if(names, [](const std::string& name) {
    const bool ours = name.starts_with("amdgpu-") && (name.ends_with(".img") || name.ends_with(".img.tmp"));
    return !ours && !name.starts_with(kStatsPrefix) && !name.starts_with(kTracePrefix);
  });
  // KFD's first, because nothing is restored without it: if a later one stays, it is useless.
  const auto place = [](const std::string& name) {
    return std::tuple(!is_metadata(name), !is_metadata_of(kKfdPrefix, name), std::string_view(name));
  };
  std::sort(names.begin(), names.end(),
            [&](const std::string& left, const std::string& right) { return place(left) < place(right); });
  const auto rest = std::find_if_not(names.begin(), names.end(), is_metadata);
  Result<void> metadata_gone;
  for (auto name = names.begin(); name != rest; ++name) {
    auto removed = remove_image(dir_fd, *name);
    if (!removed && name == names.begin()) return removed.error();
    if (!removed && metadata_gone) metadata_gone = std::move(removed);
  }
  // Before anything else is removed or created: after a crash old metadata must not appear beside new
  // contents.
  if (rest != names.begin()) SLUICE_TRY(sync_directory(dir_fd));
  std::vector<std::string> kept;
  for (const std::string& name : std::span(rest, names.end())) {
    if (keep_pages && metadata_gone && name.starts_with("amdgpu-pages-") && name.ends_with(".img")) {
      kept.push_back(name);
    } else {
      SLUICE_TRY(remove_image(dir_fd, name));
    }
  }
  if (!metadata_gone) return metadata_gone.error();
  return kept;
}

Result<std::vector<std::string>> list_names(int dir_fd) {
  UniqueFd fd(openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return make_error(errno, "open the image directory");
  const std::unique_ptr<DIR, CloseDirectory> directory(fdopendir(fd.get()));
  if (!directory) return make_error(errno, "list the image directory");
  (void)fd.release();  // now owned by the DIR
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(directory.get())) names.emplace_back(entry->d_name);
  if (errno != 0) return make_error(errno, "list the image directory");
  return names;
}

void keep_images(std::vector<std::string>& names, std::string_view prefix) {
  std::erase_if(names, [prefix](const std::string& name) {
    return !number_in(name, prefix, kImageEnding) && !id_in_partial(name, prefix);
  });
  std::sort(names.begin(), names.end());
}

Result<std::vector<std::string>> list_kfd_images(int dir_fd) {
  return list_images(dir_fd, kKfdPrefix);
}
Result<std::vector<std::string>> list_render_images(int dir_fd) {
  return list_images(dir_fd, kRenderPrefix);
}
void keep_stats(std::vector<std::string>& names) {
  std::erase_if(names, [](const std::string& name) {
    return !number_in(name, "sluice-stats-dump-", ".json") &&
           !number_in(name, "sluice-stats-predump-", ".json") &&
           !number_in(name, "sluice-stats-restore-", ".json");
  });
  std::sort(names.begin(), names.end());
}

std::optional<int> id_of_image(std::string_view name) {
  const std::size_t begin = name.find_last_not_of("0123456789", name.size() - sizeof(".img")) + 1;
  int id = 0;
  const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), id);
  if (error != std::errc() || std::string_view(end, name.data() + name.size()) != ".img") return std::nullopt;
  return id;
}

std::vector<std::pair<std::string, std::string>> contents_among(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> contents;
  for (const std::string& name : names) {
    if (std::optional<std::string> metadata = metadata_image_of(name))
      contents.emplace_back(name, std::move(*metadata));
  }
  std::sort(contents.begin(), contents.end());
  return contents;
}

Result<void> sync_directory(int dir_fd) {
  // A new descriptor: fsync may refuse the host's.
  const UniqueFd dir(openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir) return make_error(errno, "open the image directory");
  if (TEMP_FAILURE_RETRY(fsync(dir.get())) != 0) return make_error(errno, "fsync of the image directory");
  return {};
}

}  // namespace sluice
