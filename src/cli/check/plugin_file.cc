// SPDX-License-Identifier: MIT
#include "cli/check/plugin_file.h"

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

#include "cli/check/mapped_file.h"

namespace sluice::cli {
namespace {

// The value at `at` of the file; nothing beyond its end.
template <class Value>
std::optional<Value> load(std::string_view bytes, std::uint64_t at) {
  Value value;
  if (at > bytes.size() || bytes.size() - at < sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::optional<Elf64_Shdr> section(std::string_view bytes, std::uint64_t index) {
  const auto header = load<Elf64_Ehdr>(bytes, 0);
  if (!header || header->e_shentsize != sizeof(Elf64_Shdr) || index >= header->e_shnum) return std::nullopt;
  return load<Elf64_Shdr>(bytes, header->e_shoff + index * sizeof(Elf64_Shdr));
}

// Where the file has what the exported symbol `name` names.
std::optional<std::uint64_t> place_of(std::string_view bytes, std::string_view name) {
  for (std::uint64_t i = 0; const auto symbols = section(bytes, i); ++i) {
    if (symbols->sh_type != SHT_DYNSYM) continue;
    const auto names = section(bytes, symbols->sh_link);
    if (!names) return std::nullopt;
    for (std::uint64_t at = 0; at < symbols->sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = load<Elf64_Sym>(bytes, symbols->sh_offset + at);
      if (!symbol) return std::nullopt;
      const std::uint64_t text = names->sh_offset + symbol->st_name;
      if (text > bytes.size() || bytes.substr(text, name.size() + 1) != std::string(name) + '\0') continue;
      const auto holder = section(bytes, symbol->st_shndx);
      if (!holder || holder->sh_type != SHT_PROGBITS) return std::nullopt;
      return holder->sh_offset + (symbol->st_value - holder->sh_addr);
    }
  }
  return std::nullopt;
}

std::optional<std::uint32_t> declared_version(std::string_view bytes) {
  const auto size_at = place_of(bytes, "CR_PLUGIN_DESC_SIZE"),
             descriptor_at = place_of(bytes, "CR_PLUGIN_DESC");
  if (!size_at || !descriptor_at) return std::nullopt;
  const auto size = load<std::uint32_t>(bytes, *size_at);
  constexpr std::uint32_t kAlignment = 8;  // of the descriptor, whose last member has four bytes
  if (!size || *size < kAlignment) return std::nullopt;
  const auto version = load<std::uint32_t>(bytes, *descriptor_at + *size - kAlignment);
  return version == 0U ? std::nullopt : version;
}

}  // namespace

PluginFile read_plugin_file(const std::string& path) {
  constexpr std::string_view kIdentity = "sluice amdgpu_plugin ";
  constexpr std::string_view kName("\0amdgpu_plugin", sizeof "\0amdgpu_plugin");  // a whole string
  const MappedFile file(path);
  const std::string_view bytes = file.bytes();
  PluginFile plugin;
  if (const std::size_t at = bytes.find(kIdentity); at != std::string_view::npos) {
    const std::string_view rest = bytes.substr(at + kIdentity.size(), 32);
    plugin.sluice_version = rest.substr(0, rest.find('\0'));
  }
  plugin.is_amdgpu =
      bytes.find("CR_PLUGIN_DESC") != std::string_view::npos && bytes.find(kName) != std::string_view::npos;
  plugin.implementation_version = declared_version(bytes).value_or(1);
  return plugin;
}

}  // namespace sluice::cli
