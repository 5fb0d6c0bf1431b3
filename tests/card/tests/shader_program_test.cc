// SPDX-License-Identifier: MIT
// The interpreter against the processor: the same C functions, made of random operations, are compiled for
// gfx90a and for this machine, and give the same bits.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <memory>

#include "support/rng.h"
#include "support/seeds.h"
#include "tests/shader_kit.h"

namespace sluice::card::tests {
namespace {

using shader::Dispatch;
using shader::Machine;
using test::Rng;
using test::TempDir;

constexpr unsigned kItems = 256;

// What both compilers read: `value` computes, and each says in its own way what a kernel is.
constexpr const char* kCommon = R"(
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef short i16;
typedef unsigned u32; typedef int i32; typedef unsigned long u64; typedef long i64; typedef float f32; typedef double f64;
static inline u32 bits32(f32 x) { union { f32 f; u32 u; } c; c.f = x; return x != x ? 1 : c.u; }
static inline u64 bits64(f64 x) { union { f64 f; u64 u; } c; c.f = x; return x != x ? 1 : c.u; }
static inline f32 tame32(f32 x) { return x > 1e6f ? 1e6f : x > -1e6f ? x : -1e6f; }
static inline f64 tame64(f64 x) { return x > 1e6 ? 1e6 : x > -1e6 ? x : -1e6; }
static inline u32 rotate(u32 x, u32 n) { return x << (n & 31) | x >> (-n & 31); }
)";

// One statement of a random function. Variables: u32 a, b; i32 m, n; u64 p, q; i64 r; f32 x, y; f64 s, t.
std::string statement(Rng& rng, int depth) {
  static constexpr std::array kStatements = {
      "a = a + b * 3u + (u32)p;",
      "b = (a ^ b) - (a >> (b & 31));",
      "a = b << (a & 31);",
      "m = m >> (b & 31); m ^= (i32)a;",
      "n = (m > n ? m : n) - (i32)(b & 0xff);",
      "a = a / (b | 1);",
      "b = a % (b | 5);",
      "m = (m >> 1) / (n | 3);",
      "n = (i32)((u32)m * (u32)n);",
      "p = p * q + a;",
      "q = (p >> (a & 63)) ^ (q << (b & 63));",
      "p = p / (q | 1);",
      "r = (r >> (a & 63)) + (i64)m * n;",
      "q = q % (p | 7);",
      "r = r < 0 ? -r : r + (i64)a;",
      "p = (u64)a * b + ((u64)b << 32);",
      "a = (u32)((u64)a * b >> 32);",
      "m = (i32)((i64)m * n >> 32);",
      // Wide afterwards: clang 14 takes the upper half of a product of small signed numbers for signed.
      "a = (u8)a + (u32)(u16)b; b = ((u32)(i8)b - (u32)(i16)a) ^ 0x5a5a5a5au;",
      "a = rotate(a, b); b = rotate(b, 7);",
      "a = __builtin_popcount(a) + b; q += (u64)__builtin_popcountll(p);",
      "b = (a | 1) ? (u32)__builtin_clz(a | 1) + b : b;",
      "m = m < n ? m + 17 : n - 17;",
      "a = a < b ? a : b; b = a > b ? a : b + 1;",
      "x = x + y * 0.5f;",
      "y = x * y - 3.25f;",
      "x = x / (y == 0.0f ? 1.0f : y);",
      "y = (f32)m + (f32)a;",
      "a = (u32)(i32)tame32(x); m += (i32)tame32(y);",
      "x = x < y ? y : x; y = -y;",
      "x = tame32(x); y = tame32(y);",
      "s = s + t * 0.25;",
      "t = s * t - 1.5;",
      "s = s / (t == 0.0 ? 2.0 : t);",
      "t = (f64)m + (f64)a + (f64)x;",
      "q += (u64)(i64)tame64(s);",
      "s = tame64(s); t = tame64(t); x = (f32)t;",
      "s = s > t ? t : s; t = t != t ? 1.0 : t;",
      "s = (f64)r; x = (f32)p;",
      "p ^= q & 0xff00ff00ff00ff00ul; q |= r & 0x0ff00ff00ff00ff0l;",
  };
  if (depth > 0 && rng.percent(25)) {
    const std::string inner = statement(rng, depth - 1) + " " + statement(rng, depth - 1);
    switch (rng.between(0, 2)) {
      case 0:
        return "if ((a ^ " + std::to_string(rng.between(0, 255)) + "u) & " +
               std::to_string(rng.between(1, 15)) + "u) { " + inner + " } else { " +
               statement(rng, depth - 1) + " }";
      case 1:
        return "for (u32 i = 0; i < (b & 7u); ++i) { " + inner + " a += i; }";
      default:
        return "for (u32 i = 0; i < 9 && m > 0 && (m & 3) != 1; ++i) { " + inner +
               " m = (m >> 1) & 0x7fffffff; }";
    }
  }
  return kStatements[rng.between(0, kStatements.size() - 1)];
}

std::string function(Rng& rng) {
  std::string text =
      "static inline u64 value(u64 one, u64 two) {\n"
      "  u32 a = (u32)one, b = (u32)(two >> 13); i32 m = (i32)(one >> 32), n = (i32)two;\n"
      "  u64 p = one, q = two; i64 r = (i64)(one ^ two);\n"
      "  f32 x = (f32)(i32)one, y = (f32)(u32)(two & 0xffff); f64 s = (f64)(i32)(two >> 7), t = "
      "(f64)(u32)one;\n";
  for (int i = 0; i < 24; ++i) text += "  " + statement(rng, 2) + "\n";
  return text +
         "  return a + b * 3ul + (u64)(u32)m * 5 + (u64)(u32)n * 7 + p * 11 + q * 13 + (u64)r * 17 +\n"
         "         bits32(x) * 19ul + bits32(y) * 23ul + bits64(s) * 29 + bits64(t) * 31;\n}\n";
}

using HostFunction = std::uint64_t (*)(std::uint64_t, std::uint64_t);

// The same for this machine.
class HostLibrary {
 public:
  HostLibrary(const TempDir& dir, const std::string& source) {
    const std::string in = dir.path() + "/host.c", out = dir.path() + "/host.so";
    std::ofstream(in) << source << "u64 of_host(u64 one, u64 two) { return value(one, two); }\n";
    if (!run_program(
            {"clang", "-O1", "-ffp-contract=off", "-fwrapv", "-w", "-shared", "-fPIC", in, "-o", out, "-lm"}))
      return;
    handle_ = dlopen(out.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  HostLibrary(const HostLibrary&) = delete;
  HostLibrary& operator=(const HostLibrary&) = delete;
  ~HostLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  HostFunction function() const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<HostFunction>(dlsym(handle_, "of_host"));
  }

 private:
  void* handle_ = nullptr;
};

TEST(ShaderProgram, ComputesWhatTheProcessorComputes) {
  const auto seeds = test::seeds_of_test(test::usual(12, 3));
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    const TempDir dir;
    Rng rng(seed);
    const std::string common = kCommon + function(rng);
    const auto elf = compile_for_gpu(dir, common +
                                              "kernel void k(global const u64* in, global u64* out) {\n"
                                              "  u32 i = __builtin_amdgcn_workitem_id_x() +\n"
                                              "          256 * __builtin_amdgcn_workgroup_id_x();\n"
                                              "  out[i] = value(in[2 * i], in[2 * i + 1]);\n}\n");
    ASSERT_FALSE(elf.empty()) << common;
    const HostLibrary host(dir, common);
    ASSERT_NE(host.function(), nullptr) << common;

    CodeObject code(elf);
    constexpr unsigned kGroups = 2;
    std::vector<std::uint64_t> in(2 * kGroups * kItems), out(kGroups * kItems);
    for (std::uint64_t& word : in) word = rng.percent(20) ? rng.between(0, 9) : rng.next();
    std::array<const void*, 2> kernarg = {in.data(), out.data()};
    std::vector<std::byte> scratch(1 << 20);
    HostMemory memory;
    memory.add(code.image());
    memory.add(std::as_writable_bytes(std::span(in)));
    memory.add(std::as_writable_bytes(std::span(out)));
    memory.add(std::as_writable_bytes(std::span(kernarg)));
    const auto dispatch =
        Dispatch::read(memory, packet_of(code.symbol("k.kd"), kernarg.data(), kGroups, kItems), {});
    ASSERT_TRUE(dispatch);
    Machine machine(memory, {});
    for (std::uint64_t number = 0; number < dispatch->groups(); ++number) {
      shader::Group group = dispatch->group(number);
      std::uint64_t budget = 10'000'000;
      ASSERT_EQ(machine.run(group, budget), Machine::Result::kDone) << machine.why() << "\n" << common;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], host.function()(in[2 * i], in[2 * i + 1])) << "item " << i << "\n" << common;
    }
  }
}

