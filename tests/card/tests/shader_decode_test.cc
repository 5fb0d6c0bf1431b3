// SPDX-License-Identifier: MIT
// Names and lengths of instructions against LLVM's disassembler: every line of the tables, with operands at
// random.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "shader/opcodes.h"
#include "support/rng.h"
#include "tests/shader_kit.h"

namespace sluice::card::tests {
namespace {

using shader::decode;
using shader::Instruction;
using test::Rng;
using test::TempDir;

// The fixed bits of each encoding, and where its opcode is.
struct Form {
  const char* name;
  std::uint32_t fixed;
  unsigned op_at, op_bits;
};
constexpr std::uint32_t kVop3p = 0xd3800000;
constexpr Form kForms[] = {
    {"SOP2", 0x80000000, 23, 7},  {"SOPK", 0xb0000000, 23, 5},    {"SOP1", 0xbe800000, 8, 8},
    {"SOPC", 0xbf000000, 16, 7},  {"SOPP", 0xbf800000, 16, 7},    {"VOP2", 0x00000000, 25, 6},
    {"VOP1", 0x7e000000, 9, 8},   {"VOPC", 0x7c000000, 17, 8},    {"VOP3", 0xd0000000, 16, 10},
    {"VOP3P", kVop3p, 16, 7},     {"SMEM", 0xc0000000, 18, 8},    {"DS", 0xd8000000, 17, 8},
    {"FLAT", 0xdc000000, 18, 7},  {"SCRATCH", 0xdc004000, 18, 7}, {"GLOBAL", 0xdc008000, 18, 7},
    {"MUBUF", 0xe0000000, 18, 7},
};

using Words = std::array<std::uint32_t, 2>;

// A product of matrices in registers: LLVM 14 crashes at some others.
Words product(std::uint32_t op, Rng& rng) {
  const auto some = [&] { return static_cast<std::uint32_t>(2 * rng.between(0, 60)); };
  const std::uint32_t accumulators = rng.percent(50) ? 0x8000 : 0;
  const std::uint32_t a = 0x100 + some(), b = 0x100 + some(), c = 0x100 + some();
  return {kVop3p | op << 16 | accumulators | some(), a | b << 9 | c << 18};
}

// Every opcode of an encoding, once with zeros and some times with a few random bits: a field that an opcode
// does not have must be zero.
std::vector<Words> instructions(const Form& form) {
  Rng rng(1);
  std::vector<Words> all;
  const std::uint32_t operands =
      ~(((1U << form.op_bits) - 1) << form.op_at) & (form.fixed < 0xc0000000 ? 0xffff : 0x3ffff);
  for (std::uint32_t op = 0; op < 1U << form.op_bits; ++op) {
    for (int i = 0; i < 40; ++i) {
      const auto some = [&] {
        return i == 0 ? 0 : static_cast<std::uint32_t>(rng.next() & rng.next() & rng.next());
      };
      Words words = {form.fixed | op << form.op_at | (some() & operands), some()};
      if (i % 4 == 1) words[1] = 0x007f0000;  // no scalar address
      if (form.fixed == kVop3p && i % 4 == 2)
        words = {form.fixed | op << form.op_at | 0x4000, 0x18020501};  // two VGPRs
      if (form.fixed == kVop3p && i % 4 == 3)
        words = {form.fixed | op << form.op_at | 0x4000, 0x18000101};  // and one
      if (form.fixed == kVop3p && shader::matrix_table().find(op) != nullptr) words = product(op, rng);
      all.push_back(words);
    }
  }
  return all;
}

struct Said {
  std::string name;
  std::size_t bytes;
};

std::string without_form(std::string name) {
  for (const char* form : {"_e32", "_e64", "_sdwa", "_dpp"}) {
    const std::string ending = form;
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

// What the disassembler says, by the first bytes.
std::map<std::vector<std::uint8_t>, std::string> disassembled(const TempDir& dir,
                                                              const std::vector<Words>& all) {
  std::map<std::vector<std::uint8_t>, std::string> said;
  const std::string in = dir.path() + "/in", out = dir.path() + "/out";
  {
    std::ofstream file(in);
    for (const Words& words : all) {
      file << '[';
      for (unsigned i = 0; i < 8; ++i) file << (i ? "," : "") << (words[i / 4] >> 8 * (i % 4) & 0xff);
      file << "]\n";
    }
  }
  if (!run_program({"sh", "-c",
                    "llvm-mc -disassemble -triple=amdgcn-amd-amdhsa -mcpu=gfx90a -show-encoding '" + in +
                        "' > '" + out + "' 2> /dev/null || test -s '" + out + "'"})) {
    return said;
  }
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find("; encoding: [");
    if (at == std::string::npos) continue;
    std::istringstream text(line);
    std::string name;
    text >> name;
    std::vector<std::uint8_t> bytes;
    std::istringstream list(line.substr(at + 13));
    for (std::string byte; std::getline(list, byte, ',');)
      bytes.push_back(static_cast<std::uint8_t>(std::stoul(byte, nullptr, 16)));
    said[bytes] = without_form(name);
  }
  return said;
}

std::vector<std::uint8_t> first_bytes(const Words& words, std::size_t count) {
  std::vector<std::uint8_t> bytes;
  for (unsigned i = 0; i < count; ++i)
    bytes.push_back(static_cast<std::uint8_t>(words[i / 4] >> 8 * (i % 4)));
  return bytes;
}

// Names that all tables have. Some stand for forms that the disassembler names otherwise.
std::set<std::string> names_of_tables() {
  std::set<std::string> names;
  const auto add = [&](const auto& table, const std::string& before = {}) {
    for (const auto& line : table.lines()) names.insert(before + line.name);
  };
  add(shader::sop1());
  add(shader::sop2());
  add(shader::sopk_table());
  add(shader::sopc());
  add(shader::sopp());
  add(shader::vector_table());
  add(shader::packed_table());
  add(shader::matrix_table());
  add(shader::lds_table());
  for (const char* before : {"global_", "buffer_"}) add(shader::memory_table(), before);
  return names;
}

// LLVM 14 does not know them; ShaderProgram.OfGfx942HasItsPairs runs them.
const std::set<std::string> kOfGfx942 = {"v_mov_b64", "v_lshl_add_u64"};

TEST(ShaderDecode, NamesAndLengthsAreThoseOfLlvm) {
  const TempDir dir;
  std::set<std::string> seen;
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const std::vector<Words> all = instructions(form);
    const auto said = disassembled(dir, all);
    ASSERT_FALSE(said.empty()) << "llvm-mc is needed (scripts/setup --tests)";
    for (const Words& words : all) {
      const Instruction in = decode(words[0], words[1]);
      const auto here = said.find(first_bytes(words, 4 * in.dwords));
      const auto other = said.find(first_bytes(words, in.dwords == 1 ? 8 : 4));
      if (here == said.end()) {
        EXPECT_EQ(other, said.end()) << std::hex << words[0] << " " << words[1] << " has another length";
        continue;
      }
      const std::string name = shader::name_of(in);
      if (name.empty()) continue;  // not in our tables
      EXPECT_EQ(name, here->second) << std::hex << words[0] << " " << words[1];
      seen.insert(name);
    }
  }
  for (const std::string& name : names_of_tables())
    EXPECT_NE(seen.contains(name), kOfGfx942.contains(name)) << name;
}

}  // namespace
}  // namespace sluice::card::tests
