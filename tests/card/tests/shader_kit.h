// SPDX-License-Identifier: MIT
// Programs of gfx90a for tests: clang compiles them, and the interpreter runs them on memory of this process.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shader/launch.h"
#include "support/temp_dir.h"

namespace sluice::card::tests {

// Runs a program and waits for it. True: it exited with 0.
bool run_program(const std::vector<std::string>& words);
std::vector<std::byte> whole_file(const std::string& path);

// Addresses of waves are those of this process, in the ranges that were added.
class HostMemory final : public shader::Outside {
 public:
  void add(std::span<std::byte> range) { ranges_.push_back(range); }
  std::span<std::byte> at(std::uint64_t address, std::size_t length, Access access) override;
  std::uint64_t clock() override { return ++clock_; }
  void interrupt(std::uint32_t data) override { interrupts.push_back(data); }

  std::vector<std::uint32_t> interrupts;

 private:
  std::vector<std::span<std::byte>> ranges_;
  std::uint64_t clock_ = 0;
};

// A linked program, at any address.
class CodeObject {
 public:
  explicit CodeObject(const std::vector<std::byte>& elf);

  std::span<std::byte> image() { return image_; }
  // Address of a symbol; 0: there is none.
  std::uint64_t symbol(const std::string& name) const;

 private:
  std::vector<std::byte> storage_;
  std::span<std::byte> image_;
  std::map<std::string, std::uint64_t> symbols_;
};

// OpenCL C, for gfx90a. What the compiler says goes to the test's output; the answer is then empty.
std::vector<std::byte> compile_for_gpu(const test::TempDir& dir, const std::string& source);
// Assembler.
std::vector<std::byte> assemble_for_gpu(const test::TempDir& dir, const std::string& source);

// A dispatch of `groups` workgroups of `items` work-items, all in one dimension.
shader::DispatchPacket packet_of(std::uint64_t descriptor, const void* kernarg, std::uint32_t groups,
                                 std::uint16_t items);

}  // namespace sluice::card::tests
