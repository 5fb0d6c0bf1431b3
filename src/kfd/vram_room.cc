// SPDX-License-Identifier: MIT
#include "kfd/vram_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <string_view>

#include "base/unique_fd.h"
#include "base/units.h"

namespace sluice::kfd {

namespace {

// The first line of a short file.
std::optional<std::string> read_line(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::array<char, 64> text{};
  const ssize_t got = TEMP_FAILURE_RETRY(::read(fd.get(), text.data(), text.size()));
  if (got < 0) return std::nullopt;
  const std::string_view all(text.data(), static_cast<std::size_t>(got));
  return std::string(all.substr(0, all.find('\n')));
}

std::optional<std::uint64_t> read_bytes(const std::string& path) {
  const auto line = read_line(path);
  if (!line) return std::nullopt;
  std::uint64_t bytes = 0;
  const char* const end = line->data() + line->size();
  const auto [last, error] = std::from_chars(line->data(), end, bytes);
  if (error != std::errc() || last != end) return std::nullopt;
  return bytes;
}

}  // namespace

std::optional<VramUse> vram_use(std::uint32_t render_minor, const std::string& drm_path) {
  const std::string device = drm_path + "/renderD" + std::to_string(render_minor) + "/device/";
  if (const auto partition = read_line(device + "current_compute_partition");
      partition && *partition != "SPX")
    return std::nullopt;
  const auto total = read_bytes(device + "mem_info_vram_total");
  const auto used = read_bytes(device + "mem_info_vram_used");
  if (!total || !used) return std::nullopt;
  return VramUse{*total, *used};
}

std::string pci_address(const Node& gpu) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%04" PRIx32 ":%02" PRIx32 ":%02" PRIx32 ".%" PRIx32,
                      gpu.domain, gpu.location_id >> 8 & 0xff, gpu.location_id >> 3 & 0x1f,
                      gpu.location_id & 0x7);
  return text.data();
}

std::string gpu_words(const Node& gpu) {
  return gpu_id_text(gpu.gpu_id) + " renderD" + std::to_string(gpu.drm_render_minor);
}

std::string size_words(std::uint64_t bytes) {
  std::array<char, 32> text{};
  if (bytes >= kGiB) {
    (void)std::snprintf(text.data(), text.size(), "%.1f GiB", static_cast<double>(bytes) / kGiB);
  } else if (bytes >= kMiB) {
    (void)std::snprintf(text.data(), text.size(), "%.1f MiB", static_cast<double>(bytes) / kMiB);
  } else {
    (void)std::snprintf(text.data(), text.size(), "%" PRIu64 " KiB", (bytes + kKiB - 1) / kKiB);
  }
  return text.data();
}

}  // namespace sluice::kfd
