// SPDX-License-Identifier: MIT
#include "shader/instruction.h"
#include "shader/opcodes.h"

namespace sluice::card::shader {

namespace {

template <class Line>
std::string named(const Line* line, const std::string& before = {}) {
  return line == nullptr ? std::string{} : before + line->name;
}

std::string compare_name(U32 op) {
  bool writes_exec = false;
  const CompareLine* line = find_compare(op, &writes_exec);
  return named(line, writes_exec ? "v_cmpx_" : "v_cmp_");
}

// Those that execute_scalar_memory() has without a line.
std::string scalar_memory_name(U32 op) {
  static constexpr const char* kCacheAndTime[] = {"s_dcache_inv",    "s_dcache_wb", "s_dcache_inv_vol",
                                                  "s_dcache_wb_vol", "s_memtime",   "s_memrealtime"};
  if (op >= 0x20 && op <= 0x25) return kCacheAndTime[op - 0x20];
  return named(find_scalar_memory(op), op >= 0x40 && op < 0x80 ? "s_buffer_" : "s_");
}

}  // namespace

std::string name_of(const Instruction& in) {
  static constexpr const char* kSegments[] = {"flat_", "scratch_", "global_", "flat_"};
  switch (in.encoding) {
    case Encoding::kSop1:
      return named(sop1().find(in.op));
    case Encoding::kSop2:
      return named(sop2().find(in.op));
    case Encoding::kSopk:
      return named(sopk_table().find(in.op));
    case Encoding::kSopc:
      return named(sopc().find(in.op));
    case Encoding::kSopp:
      return named(sopp().find(in.op));
    case Encoding::kSmem:
      return scalar_memory_name(in.op);
    case Encoding::kVopc:
      return compare_name(in.op);
    case Encoding::kVop1:
    case Encoding::kVop2:
    case Encoding::kVop3:
      if (in.op < 0x100) return compare_name(in.op);
      return in.op == 0x140 ? "v_nop" : named(vector_table().find(in.op));
    case Encoding::kVop3p:
      return named(packed_table().find(in.op)) + named(matrix_table().find(in.op));
    case Encoding::kDs:
      return named(lds_table().find(in.op));
    case Encoding::kFlat:
      return named(memory_table().find(in.op), kSegments[in.bits(14, 2)]);
    case Encoding::kMubuf:
      return named(memory_table().find(in.op), "buffer_");
    case Encoding::kUnknown:
      break;
  }
  return {};
}

}  // namespace sluice::card::shader