// By their words, as LLVM 17 writes them: v_mov_b64 and v_lshl_add_u64.
constexpr const char* kOfGfx942 = R"(
kernel void k(global ulong* numbers) {
  ulong a = numbers[0], c = numbers[1], d;
  uint b = (uint)numbers[2];
  __asm__ volatile(".long 0xd2080002, 0x04220d04" : "={v[2:3]}"(d) : "{v[4:5]}"(a), "{v6}"(b), "{v[8:9]}"(c));
  numbers[3] = d;
  __asm__ volatile(".long 0x7e047104" : "={v[2:3]}"(d) : "{v[4:5]}"(c));
  numbers[4] = d;
}
)";

TEST(ShaderProgram, OfGfx942HasItsPairs) {
  const TempDir dir;
  const auto elf = compile_for_gpu(dir, kOfGfx942);
  ASSERT_FALSE(elf.empty());
  CodeObject code(elf);
  std::array<std::uint64_t, 5> numbers = {0x8000'0001'ffff'fff7, 0x1234'5678'9abc'def0, 3};
  std::array<const void*, 1> kernarg = {numbers.data()};
  HostMemory memory;
  memory.add(code.image());
  memory.add(std::as_writable_bytes(std::span(numbers)));
  memory.add(std::as_writable_bytes(std::span(kernarg)));
  const auto dispatch = Dispatch::read(memory, packet_of(code.symbol("k.kd"), kernarg.data(), 1, 1), {});
  ASSERT_TRUE(dispatch);
  Machine machine(memory, {});
  shader::Group group = dispatch->group(0);
  std::uint64_t budget = 1000;
  ASSERT_EQ(machine.run(group, budget), Machine::Result::kDone) << machine.why();
  EXPECT_EQ(numbers[3], (numbers[0] << 3) + numbers[1]);
  EXPECT_EQ(numbers[4], numbers[1]);
}

