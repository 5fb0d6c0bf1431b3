// SPDX-License-Identifier: MIT
#include "shader/instruction.h"

#include <cstdio>

#include "shader/opcodes.h"

namespace sluice::card::shader {

namespace {

// Of VOP1 and VOP2 in the numbers of VOP3.
constexpr U32 kVop2InVop3 = 0x100;
constexpr U32 kVop1InVop3 = 0x140;

struct Form {
  Encoding encoding;
  U32 op;
  bool two_dwords;  // by itself
};

// Codes of sources that mean a second dword.
bool takes_word(U32 source) {
  return source == operand::kLiteral || source == operand::kSdwa || source == operand::kDpp;
}

Form scalar_form(U32 first) {
  const U32 nine = first >> 23;
  const bool literal0 = (first & 0xff) == operand::kLiteral;
  const bool literal1 = (first >> 8 & 0xff) == operand::kLiteral;
  if (nine == 0x17d) return {Encoding::kSop1, first >> 8 & 0xff, literal0};
  if (nine == 0x17e) return {Encoding::kSopc, first >> 16 & 0x7f, literal0 || literal1};
  if (nine == 0x17f) return {Encoding::kSopp, first >> 16 & 0x7f, false};
  if (first >> 28 == 0xb)
    return {Encoding::kSopk, first >> 23 & 0x1f, (first >> 23 & 0x1f) == sopk::kSetregImm};
  return {Encoding::kSop2, first >> 23 & 0x7f, literal0 || literal1};
}

Form vector_form(U32 first) {
  const bool word = takes_word(first & 0x1ff);
  const U32 op = first >> 25;
  if (op == 0x3f) return {Encoding::kVop1, kVop1InVop3 + (first >> 9 & 0xff), word};
  if (op == 0x3e) return {Encoding::kVopc, first >> 17 & 0xff, word};
  return {Encoding::kVop2, kVop2InVop3 + op, word || is_mad_with_literal(kVop2InVop3 + op)};
}

Form form_of(U32 first) {
  if (first >> 31 == 0) return vector_form(first);
  if (first >> 30 == 2) return scalar_form(first);
  switch (first >> 26) {
    case 0x30:
      return {Encoding::kSmem, first >> 18 & 0xff, true};
    case 0x34:
      if (first >> 23 == 0x1a7) return {Encoding::kVop3p, first >> 16 & 0x7f, true};
      return {Encoding::kVop3, first >> 16 & 0x3ff, true};
    case 0x36:
      return {Encoding::kDs, first >> 17 & 0xff, true};
    case 0x37:
      return {Encoding::kFlat, first >> 18 & 0x7f, true};
    case 0x38:
      return {Encoding::kMubuf, first >> 18 & 0x7f, true};
    default:
      return {Encoding::kUnknown, first >> 26, false};
  }
}

const char* encoding_name(Encoding encoding) {
  static constexpr const char* kNames[] = {"SOP1",  "SOP2", "SOPK", "SOPC",  "SOPP",
                                           "SMEM",  "VOP1", "VOP2", "VOPC",  "VOP3",
                                           "VOP3P", "DS",   "FLAT", "MUBUF", "encoding"};
  return kNames[static_cast<std::size_t>(encoding)];
}

}  // namespace

U32 length_of(U32 first) {
  return form_of(first).two_dwords ? 2 : 1;
}

Instruction decode(U32 first, U32 second) {
  const Form form = form_of(first);
  Instruction instruction;
  instruction.encoding = form.encoding;
  instruction.op = form.op;
  instruction.dwords = form.two_dwords ? 2 : 1;
  instruction.first = first;
  instruction.second = form.two_dwords ? second : 0;
  return instruction;
}

std::string describe(const Instruction& instruction) {
  std::string name = name_of(instruction);
  if (!name.empty()) return name;
  char text[32];
  (void)std::snprintf(text, sizeof text, "%s 0x%x", encoding_name(instruction.encoding), instruction.op);
  return text;
}

}  // namespace sluice::card::shader
