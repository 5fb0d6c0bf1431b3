// SPDX-License-Identifier: MIT
#include "kfd/memory/vram_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <string_view>

#include "base/unique_fd.h"
#include "base/units.h"
#include "kfd/uapi.h"

namespace sluice::kfd {

namespace {

// The text of a file, up to this many bytes.
std::optional<std::string> read_text(const std::string& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::string text(most, '\0');
  const ssize_t got = TEMP_FAILURE_RETRY(::read(fd.get(), text.data(), text.size()));
  if (got < 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(got));
  return text;
}

// The first line of a short file.
std::optional<std::string> read_line(const std::string& path) {
  auto text = read_text(path, 64);
  if (text) text->resize(std::min(text->find('\n'), text->size()));
  return text;
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

// "current_compute_partition" exists, and the GPU is not one whole.
bool is_partition(const std::string& device) {
  const auto partition = read_line(device + "current_compute_partition");
  return partition && *partition != "SPX";
}

std::optional<VramUse> read_use(const std::string& device, const std::string& kind) {
  if (is_partition(device)) return std::nullopt;
  const auto total = read_bytes(device + "mem_info_" + kind + "_total");
  const auto used = read_bytes(device + "mem_info_" + kind + "_used");
  if (!total || !used) return std::nullopt;
  return VramUse{*total, *used};
}

std::string device_of(std::uint32_t render_minor, const std::string& drm_path) {
  return drm_path + "/renderD" + std::to_string(render_minor) + "/device/";
}

// A line "MemTotal:       16384 kB".
std::optional<std::uint64_t> bytes_of(std::string_view meminfo, const std::string& name) {
  const std::string begin = name + ":";
  std::size_t at = meminfo.find(begin);
  if (at == meminfo.npos) return std::nullopt;
  at = meminfo.find_first_not_of(' ', at + begin.size());
  if (at == meminfo.npos) return std::nullopt;
  std::uint64_t kib = 0;
  if (std::from_chars(meminfo.data() + at, meminfo.data() + meminfo.size(), kib).ec != std::errc())
    return std::nullopt;
  return kib * kKiB;
}

std::uint64_t less(std::uint64_t from, std::uint64_t bytes) {
  return from > bytes ? from - bytes : 0;
}

// The lower one of the two that kernels have.
std::uint64_t kfd_limit(std::uint64_t ram) {
  constexpr std::uint64_t kReserve = 3 * kGiB / 2;
  const std::uint64_t newer = ram - ram / 64;
  return std::min(ram - ram / 16, newer < 2 * kReserve ? newer / 2 : newer - kReserve);
}

}  // namespace

std::optional<VramUse> VramMeter::use(const Node& gpu) {
  const auto of_card = read_use(device_of(gpu.drm_render_minor, drm_path_), "vram");
  return of_card ? of_card : ask_kfd(gpu);
}

std::optional<VramUse> VramMeter::ask_kfd(const Node& gpu) {
  const Lock lock(mutex_);
  if (!own_ && kfd_device_ != 0) {
    if (auto opened = KfdDevice::open(kfd_device_)) own_ = std::move(*opened);
  }
  AvailableMemoryArgs args{};
  args.gpu_id = gpu.gpu_id;
  if (!own_ || call_ioctl(own_->ioctl_function(), own_->fd(), kIocAvailableMemory, &args) != 0)
    return std::nullopt;
  return VramUse{gpu.vram_size, gpu.vram_size - std::min(gpu.vram_size, args.available)};
}

std::optional<std::uint64_t> gtt_room(std::span<const std::uint32_t> render_minors,
                                      const SystemFiles& files) {
  const auto text = read_text(files.meminfo, 4096);
  if (!text) return std::nullopt;
  const auto ram = bytes_of(*text, "MemTotal");
  const auto available = bytes_of(*text, "MemAvailable");
  if (!ram || !available) return std::nullopt;
  std::uint64_t room = less(kfd_limit(*ram), less(*ram, *available));
  std::uint64_t used = 0;
  for (const std::uint32_t minor : render_minors) {
    const auto use = read_use(device_of(minor, files.drm_path), "gtt");
    if (!use) return std::nullopt;
    room = std::min(room, use->room());
    used += use->used_bytes;
  }
  if (const auto pages = read_bytes(files.ttm_pages)) {
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t most = *ram / page_bytes;  // more is no limit
    room = std::min(room, less(std::min(*pages, most) * page_bytes, used));
  }
  return room;
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
