// SPDX-License-Identifier: MIT
// Matrix products (MFMA) of VOP3P: all lanes of a wave make D = A x B + C, whatever EXEC says.
//
// Facts: "AMD Instinct MI200 Instruction Set Architecture", chapter 12; where an element lies, AMD's matrix
// instruction calculator. The order in which the products of one element are added is ours.
#include <cmath>

#include "shader/half.h"
#include "shader/operands.h"

namespace sluice::card::shader {

namespace {

using Part = MatrixLine::Part;

constexpr MatrixLine kLines[] = {
    {0x40, "v_mfma_f32_32x32x1f32", 32, 1, 2, Part::kF32},
    {0x41, "v_mfma_f32_16x16x1f32", 16, 1, 4, Part::kF32},
    {0x42, "v_mfma_f32_4x4x1f32", 4, 1, 16, Part::kF32},
    {0x44, "v_mfma_f32_32x32x2f32", 32, 2, 1, Part::kF32},
    {0x45, "v_mfma_f32_16x16x4f32", 16, 4, 1, Part::kF32},
    {0x48, "v_mfma_f32_32x32x4f16", 32, 4, 2, Part::kF16},
    {0x49, "v_mfma_f32_16x16x4f16", 16, 4, 4, Part::kF16},
    {0x4a, "v_mfma_f32_4x4x4f16", 4, 4, 16, Part::kF16},
    {0x4c, "v_mfma_f32_32x32x8f16", 32, 8, 1, Part::kF16},
    {0x4d, "v_mfma_f32_16x16x16f16", 16, 16, 1, Part::kF16},
    {0x50, "v_mfma_i32_32x32x4i8", 32, 4, 2, Part::kI8},
    {0x51, "v_mfma_i32_16x16x4i8", 16, 4, 4, Part::kI8},
    {0x52, "v_mfma_i32_4x4x4i8", 4, 4, 16, Part::kI8},
    {0x54, "v_mfma_i32_32x32x8i8", 32, 8, 1, Part::kI8},
    {0x55, "v_mfma_i32_16x16x16i8", 16, 16, 1, Part::kI8},
    {0x63, "v_mfma_f32_32x32x4bf16_1k", 32, 4, 2, Part::kBf16},
    {0x64, "v_mfma_f32_16x16x4bf16_1k", 16, 4, 4, Part::kBf16},
    {0x65, "v_mfma_f32_4x4x4bf16_1k", 4, 4, 16, Part::kBf16},
    {0x66, "v_mfma_f32_32x32x8bf16_1k", 32, 8, 1, Part::kBf16},
    {0x67, "v_mfma_f32_16x16x16bf16_1k", 16, 16, 1, Part::kBf16},
};

constexpr unsigned kMostDepth = 16;

// A row of A or a column of B, as numbers that either kind of product takes.
struct Vector {
  std::array<float, kMostDepth> floats{};
  std::array<I32, kMostDepth> integers{};
};

unsigned parts_in_lane(Part part) {
  return part == Part::kF32 ? 1 : 4;
}

class Product {
 public:
  Product(const Machine& machine, const Wave& wave, const Instruction& in, const MatrixLine& line)
      : machine_(machine), wave_(wave), line_(line) {
    a_ = in.bits2(0, 9) + (in.has2(27) ? kVectorRegisters : 0);
    b_ = in.bits2(9, 9) + (in.has2(28) ? kVectorRegisters : 0);
    c_ = in.bits2(18, 9);
    accumulators_ = in.has(15) ? kVectorRegisters : 0;
    d_ = in.bits(0, 8) + accumulators_;
  }

  // What each lane gets in each register of D, the first one's lanes first.
  std::vector<U32> compute() const {
    const unsigned registers = line_.rows * line_.rows * line_.blocks / kLanes;
    const std::vector<Vector> a = vectors(a_), b = vectors(b_);
    std::vector<U32> all;
    for (unsigned reg = 0; reg < registers; ++reg) {
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        // Four registers have four rows, and the lanes what is beside and below; then come further rows.
        const unsigned four = reg / 4 * (kLanes / line_.rows) + lane / line_.rows;
        const unsigned row = 4 * (four % (line_.rows / 4)) + reg % 4;
        const unsigned first = four / (line_.rows / 4) * line_.rows;  // of this block
        all.push_back(element(a[first + row], b[first + lane % line_.rows], before(reg, lane)));
      }
    }
    return all;
  }
  U32 destination() const { return d_; }

 private:
  U32 read(U32 code, unsigned lane) const {
    return static_cast<U32>(machine_.source(wave_, code, Kind::kB32, 0, lane));
  }
  // Of C. A constant is in every element.
  U32 before(unsigned reg, unsigned lane) const {
    return read(c_ < operand::kVector ? c_ : c_ + accumulators_ + reg, lane);
  }
  // All rows of A, or columns of B, block by block.
  std::vector<Vector> vectors(U32 code) const {
    std::vector<Vector> all;
    for (unsigned block = 0; block < line_.blocks; ++block) {
      for (unsigned at = 0; at < line_.rows; ++at) all.push_back(vector(code, at, block));
    }
    return all;
  }
  Vector vector(U32 code, unsigned at, unsigned block) const {
    Vector all;
    const unsigned parts = parts_in_lane(line_.part);
    for (unsigned k = 0; k < line_.depth; ++k) {
      const unsigned lane = at + line_.rows * (k / parts + line_.depth / parts * block), part = k % parts;
      switch (line_.part) {
        case Part::kF32:
          all.floats[k] = as_float(read(code, lane));
          break;
        case Part::kF16:
          all.floats[k] = to_float(Half{static_cast<U16>(read(code + part / 2, lane) >> 16 * (part % 2))});
          break;
        case Part::kBf16:
          all.floats[k] = as_float(read(code + part / 2, lane) >> 16 * (part % 2) << 16);
          break;
        case Part::kI8:
          all.integers[k] = static_cast<std::int8_t>(read(code, lane) >> 8 * part);
          break;
      }
    }
    return all;
  }
  U32 element(const Vector& a, const Vector& b, U32 sum) const {
    for (unsigned k = 0; k < line_.depth; ++k) {
      sum = line_.part == Part::kI8 ? sum + static_cast<U32>(a.integers[k] * b.integers[k])
                                    : bits_of(std::fma(a.floats[k], b.floats[k], as_float(sum)));
    }
    return sum;
  }

  const Machine& machine_;
  const Wave& wave_;
  const MatrixLine& line_;
  U32 a_ = 0, b_ = 0, c_ = 0, d_ = 0, accumulators_ = 0;
};

}  // namespace

const Table<MatrixLine, 128>& matrix_table() {
  static const Table<MatrixLine, 128> table(kLines);
  return table;
}

bool Machine::execute_matrix(Wave& wave, const Instruction& in, const MatrixLine& line) {
  if (in.bits(8, 7) != 0 || in.bits2(29, 3) != 0) return refuse(wave, describe(in) + " with a broadcast");
  const Product product(*this, wave, in, line);
  const std::vector<U32> all = product.compute();
  for (std::size_t i = 0; i < all.size(); ++i) {
    store(wave, product.destination() + static_cast<U32>(i / kLanes), Kind::kB32, all[i],
          static_cast<unsigned>(i % kLanes));
  }
  return true;
}

}  // namespace sluice::card::shader
