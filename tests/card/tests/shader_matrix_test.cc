// SPDX-License-Identifier: MIT
// Products of matrices: the compiler's builtin for each opcode, with elements where AMD's matrix instruction
// calculator says.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "shader/half.h"
#include "tests/shader_kit.h"

namespace sluice::card::tests {
namespace {

using shader::Machine;
using shader::MatrixLine;
using Part = MatrixLine::Part;

constexpr const char* kKernels = R"(
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef int i32; typedef float f32;
typedef half half4_ __attribute__((ext_vector_type(4)));
typedef short short4_ __attribute__((ext_vector_type(4)));
#define KERNEL(name, A, element, registers) \
  typedef element D##name __attribute__((ext_vector_type(registers))); \
  kernel void v_mfma_##name(global const A* a, global const A* b, global const D##name* c, global D##name* d) { \
    unsigned i = __builtin_amdgcn_workitem_id_x(); \
    d[i] = __builtin_amdgcn_mfma_##name(a[i], b[i], c[i], 0, 0, 0); \
  }
KERNEL(f32_32x32x1f32, f32, f32, 32)
KERNEL(f32_16x16x1f32, f32, f32, 16)
KERNEL(f32_4x4x1f32, f32, f32, 4)
KERNEL(f32_32x32x2f32, f32, f32, 16)
KERNEL(f32_16x16x4f32, f32, f32, 4)
KERNEL(f32_32x32x4f16, half4_, f32, 32)
KERNEL(f32_16x16x4f16, half4_, f32, 16)
KERNEL(f32_4x4x4f16, half4_, f32, 4)
KERNEL(f32_32x32x8f16, half4_, f32, 16)
KERNEL(f32_16x16x16f16, half4_, f32, 4)
KERNEL(i32_32x32x4i8, i32, i32, 32)
KERNEL(i32_16x16x4i8, i32, i32, 16)
KERNEL(i32_4x4x4i8, i32, i32, 4)
KERNEL(i32_32x32x8i8, i32, i32, 16)
KERNEL(i32_16x16x16i8, i32, i32, 4)
KERNEL(f32_32x32x4bf16_1k, short4_, f32, 32)
KERNEL(f32_16x16x4bf16_1k, short4_, f32, 16)
KERNEL(f32_4x4x4bf16_1k, short4_, f32, 4)
KERNEL(f32_32x32x8bf16_1k, short4_, f32, 16)
KERNEL(f32_16x16x16bf16_1k, short4_, f32, 4)

// Its sums begin with a constant, and stay in AccVGPRs.
kernel void accumulate(global const f32* a, global const f32* b, global Df32_16x16x4f32* d) {
  unsigned i = __builtin_amdgcn_workitem_id_x();
  Df32_16x16x4f32 sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a[i], b[i], (Df32_16x16x4f32)(1.0f), 0, 0, 0);
  for (int k = 0; k < 3; ++k) {
    __asm__ volatile("" : "+a"(sum));
    sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a[i], b[i], sum, 0, 0, 0);
  }
  d[i] = sum;
}
kernel void broadcast(global const f32* a, global const f32* b, global Df32_4x4x1f32* d) {
  unsigned i = __builtin_amdgcn_workitem_id_x();
  d[i] = __builtin_amdgcn_mfma_f32_4x4x1f32(a[i], b[i], (Df32_4x4x1f32)(0.0f), 1, 0, 0);
}
)";

constexpr unsigned kLanes = shader::kLanes;

// Small numbers, whose products and sums are exact in every type.
using Number = std::function<int(unsigned at, unsigned k, unsigned block)>;

std::uint64_t bits_of_part(Part part, int value) {
  switch (part) {
    case Part::kF32:
      return shader::bits_of(static_cast<float>(value));
    case Part::kF16:
      return shader::to_half(static_cast<float>(value)).bits;
    case Part::kBf16:
      return shader::bits_of(static_cast<float>(value)) >> 16;
    case Part::kI8:
      return static_cast<std::uint8_t>(value);
  }
  return 0;
}
std::uint32_t bits_of_sum(Part part, int value) {
  return part == Part::kI8 ? static_cast<std::uint32_t>(value) : shader::bits_of(static_cast<float>(value));
}

// A, or B by columns, as the lanes have it: one number each, or four in as many bits as these have.
std::vector<std::byte> in_lanes(const MatrixLine& line, const Number& number) {
  const unsigned parts = line.part == Part::kF32 ? 1 : 4;
  const unsigned bytes = line.part == Part::kF32 || line.part == Part::kI8 ? 4 : 8, width = bytes / parts;
  std::vector<std::byte> lanes(std::size_t{kLanes} * bytes);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned at = lane % line.rows, beyond = lane / line.rows, steps = line.depth / parts;
    for (unsigned part = 0; part < parts; ++part) {
      const auto bits = bits_of_part(line.part, number(at, parts * (beyond % steps) + part, beyond / steps));
      std::memcpy(&lanes[lane * bytes + part * width], &bits, width);
    }
  }
  return lanes;
}

