// SPDX-License-Identifier: MIT
#include "tests/shader_kit.h"

#include <elf.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <iterator>

extern char** environ;

namespace sluice::card::tests {

namespace {

constexpr std::size_t kPage = 4096;

template <class T>
T at(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::vector<std::byte> built(const test::TempDir& dir, const std::string& name, const std::string& source,
                             std::vector<std::string> words) {
  const std::string in = dir.path() + "/" + name, out = in + ".elf";
  std::ofstream(in) << source;
  words.insert(words.end(), {"-target", "amdgcn-amd-amdhsa", "-mcpu=gfx90a", in, "-o", out});
  if (!run_program(words)) return {};
  return whole_file(out);
}

}  // namespace

bool run_program(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) return false;
  int status = 0;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

std::vector<std::byte> whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> chars(std::istreambuf_iterator<char>(in), {});
  std::vector<std::byte> bytes(chars.size());
  if (!chars.empty()) std::memcpy(bytes.data(), chars.data(), chars.size());
  return bytes;
}

std::span<std::byte> HostMemory::at(std::uint64_t address, std::size_t length, Access /*access*/) {
  for (const auto& range : ranges_) {
    const auto begin = reinterpret_cast<std::uint64_t>(range.data());
    if (address < begin || address >= begin + range.size()) continue;
    const std::size_t in_page = kPage - address % kPage;
    const std::size_t left = static_cast<std::size_t>(begin + range.size() - address);
    return range.subspan(static_cast<std::size_t>(address - begin), std::min({length, in_page, left}));
  }
  return {};
}

CodeObject::CodeObject(const std::vector<std::byte>& elf) {
  const auto header = at<Elf64_Ehdr>(elf, 0);
  std::size_t top = 0;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto segment = at<Elf64_Phdr>(elf, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type == PT_LOAD)
      top = std::max(top, static_cast<std::size_t>(segment.p_vaddr + segment.p_memsz));
  }
  storage_.resize(top + 2 * kPage);
  const auto begin = reinterpret_cast<std::uint64_t>(storage_.data());
  image_ = std::span(storage_).subspan((kPage - begin % kPage) % kPage, top);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto segment = at<Elf64_Phdr>(elf, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz <= elf.size()) {
      std::memcpy(image_.data() + segment.p_vaddr, elf.data() + segment.p_offset, segment.p_filesz);
    }
  }
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = at<Elf64_Shdr>(elf, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto strings = at<Elf64_Shdr>(elf, header.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
    for (std::size_t s = 0; s < section.sh_size; s += sizeof(Elf64_Sym)) {
      const auto symbol = at<Elf64_Sym>(elf, section.sh_offset + s);
      const char* name = reinterpret_cast<const char*>(elf.data()) + strings.sh_offset + symbol.st_name;
      symbols_[name] = reinterpret_cast<std::uint64_t>(image_.data()) + symbol.st_value;
    }
  }
}

std::uint64_t CodeObject::symbol(const std::string& name) const {
  const auto found = symbols_.find(name);
  return found == symbols_.end() ? 0 : found->second;
}

std::vector<std::byte> compile_for_gpu(const test::TempDir& dir, const std::string& source) {
  return built(
      dir, "program.cl", source,
      {"clang", "-x", "cl", "-cl-std=CL1.2", "-O2", "-nogpulib", "-ffp-contract=off", "-fwrapv", "-w"});
}

std::vector<std::byte> assemble_for_gpu(const test::TempDir& dir, const std::string& source) {
  return built(dir, "program.s", source, {"clang", "-x", "assembler", "-nogpulib"});
}

shader::DispatchPacket packet_of(std::uint64_t descriptor, const void* kernarg, std::uint32_t groups,
                                 std::uint16_t items) {
  shader::DispatchPacket packet{};
  packet.group_x = items;
  packet.group_y = packet.group_z = 1;
  packet.grid_x = groups * items;
  packet.grid_y = packet.grid_z = 1;
  packet.kernel_object = descriptor;
  packet.kernarg = reinterpret_cast<std::uint64_t>(kernarg);
  return packet;
}

}  // namespace sluice::card::tests
