// SPDX-License-Identifier: MIT
#include "kfd/matching/gpu_map.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <set>

#include "base/format.h"
#include "base/printable.h"
#include "kfd/memory/vram_room.h"

namespace sluice::kfd {

namespace {

constexpr std::size_t kShownMax = 64;  // characters of a setting shown in a message

Error refuse(const std::string& what) {
  return Error{EINVAL, std::string(kGpuMapSetting) + ": " + what};
}

std::string shown(std::string_view text) {
  return "'" + printable(text.substr(0, kShownMax)) + "'";
}

std::optional<std::uint32_t> number(std::string_view text, int base) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool takes_away(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

bool is_pci_address(std::string_view text) {
  constexpr std::string_view kForm = "xxxx:xx:xx.x";
  const auto fits = [](char form, char c) {
    constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
    return form == 'x' ? kDigits.find(c) != std::string_view::npos : form == c;
  };
  return text.size() == kForm.size() && std::equal(kForm.begin(), kForm.end(), text.begin(), fits);
}

std::string_view without_spaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool GpuMap::Name::names(const Node& gpu) const {
  return gpu.is_gpu() && (gpu_id == gpu.gpu_id || minor == gpu.drm_render_minor || pci == pci_address(gpu));
}

std::optional<GpuMap::Name> GpuMap::source_name(std::string_view text) {
  Name name{std::string(text), {}, {}, {}};
  if (takes_away(text, "renderD")) {
    name.minor = number(text, 10);
  } else {
    name.gpu_id = takes_away(text, "0x") ? number(text, 16) : number(text, 10);
  }
  if (!name.minor && !name.gpu_id) return std::nullopt;
  return name;
}

std::optional<GpuMap::Name> GpuMap::local_name(std::string_view text) {
  if (is_pci_address(text)) {
    Name name{std::string(text), {}, {}, std::string(text)};
    std::transform(text.begin(), text.end(), name.pci.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return name;
  }
  auto name = source_name(text);
  if (name && name->gpu_id && !text.starts_with("0x")) name->minor = name->gpu_id;
  return name;
}

Result<GpuMap> GpuMap::parse(std::string_view text) {
  GpuMap map;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view entry = without_spaces(text.substr(0, comma));
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    const std::size_t equals = entry.find('=');
    const auto source = source_name(without_spaces(entry.substr(0, equals)));
    const auto local = equals != std::string_view::npos ? local_name(without_spaces(entry.substr(equals + 1)))
                                                        : std::nullopt;
    if (!source || !local) {
      return refuse(shown(entry) +
                    " is not IMAGE=LOCAL; write 0x280e=0x978f, with 0000:c1:00.0, renderD129 or 129 as LOCAL "
                    "if you like "
                    "[SL-G25]");
    }
    if (map.entries_.size() == kGpusMax)
      return refuse(formatted("more than {} GPUs are named; name only the image's [SL-G26]", kGpusMax));
    map.entries_.push_back({*source, *local});
  }
  return map;
}

Result<std::vector<MappedGpu>> GpuMap::resolve(std::span<const Topology> sources,
                                               const Topology& local) const {
  std::vector<MappedGpu> mapped;
  for (const Entry& entry : entries_) {
    std::set<std::uint32_t> minors;
    for (const Topology& source : sources) {
      for (const Node& node : source.nodes) {
        if (entry.source.names(node)) minors.insert(node.drm_render_minor);
      }
    }
    if (minors.empty())
      return refuse(
          formatted("no process of the images knows a GPU {}; sluice map DIR --gpu-map '' lists those of the "
                    "images [SL-G27]",
                    shown(entry.source.text)));
    if (minors.size() > 1) {
      return refuse(
          formatted("processes of the images know different GPUs by {}; name its render node at the dump, "
                    "renderD{} or renderD{} [SL-G28]",
                    shown(entry.source.text), *minors.begin(), *minors.rbegin()));
    }
    std::vector<const Node*> here;
    for (const Node& node : local.nodes) {
      if (entry.local.names(node)) here.push_back(&node);
    }
    if (here.empty())
      return refuse(
          formatted("this machine has no GPU {}; sluice map DIR --gpu-map '' lists its GPUs [SL-G29]",
                    shown(entry.local.text)));
    if (here.size() > 1) {
      return refuse(
          formatted("{} is {} or {} here; write a gpu_id as 0x..., a render node as renderD... [SL-G30]",
                    shown(entry.local.text), gpu_words(*here[0]), gpu_words(*here[1])));
    }
    const MappedGpu pair{*minors.begin(), here.front()->gpu_id};
    for (const MappedGpu& other : mapped) {
      if (other.source_minor == pair.source_minor)
        return refuse(formatted("GPU {} of the images is named twice; name it once [SL-G31]",
                                shown(entry.source.text)));
      if (other.actual_gpu_id == pair.actual_gpu_id)
        return refuse(
            formatted("local GPU {} is named twice; name it once [SL-G32]", shown(entry.local.text)));
    }
    mapped.push_back(pair);
  }
  return mapped;
}

}  // namespace sluice::kfd