// SCRATCH instructions of gfx942, by their words as LLVM 16 writes them for gfx940: by an offset alone, by an
// SGPR, by a VGPR, and by both.
constexpr const char* kScratchOfGfx942 = R"(
.amdgcn_target "amdgcn-amd-amdhsa--gfx90a"
.text
.globl k
.p2align 8
.type k,@function
k:
  v_mov_b32 v3, v0
  v_lshlrev_b32 v0, 2, v0            // 0 and 4
  s_movk_i32 s8, 16
  v_mov_b32 v4, 100
  .long 0xdc704008, 0x007f0400       // scratch_store_dword off, v4, off offset:8
  v_mov_b32 v4, 200
  .long 0xdc704010, 0x00080400       // scratch_store_dword off, v4, s8 offset:16
  v_add_u32 v4, 300, v3
  .long 0xdc706028, 0x007f0400       // scratch_store_dword v0, v4, off offset:40
  v_add_u32 v4, 400, v3
  .long 0xdc707ff8, 0x00080400       // scratch_store_dword v0, v4, s8 offset:-8
  s_waitcnt vmcnt(0)
  .long 0xdc504020, 0x057f0000       // scratch_load_dword v5, off, off offset:32
  s_waitcnt vmcnt(0)
  v_add_u32 v5, 1, v5
  .long 0xdc704034, 0x007f0500       // scratch_store_dword off, v5, off offset:52
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel k
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
  .amdhsa_private_segment_fixed_size 64
  .amdhsa_system_sgpr_private_segment_wavefront_offset 1
.end_amdhsa_kernel
)";

TEST(ShaderProgram, OfGfx942BeginsWithItsScratch) {
  const TempDir dir;
  const auto elf = assemble_for_gpu(dir, kScratchOfGfx942);
  ASSERT_FALSE(elf.empty());
  CodeObject code(elf);
  // 64 bytes of each lane; a dword of each lane comes before that of the next one.
  constexpr std::uint32_t kWaveBytes = 64 * shader::kLanes, kSlot = 1;
  std::vector<std::uint32_t> scratch(3 * kWaveBytes / 4);
  HostMemory memory;
  memory.add(code.image());
  memory.add(std::as_writable_bytes(std::span(scratch)));
  shader::DispatchPlace place;
  place.scratch_wave_bytes = kWaveBytes;
  place.scratch_base = reinterpret_cast<std::uint64_t>(scratch.data());
  place.presets_scratch = true;
  const auto dispatch = Dispatch::read(memory, packet_of(code.symbol("k.kd"), nullptr, 1, 2), place);
  ASSERT_TRUE(dispatch);
  Machine machine(memory, {.presets_scratch = true});
  shader::Group group = dispatch->group(0, kSlot);
  std::uint64_t budget = 1000;
  ASSERT_EQ(machine.run(group, budget), Machine::Result::kDone) << machine.why();
  const auto at = [&](unsigned lane, unsigned byte) {
    return scratch[kSlot * kWaveBytes / 4 + byte / 4 * shader::kLanes + lane];
  };
  for (unsigned lane = 0; lane < 2; ++lane) {
    EXPECT_EQ(at(lane, 8), lane == 0 ? 400U : 100U) << lane;
    EXPECT_EQ(at(lane, 32), 200U) << lane;
    EXPECT_EQ(at(lane, 40 + 4 * lane), 300U + lane);
    EXPECT_EQ(at(lane, 8 + 4 * lane), 400U + lane);
    EXPECT_EQ(at(lane, 52), 201U) << lane;
  }
}

}  // namespace
}  // namespace sluice::card::tests
