// SPDX-License-Identifier: MIT
// SOP1, SOP2, SOPK, SOPC and SOPP: one line an opcode.
#include <bit>
#include <limits>

#include "shader/machine.h"

namespace sluice::card::shader {

namespace {

using S = Scalar&;

U32 low(U64 value) {
  return static_cast<U32>(value);
}
I32 low_signed(U64 value) {
  return static_cast<I32>(static_cast<U32>(value));
}
// The immediate of SOPK, SOPP.
I32 immediate(const Scalar& x) {
  return static_cast<I16>(x.in.first & 0xffff);
}

// A result whose SCC says that it is not zero.
void logic32(S x, U32 value) {
  x.d = value;
  x.wave.scc = value != 0;
}
void logic64(S x, U64 value) {
  x.d = value;
  x.wave.scc = value != 0;
}
void carry(S x, U64 sum) {
  x.d = low(sum);
  x.wave.scc = sum >> 32 != 0;
}
void borrow(S x, U64 a, U64 b) {
  x.d = low(a - b);
  x.wave.scc = b > a;
}
void overflow(S x, I64 sum) {
  x.d = low(static_cast<U64>(sum));
  x.wave.scc = sum != static_cast<I32>(sum);
}
// The chosen one, and whether it is the first.
void choose(S x, bool first) {
  x.d = first ? x.a : x.b;
  x.wave.scc = first;
}
U64 field(U64 value, U32 offset, U32 width, unsigned most) {
  value >>= offset & (most - 1);
  if (width == 0) return 0;
  return width >= most ? value : value & ((U64{1} << width) - 1);
}
U64 signed_field(U64 value, U32 offset, U32 width, unsigned most) {
  const U64 bits = field(value, offset, width, most);
  if (width == 0 || width >= most || (bits >> (width - 1) & 1) == 0) return bits;
  return bits | ~U64{0} << width;
}
void save_exec(S x, U64 lanes) {
  x.d = x.wave.exec();
  x.wave.exec(lanes);
  x.wave.scc = lanes != 0;
}
void new_exec(S x, U64 lanes) {
  x.d = lanes;
  x.wave.exec(lanes);
  x.wave.scc = lanes != 0;
}
U32 first_bit(U64 value) {
  return value == 0 ? ~U32{0} : static_cast<U32>(std::countr_zero(value));
}
U32 leading_zeros32(U32 value) {
  return value == 0 ? ~U32{0} : static_cast<U32>(std::countl_zero(value));
}
U32 leading_zeros64(U64 value) {
  return value == 0 ? ~U32{0} : static_cast<U32>(std::countl_zero(value));
}
U64 reversed(U64 value, unsigned bits) {
  U64 result = 0;
  for (unsigned i = 0; i < bits; ++i) result |= (value >> i & 1) << (bits - 1 - i);
  return result;
}
// Every group of four lanes with one of them: all four (whole), or one bit.
U64 quads(U64 value, bool whole) {
  U64 result = 0;
  for (unsigned i = 0; i < 16; ++i) {
    if ((value >> 4 * i & 0xf) != 0) result |= whole ? U64{0xf} << 4 * i : U64{1} << i;
  }
  return result;
}
U64 doubled_bits(U32 value) {
  U64 result = 0;
  for (unsigned i = 0; i < 32; ++i) result |= (value >> i & 1) * (U64{3} << 2 * i);
  return result;
}
// s_movrels, s_movreld: a register that M0 counts from the named one.
U32 relative(const Scalar& x, U32 code) {
  return (code + x.wave.m0()) & (sgpr::kCount - 1);
}
void jump(S x, bool taken) {
  if (taken) x.next += static_cast<U64>(I64{immediate(x)} * 4);
}
void compare(S x, bool answer) {
  x.wave.scc = answer;
}

// Bits of s_getreg_b32 and s_setreg_b32: register, first bit, number.
struct Hwreg {
  U32 id, shift, mask;
};
Hwreg hwreg(const Scalar& x) {
  const U32 bits = x.in.first & 0xffff;
  const U32 count = (bits >> 11) + 1;
  return {bits & 0x3f, bits >> 6 & 0x1f, count == 32 ? ~U32{0} : (U32{1} << count) - 1};
}
void set_hardware_register(S x, U32 value);

void message(S x) {
  constexpr U32 kInterrupt = 1, kSaveWave = 4, kGetDoorbell = 10;
  switch (x.in.first & 0xf) {
    case kInterrupt:
      x.machine.outside().interrupt(x.wave.m0());
      break;
    case kSaveWave:
      x.wave.exec(x.wave.save_address);
      break;
    case kGetDoorbell:
      x.wave.scalar[sgpr::kExec] = x.machine.surroundings().doorbell;
      break;
    default:
      break;
  }
}

constexpr ScalarLine kSop1[] = {
    {0x00, "s_mov_b32", 1, 0, 1, [](S x) { x.d = x.a; }},
    {0x01, "s_mov_b64", 2, 0, 2, [](S x) { x.d = x.a; }},
    {0x02, "s_cmov_b32", 1, 0, 1, [](S x) { x.d = x.wave.scc ? x.a : x.d; }},
    {0x03, "s_cmov_b64", 2, 0, 2, [](S x) { x.d = x.wave.scc ? x.a : x.d; }},
    {0x04, "s_not_b32", 1, 0, 1, [](S x) { logic32(x, ~low(x.a)); }},
    {0x05, "s_not_b64", 2, 0, 2, [](S x) { logic64(x, ~x.a); }},
    {0x06, "s_wqm_b32", 1, 0, 1, [](S x) { logic32(x, low(quads(low(x.a), true))); }},
    {0x07, "s_wqm_b64", 2, 0, 2, [](S x) { logic64(x, quads(x.a, true)); }},
    {0x08, "s_brev_b32", 1, 0, 1, [](S x) { x.d = reversed(low(x.a), 32); }},
    {0x09, "s_brev_b64", 2, 0, 2, [](S x) { x.d = reversed(x.a, 64); }},
    {0x0a, "s_bcnt0_i32_b32", 1, 0, 1, [](S x) { logic32(x, static_cast<U32>(std::popcount(~low(x.a)))); }},
    {0x0b, "s_bcnt0_i32_b64", 2, 0, 1, [](S x) { logic32(x, static_cast<U32>(std::popcount(~x.a))); }},
    {0x0c, "s_bcnt1_i32_b32", 1, 0, 1, [](S x) { logic32(x, static_cast<U32>(std::popcount(low(x.a)))); }},
    {0x0d, "s_bcnt1_i32_b64", 2, 0, 1, [](S x) { logic32(x, static_cast<U32>(std::popcount(x.a))); }},
    {0x0e, "s_ff0_i32_b32", 1, 0, 1, [](S x) { x.d = first_bit(~low(x.a)); }},
    {0x0f, "s_ff0_i32_b64", 2, 0, 1, [](S x) { x.d = first_bit(~x.a); }},
    {0x10, "s_ff1_i32_b32", 1, 0, 1, [](S x) { x.d = first_bit(low(x.a)); }},
    {0x11, "s_ff1_i32_b64", 2, 0, 1, [](S x) { x.d = first_bit(x.a); }},
    {0x12, "s_flbit_i32_b32", 1, 0, 1, [](S x) { x.d = leading_zeros32(low(x.a)); }},
    {0x13, "s_flbit_i32_b64", 2, 0, 1, [](S x) { x.d = leading_zeros64(x.a); }},
    {0x14, "s_flbit_i32", 1, 0, 1,
     [](S x) { x.d = leading_zeros32(low_signed(x.a) < 0 ? ~low(x.a) : low(x.a)); }},
    {0x15, "s_flbit_i32_i64", 2, 0, 1, [](S x) { x.d = leading_zeros64(x.a >> 63 != 0 ? ~x.a : x.a); }},
    {0x16, "s_sext_i32_i8", 1, 0, 1, [](S x) { x.d = static_cast<U32>(static_cast<std::int8_t>(x.a)); }},
    {0x17, "s_sext_i32_i16", 1, 0, 1, [](S x) { x.d = static_cast<U32>(static_cast<I16>(x.a)); }},
    {0x18, "s_bitset0_b32", 1, 0, 1, [](S x) { x.d &= ~(U64{1} << (x.a & 31)); }},
    {0x19, "s_bitset0_b64", 1, 0, 2, [](S x) { x.d &= ~(U64{1} << (x.a & 63)); }},
    {0x1a, "s_bitset1_b32", 1, 0, 1, [](S x) { x.d |= U64{1} << (x.a & 31); }},
    {0x1b, "s_bitset1_b64", 1, 0, 2, [](S x) { x.d |= U64{1} << (x.a & 63); }},
    {0x1c, "s_getpc_b64", 0, 0, 2, [](S x) { x.d = x.next; }},
    {0x1d, "s_setpc_b64", 2, 0, 0, [](S x) { x.next = x.a; }},
    {0x1e, "s_swappc_b64", 2, 0, 2,
     [](S x) {
       x.d = x.next;
       x.next = x.a;
     }},
    {0x1f, "s_rfe_b64", 2, 0, 0,
     [](S x) {
       x.next = x.a & 0xffffffffffff;
       x.wave.status &= ~status::kPrivileged;
     }},
    {0x20, "s_and_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, x.a & x.wave.exec()); }},
    {0x21, "s_or_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, x.a | x.wave.exec()); }},
    {0x22, "s_xor_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, x.a ^ x.wave.exec()); }},
    {0x23, "s_andn2_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, x.a & ~x.wave.exec()); }},
    {0x24, "s_orn2_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, x.a | ~x.wave.exec()); }},
    {0x25, "s_nand_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, ~(x.a & x.wave.exec())); }},
    {0x26, "s_nor_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, ~(x.a | x.wave.exec())); }},
    {0x27, "s_xnor_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, ~(x.a ^ x.wave.exec())); }},
    {0x28, "s_quadmask_b32", 1, 0, 1, [](S x) { logic32(x, low(quads(low(x.a), false))); }},
    {0x29, "s_quadmask_b64", 2, 0, 2, [](S x) { logic64(x, quads(x.a, false)); }},
    {0x2a, "s_movrels_b32", 1, 0, 1, [](S x) { x.d = x.wave.scalar[relative(x, x.in.bits(0, 8))]; }},
    {0x2b, "s_movrels_b64", 2, 0, 2, [](S x) { x.d = x.wave.pair(relative(x, x.in.bits(0, 8))); }},
    {0x2c, "s_movreld_b32", 1, 0, 0, [](S x) { x.wave.scalar[relative(x, x.in.bits(16, 7))] = low(x.a); }},
    {0x2d, "s_movreld_b64", 2, 0, 0, [](S x) { x.wave.pair(relative(x, x.in.bits(16, 7)), x.a); }},
    {0x30, "s_abs_i32", 1, 0, 1, [](S x) { logic32(x, low_signed(x.a) < 0 ? 0 - low(x.a) : low(x.a)); }},
    {0x32, "s_set_gpr_idx_idx", 1, 0, 0,
     [](S x) { x.wave.scalar[sgpr::kM0] = (x.wave.m0() & ~U32{0xff}) | (low(x.a) & 0xff); }},
    {0x33, "s_andn1_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, ~x.a & x.wave.exec()); }},
    {0x34, "s_orn1_saveexec_b64", 2, 0, 2, [](S x) { save_exec(x, ~x.a | x.wave.exec()); }},
    {0x35, "s_andn1_wrexec_b64", 2, 0, 2, [](S x) { new_exec(x, ~x.a & x.wave.exec()); }},
    {0x36, "s_andn2_wrexec_b64", 2, 0, 2, [](S x) { new_exec(x, x.a & ~x.wave.exec()); }},
    {0x37, "s_bitreplicate_b64_b32", 1, 0, 2, [](S x) { x.d = doubled_bits(low(x.a)); }},
};

constexpr ScalarLine kSop2[] = {
    {0x00, "s_add_u32", 1, 1, 1, [](S x) { carry(x, U64{low(x.a)} + low(x.b)); }},
    {0x01, "s_sub_u32", 1, 1, 1, [](S x) { borrow(x, low(x.a), low(x.b)); }},
    {0x02, "s_add_i32", 1, 1, 1, [](S x) { overflow(x, I64{low_signed(x.a)} + low_signed(x.b)); }},
    {0x03, "s_sub_i32", 1, 1, 1, [](S x) { overflow(x, I64{low_signed(x.a)} - low_signed(x.b)); }},
    {0x04, "s_addc_u32", 1, 1, 1, [](S x) { carry(x, U64{low(x.a)} + low(x.b) + (x.wave.scc ? 1 : 0)); }},
    {0x05, "s_subb_u32", 1, 1, 1, [](S x) { borrow(x, low(x.a), U64{low(x.b)} + (x.wave.scc ? 1 : 0)); }},
    {0x06, "s_min_i32", 1, 1, 1, [](S x) { choose(x, low_signed(x.a) < low_signed(x.b)); }},
    {0x07, "s_min_u32", 1, 1, 1, [](S x) { choose(x, low(x.a) < low(x.b)); }},
    {0x08, "s_max_i32", 1, 1, 1, [](S x) { choose(x, low_signed(x.a) > low_signed(x.b)); }},
    {0x09, "s_max_u32", 1, 1, 1, [](S x) { choose(x, low(x.a) > low(x.b)); }},
    {0x0a, "s_cselect_b32", 1, 1, 1, [](S x) { x.d = x.wave.scc ? x.a : x.b; }},
    {0x0b, "s_cselect_b64", 2, 2, 2, [](S x) { x.d = x.wave.scc ? x.a : x.b; }},
    {0x0c, "s_and_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a & x.b)); }},
    {0x0d, "s_and_b64", 2, 2, 2, [](S x) { logic64(x, x.a & x.b); }},
    {0x0e, "s_or_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a | x.b)); }},
    {0x0f, "s_or_b64", 2, 2, 2, [](S x) { logic64(x, x.a | x.b); }},
    {0x10, "s_xor_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a ^ x.b)); }},
    {0x11, "s_xor_b64", 2, 2, 2, [](S x) { logic64(x, x.a ^ x.b); }},
    {0x12, "s_andn2_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a & ~x.b)); }},
    {0x13, "s_andn2_b64", 2, 2, 2, [](S x) { logic64(x, x.a & ~x.b); }},
    {0x14, "s_orn2_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a | ~x.b)); }},
    {0x15, "s_orn2_b64", 2, 2, 2, [](S x) { logic64(x, x.a | ~x.b); }},
    {0x16, "s_nand_b32", 1, 1, 1, [](S x) { logic32(x, low(~(x.a & x.b))); }},
    {0x17, "s_nand_b64", 2, 2, 2, [](S x) { logic64(x, ~(x.a & x.b)); }},
    {0x18, "s_nor_b32", 1, 1, 1, [](S x) { logic32(x, low(~(x.a | x.b))); }},
    {0x19, "s_nor_b64", 2, 2, 2, [](S x) { logic64(x, ~(x.a | x.b)); }},
    {0x1a, "s_xnor_b32", 1, 1, 1, [](S x) { logic32(x, low(~(x.a ^ x.b))); }},
    {0x1b, "s_xnor_b64", 2, 2, 2, [](S x) { logic64(x, ~(x.a ^ x.b)); }},
    {0x1c, "s_lshl_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a) << (x.b & 31)); }},
    {0x1d, "s_lshl_b64", 2, 1, 2, [](S x) { logic64(x, x.a << (x.b & 63)); }},
    {0x1e, "s_lshr_b32", 1, 1, 1, [](S x) { logic32(x, low(x.a) >> (x.b & 31)); }},
    {0x1f, "s_lshr_b64", 2, 1, 2, [](S x) { logic64(x, x.a >> (x.b & 63)); }},
    {0x20, "s_ashr_i32", 1, 1, 1, [](S x) { logic32(x, static_cast<U32>(low_signed(x.a) >> (x.b & 31))); }},
    {0x21, "s_ashr_i64", 2, 1, 2,
     [](S x) { logic64(x, static_cast<U64>(static_cast<I64>(x.a) >> (x.b & 63))); }},
    {0x22, "s_bfm_b32", 1, 1, 1, [](S x) { x.d = ((U32{1} << (x.a & 31)) - 1) << (x.b & 31); }},
    {0x23, "s_bfm_b64", 1, 1, 2, [](S x) { x.d = ((U64{1} << (x.a & 63)) - 1) << (x.b & 63); }},
    {0x24, "s_mul_i32", 1, 1, 1, [](S x) { x.d = low(x.a) * low(x.b); }},
    {0x25, "s_bfe_u32", 1, 1, 1,
     [](S x) { logic32(x, low(field(low(x.a), low(x.b), low(x.b) >> 16 & 0x7f, 32))); }},
    {0x26, "s_bfe_i32", 1, 1, 1,
     [](S x) { logic32(x, low(signed_field(low(x.a), low(x.b), low(x.b) >> 16 & 0x7f, 32))); }},
    {0x27, "s_bfe_u64", 2, 1, 2, [](S x) { logic64(x, field(x.a, low(x.b), low(x.b) >> 16 & 0x7f, 64)); }},
    {0x28, "s_bfe_i64", 2, 1, 2,
     [](S x) { logic64(x, signed_field(x.a, low(x.b), low(x.b) >> 16 & 0x7f, 64)); }},
    {0x2a, "s_absdiff_i32", 1, 1, 1,
     [](S x) { logic32(x, low_signed(x.a) > low_signed(x.b) ? low(x.a) - low(x.b) : low(x.b) - low(x.a)); }},
    {0x2c, "s_mul_hi_u32", 1, 1, 1, [](S x) { x.d = U64{low(x.a)} * low(x.b) >> 32; }},
    {0x2d, "s_mul_hi_i32", 1, 1, 1,
     [](S x) { x.d = low(static_cast<U64>(I64{low_signed(x.a)} * low_signed(x.b) >> 32)); }},
    {0x2e, "s_lshl1_add_u32", 1, 1, 1, [](S x) { carry(x, (U64{low(x.a)} << 1) + low(x.b)); }},
    {0x2f, "s_lshl2_add_u32", 1, 1, 1, [](S x) { carry(x, (U64{low(x.a)} << 2) + low(x.b)); }},
    {0x30, "s_lshl3_add_u32", 1, 1, 1, [](S x) { carry(x, (U64{low(x.a)} << 3) + low(x.b)); }},
    {0x31, "s_lshl4_add_u32", 1, 1, 1, [](S x) { carry(x, (U64{low(x.a)} << 4) + low(x.b)); }},
    {0x32, "s_pack_ll_b32_b16", 1, 1, 1, [](S x) { x.d = low(x.a & 0xffff) | low(x.b) << 16; }},
    {0x33, "s_pack_lh_b32_b16", 1, 1, 1, [](S x) { x.d = low(x.a & 0xffff) | (low(x.b) & 0xffff0000); }},
    {0x34, "s_pack_hh_b32_b16", 1, 1, 1, [](S x) { x.d = low(x.a) >> 16 | (low(x.b) & 0xffff0000); }},
};

// `a` is the destination as it was.
constexpr ScalarLine kSopk[] = {
    {0x00, "s_movk_i32", 0, 0, 1, [](S x) { x.d = static_cast<U32>(immediate(x)); }},
    {0x01, "s_cmovk_i32", 1, 0, 1, [](S x) { x.d = x.wave.scc ? static_cast<U32>(immediate(x)) : x.a; }},
    {0x02, "s_cmpk_eq_i32", 1, 0, 0, [](S x) { compare(x, low_signed(x.a) == immediate(x)); }},
    {0x03, "s_cmpk_lg_i32", 1, 0, 0, [](S x) { compare(x, low_signed(x.a) != immediate(x)); }},
    {0x04, "s_cmpk_gt_i32", 1, 0, 0, [](S x) { compare(x, low_signed(x.a) > immediate(x)); }},
    {0x05, "s_cmpk_ge_i32", 1, 0, 0, [](S x) { compare(x, low_signed(x.a) >= immediate(x)); }},
    {0x06, "s_cmpk_lt_i32", 1, 0, 0, [](S x) { compare(x, low_signed(x.a) < immediate(x)); }},
    {0x07, "s_cmpk_le_i32", 1, 0, 0, [](S x) { compare(x, low_signed(x.a) <= immediate(x)); }},
    {0x08, "s_cmpk_eq_u32", 1, 0, 0, [](S x) { compare(x, low(x.a) == (x.in.first & 0xffff)); }},
    {0x09, "s_cmpk_lg_u32", 1, 0, 0, [](S x) { compare(x, low(x.a) != (x.in.first & 0xffff)); }},
    {0x0a, "s_cmpk_gt_u32", 1, 0, 0, [](S x) { compare(x, low(x.a) > (x.in.first & 0xffff)); }},
    {0x0b, "s_cmpk_ge_u32", 1, 0, 0, [](S x) { compare(x, low(x.a) >= (x.in.first & 0xffff)); }},
    {0x0c, "s_cmpk_lt_u32", 1, 0, 0, [](S x) { compare(x, low(x.a) < (x.in.first & 0xffff)); }},
    {0x0d, "s_cmpk_le_u32", 1, 0, 0, [](S x) { compare(x, low(x.a) <= (x.in.first & 0xffff)); }},
    {0x0e, "s_addk_i32", 1, 0, 1, [](S x) { overflow(x, I64{low_signed(x.a)} + immediate(x)); }},
    {0x0f, "s_mulk_i32", 1, 0, 1, [](S x) { x.d = low(x.a) * static_cast<U32>(immediate(x)); }},
    {0x11, "s_getreg_b32", 0, 0, 1,
     [](S x) {
       const Hwreg reg = hwreg(x);
       x.d = x.machine.hardware_register(x.wave, reg.id) >> reg.shift & reg.mask;
     }},
    {0x12, "s_setreg_b32", 1, 0, 0, [](S x) { set_hardware_register(x, low(x.a)); }},
    {sopk::kSetregImm, "s_setreg_imm32_b32", 0, 0, 0, [](S x) { set_hardware_register(x, x.in.second); }},
    {0x15, "s_call_b64", 0, 0, 2,
     [](S x) {
       x.d = x.next;
       jump(x, true);
     }},
};

constexpr ScalarLine kSopc[] = {
    {0x00, "s_cmp_eq_i32", 1, 1, 0, [](S x) { compare(x, low(x.a) == low(x.b)); }},
    {0x01, "s_cmp_lg_i32", 1, 1, 0, [](S x) { compare(x, low(x.a) != low(x.b)); }},
    {0x02, "s_cmp_gt_i32", 1, 1, 0, [](S x) { compare(x, low_signed(x.a) > low_signed(x.b)); }},
    {0x03, "s_cmp_ge_i32", 1, 1, 0, [](S x) { compare(x, low_signed(x.a) >= low_signed(x.b)); }},
    {0x04, "s_cmp_lt_i32", 1, 1, 0, [](S x) { compare(x, low_signed(x.a) < low_signed(x.b)); }},
    {0x05, "s_cmp_le_i32", 1, 1, 0, [](S x) { compare(x, low_signed(x.a) <= low_signed(x.b)); }},
    {0x06, "s_cmp_eq_u32", 1, 1, 0, [](S x) { compare(x, low(x.a) == low(x.b)); }},
    {0x07, "s_cmp_lg_u32", 1, 1, 0, [](S x) { compare(x, low(x.a) != low(x.b)); }},
    {0x08, "s_cmp_gt_u32", 1, 1, 0, [](S x) { compare(x, low(x.a) > low(x.b)); }},
    {0x09, "s_cmp_ge_u32", 1, 1, 0, [](S x) { compare(x, low(x.a) >= low(x.b)); }},
    {0x0a, "s_cmp_lt_u32", 1, 1, 0, [](S x) { compare(x, low(x.a) < low(x.b)); }},
    {0x0b, "s_cmp_le_u32", 1, 1, 0, [](S x) { compare(x, low(x.a) <= low(x.b)); }},
    {0x0c, "s_bitcmp0_b32", 1, 1, 0, [](S x) { compare(x, (low(x.a) >> (x.b & 31) & 1) == 0); }},
    {0x0d, "s_bitcmp1_b32", 1, 1, 0, [](S x) { compare(x, (low(x.a) >> (x.b & 31) & 1) != 0); }},
    {0x0e, "s_bitcmp0_b64", 2, 1, 0, [](S x) { compare(x, (x.a >> (x.b & 63) & 1) == 0); }},
    {0x0f, "s_bitcmp1_b64", 2, 1, 0, [](S x) { compare(x, (x.a >> (x.b & 63) & 1) != 0); }},
    {0x10, "s_setvskip", 1, 1, 0,
     [](S x) {
       x.wave.mode &= ~mode::kVectorSkip;
       if ((low(x.a) >> (x.b & 31) & 1) != 0) x.wave.mode |= mode::kVectorSkip;
     }},
    {0x11, "s_set_gpr_idx_on", 1, 1, 0,
     [](S x) {
       x.wave.mode |= mode::kGprIndex;
       // The second operand's code is itself the mask of what is relative.
       x.wave.scalar[sgpr::kM0] = (x.wave.m0() & 0xffff0f00) | (low(x.a) & 0xff) | x.in.bits(8, 4) << 12;
     }},
    {0x12, "s_cmp_eq_u64", 2, 2, 0, [](S x) { compare(x, x.a == x.b); }},
    {0x13, "s_cmp_lg_u64", 2, 2, 0, [](S x) { compare(x, x.a != x.b); }},
};

void nothing(S /*x*/) {}

constexpr ScalarLine kSopp[] = {
    {0x00, "s_nop", 0, 0, 0, nothing},
    {0x01, "s_endpgm", 0, 0, 0, [](S x) { x.wave.ended = true; }},
    {0x02, "s_branch", 0, 0, 0, [](S x) { jump(x, true); }},
    {0x03, "s_wakeup", 0, 0, 0, nothing},
    {0x04, "s_cbranch_scc0", 0, 0, 0, [](S x) { jump(x, !x.wave.scc); }},
    {0x05, "s_cbranch_scc1", 0, 0, 0, [](S x) { jump(x, x.wave.scc); }},
    {0x06, "s_cbranch_vccz", 0, 0, 0, [](S x) { jump(x, x.wave.vcc() == 0); }},
    {0x07, "s_cbranch_vccnz", 0, 0, 0, [](S x) { jump(x, x.wave.vcc() != 0); }},
    {0x08, "s_cbranch_execz", 0, 0, 0, [](S x) { jump(x, x.wave.exec() == 0); }},
    {0x09, "s_cbranch_execnz", 0, 0, 0, [](S x) { jump(x, x.wave.exec() != 0); }},
    {0x0a, "s_barrier", 0, 0, 0, [](S x) { x.wave.at_barrier = true; }},
    {0x0c, "s_waitcnt", 0, 0, 0, nothing},
    {0x0d, "s_sethalt", 0, 0, 0,
     [](S x) {
       x.wave.status &= ~status::kHalt;
       if ((x.in.first & 1) != 0) x.wave.status |= status::kHalt;
     }},
    {0x0e, "s_sleep", 0, 0, 0, nothing},
    {0x0f, "s_setprio", 0, 0, 0, nothing},
    {0x10, "s_sendmsg", 0, 0, 0, message},
    {0x12, "s_trap", 0, 0, 0,
     [](S x) {
       x.machine.enter_trap(x.wave, x.in.first & 0xff, x.next);
       x.next = x.wave.pc;
     }},
    {0x13, "s_icache_inv", 0, 0, 0, nothing},
    {0x14, "s_incperflevel", 0, 0, 0, nothing},
    {0x15, "s_decperflevel", 0, 0, 0, nothing},
    {0x16, "s_ttracedata", 0, 0, 0, nothing},
    {0x1b, "s_endpgm_saved", 0, 0, 0, [](S x) { x.wave.ended = x.wave.saved = true; }},
    {0x1c, "s_set_gpr_idx_off", 0, 0, 0, [](S x) { x.wave.mode &= ~mode::kGprIndex; }},
    {0x1d, "s_set_gpr_idx_mode", 0, 0, 0,
     [](S x) { x.wave.scalar[sgpr::kM0] = (x.wave.m0() & 0xffff0fff) | (x.in.first & 0xf) << 12; }},
};

void set_hardware_register(S x, U32 value) {
  const Hwreg reg = hwreg(x);
  const U32 before = x.machine.hardware_register(x.wave, reg.id);
  const U32 mask = reg.mask << reg.shift;
  Machine::hardware_register(x.wave, reg.id, (before & ~mask) | (value << reg.shift & mask));
}

const ScalarLine* find(const Instruction& in) {
  switch (in.encoding) {
    case Encoding::kSop1:
      return sop1().find(in.op);
    case Encoding::kSop2:
      return sop2().find(in.op);
    case Encoding::kSopk:
      return sopk_table().find(in.op);
    case Encoding::kSopc:
      return sopc().find(in.op);
    default:
      return sopp().find(in.op);
  }
}

}  // namespace

const Table<ScalarLine, 256>& sop1() {
  static const Table<ScalarLine, 256> table(kSop1);
  return table;
}
const Table<ScalarLine, 128>& sop2() {
  static const Table<ScalarLine, 128> table(kSop2);
  return table;
}
const Table<ScalarLine, 32>& sopk_table() {
  static const Table<ScalarLine, 32> table(kSopk);
  return table;
}
const Table<ScalarLine, 128>& sopc() {
  static const Table<ScalarLine, 128> table(kSopc);
  return table;
}
const Table<ScalarLine, 128>& sopp() {
  static const Table<ScalarLine, 128> table(kSopp);
  return table;
}

bool Machine::execute_scalar(Wave& wave, const Instruction& in) {
  const ScalarLine* line = find(in);
  if (line == nullptr) return refuse(wave, describe(in));
  const bool from_destination = in.encoding == Encoding::kSopk;
  const U32 to = in.encoding == Encoding::kSopp || in.encoding == Encoding::kSopc ? 0 : in.bits(16, 7);
  const auto value = [&](U8 width, U32 code) -> U64 {
    if (width == 0) return 0;
    return width == 2 ? scalar_pair(wave, code, in.second) : scalar(wave, code, in.second);
  };
  Scalar x{.machine = *this, .wave = wave, .in = in, .next = wave.pc + 4 * in.dwords};
  x.a = value(line->a, from_destination ? to : in.bits(0, 8));
  x.b = value(line->b, in.bits(8, 8));
  x.d = line->d == 2 ? wave.pair(to) : wave.scalar[to];
  line->run(x);
  if (line->d == 2) wave.pair(to, x.d);
  if (line->d == 1) wave.scalar[to] = low(x.d);
  wave.pc = x.next;
  return true;
}

}  // namespace sluice::card::shader