// Where an element of C and D is.
struct Place {
  unsigned reg, lane;
};
Place place_of(const MatrixLine& line, unsigned i, unsigned j, unsigned block) {
  switch (line.rows) {
    case 32:
      return {16 * block + 4 * (i / 8) + i % 4, j + 32 * (i / 4 % 2)};
    case 16:
      return {4 * block + i % 4, j + 16 * (i / 4)};
    default:
      return {i, j + 4 * block};
  }
}

class ShaderMatrix : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const test::TempDir dir;
    elf_ = compile_for_gpu(dir, kKernels);
  }
  void SetUp() override { ASSERT_FALSE(elf_.empty()) << "clang and lld are needed (scripts/setup --tests)"; }

  // One wave. `arguments` are the memory that it reaches.
  Machine::Result run(const std::string& kernel, std::vector<std::span<std::byte>> arguments) {
    CodeObject code(elf_);
    std::vector<const void*> kernarg;
    HostMemory memory;
    memory.add(code.image());
    for (const auto& argument : arguments) {
      memory.add(argument);
      kernarg.push_back(argument.data());
    }
    memory.add(std::as_writable_bytes(std::span(kernarg)));
    const auto dispatch =
        shader::Dispatch::read(memory, packet_of(code.symbol(kernel + ".kd"), kernarg.data(), 1, kLanes), {});
    if (!dispatch) return Machine::Result::kStopped;
    Machine machine(memory, {});
    shader::Group group = dispatch->group(0);
    std::uint64_t budget = 10'000;
    const Machine::Result result = machine.run(group, budget);
    why_ = machine.why();
    return result;
  }

  static std::vector<std::byte> elf_;
  std::string why_;
};
std::vector<std::byte> ShaderMatrix::elf_;

TEST_F(ShaderMatrix, EveryOpcodeMultiplies) {
  for (const MatrixLine& line : shader::matrix_table().lines()) {
    SCOPED_TRACE(line.name);
    const Number a = [](unsigned i, unsigned k, unsigned n) { return int((i * 5 + k * 3 + n * 7) % 17) - 8; };
    const Number b = [](unsigned j, unsigned k, unsigned n) { return int((j * 3 + k * 7 + n) % 13) - 6; };
    const unsigned registers = line.rows * line.rows * line.blocks / kLanes;
    std::vector<std::byte> in_a = in_lanes(line, a), in_b = in_lanes(line, b);
    std::vector<std::uint32_t> c(std::size_t{registers} * kLanes), d(c.size()), right(c.size());
    for (unsigned block = 0; block < line.blocks; ++block) {
      for (unsigned i = 0; i < line.rows; ++i) {
        for (unsigned j = 0; j < line.rows; ++j) {
          const Place place = place_of(line, i, j, block);
          const std::size_t at = place.lane * registers + place.reg;
          int sum = int(i) * 100 - int(j) * 10 + int(block);
          c[at] = bits_of_sum(line.part, sum);
          for (unsigned k = 0; k < line.depth; ++k) sum += a(i, k, block) * b(j, k, block);
          right[at] = bits_of_sum(line.part, sum);
        }
      }
    }
    ASSERT_EQ(run(line.name,
                  {in_a, in_b, std::as_writable_bytes(std::span(c)), std::as_writable_bytes(std::span(d))}),
              Machine::Result::kDone)
        << why_;
    EXPECT_EQ(d, right);
  }
}

TEST_F(ShaderMatrix, SumsStayInAccumulators) {
  std::array<float, kLanes> a{}, b{};
  std::array<float, std::size_t{kLanes} * 4> d{};
  a.fill(2), b.fill(3);
  ASSERT_EQ(run("accumulate", {std::as_writable_bytes(std::span(a)), std::as_writable_bytes(std::span(b)),
                               std::as_writable_bytes(std::span(d))}),
            Machine::Result::kDone)
      << why_;
  for (const float sum : d) ASSERT_EQ(sum, 1 + 4 * 4 * 6);
}

TEST_F(ShaderMatrix, ABroadcastIsRefusedByName) {
  std::array<float, kLanes> a{}, b{};
  std::array<float, std::size_t{kLanes} * 4> d{};
  EXPECT_EQ(run("broadcast", {std::as_writable_bytes(std::span(a)), std::as_writable_bytes(std::span(b)),
                              std::as_writable_bytes(std::span(d))}),
            Machine::Result::kStopped);
  EXPECT_NE(why_.find("v_mfma_f32_4x4x1f32 with a broadcast"), std::string::npos) << why_;
}

}  // namespace
}  // namespace sluice::card::tests
