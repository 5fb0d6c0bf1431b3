// SPDX-License-Identifier: MIT
// Loads, stores and atomics, by the numbers that FLAT, GLOBAL, SCRATCH and MUBUF share; scalar ones; those of
// LDS.
#include <algorithm>
#include <cmath>

#include "shader/half.h"
#include "shader/opcodes.h"

namespace sluice::card::shader {

namespace {

using Action = MemoryLine::Action;
using Part = MemoryLine::Half;

// ---- what an atomic leaves in memory ----

template <class T>
using Signed = std::make_signed_t<T>;

template <class T>
U64 exchange(U64, U64 data, U64) {
  return static_cast<T>(data);
}
template <class T>
U64 exchange_if_equal(U64 old, U64 data, U64 compare) {
  return static_cast<T>(old) == static_cast<T>(compare) ? data : old;
}
template <class T>
U64 add(U64 old, U64 data, U64) {
  return static_cast<T>(old + data);
}
template <class T>
U64 subtract(U64 old, U64 data, U64) {
  return static_cast<T>(old - data);
}
template <class T>
U64 subtract_reversed(U64 old, U64 data, U64) {
  return static_cast<T>(data - old);
}
template <class T>
U64 minimum(U64 old, U64 data, U64) {
  return static_cast<std::make_unsigned_t<T>>(std::min(static_cast<T>(old), static_cast<T>(data)));
}
template <class T>
U64 maximum(U64 old, U64 data, U64) {
  return static_cast<std::make_unsigned_t<T>>(std::max(static_cast<T>(old), static_cast<T>(data)));
}
U64 bits_and(U64 old, U64 data, U64) {
  return old & data;
}
U64 bits_or(U64 old, U64 data, U64) {
  return old | data;
}
U64 bits_xor(U64 old, U64 data, U64) {
  return old ^ data;
}
// Up to the data, then from 0 again; and down to 0, then from the data again.
template <class T>
U64 increment(U64 old, U64 data, U64) {
  return static_cast<T>(old) >= static_cast<T>(data) ? 0 : static_cast<T>(old + 1);
}
template <class T>
U64 decrement(U64 old, U64 data, U64) {
  return static_cast<T>(old) == 0 || static_cast<T>(old) > static_cast<T>(data) ? static_cast<T>(data)
                                                                                : static_cast<T>(old - 1);
}
U64 add_float(U64 old, U64 data, U64) {
  return bits_of(as_float(old) + as_float(data));
}
U64 add_double(U64 old, U64 data, U64) {
  return bits_of(as_double(old) + as_double(data));
}
U64 min_double(U64 old, U64 data, U64) {
  return bits_of(std::fmin(as_double(old), as_double(data)));
}
U64 max_double(U64 old, U64 data, U64) {
  return bits_of(std::fmax(as_double(old), as_double(data)));
}
U64 min_float(U64 old, U64 data, U64) {
  return bits_of(std::fmin(as_float(old), as_float(data)));
}
U64 max_float(U64 old, U64 data, U64) {
  return bits_of(std::fmax(as_float(old), as_float(data)));
}
U64 add_halves(U64 old, U64 data, U64) {
  const auto sum = [&](unsigned at) {
    return U64{
        to_half(to_float(Half{static_cast<U16>(old >> at)}) + to_float(Half{static_cast<U16>(data >> at)}))
            .bits};
  };
  return sum(0) | sum(16) << 16;
}

using Change = U64 (*)(U64, U64, U64);

constexpr MemoryLine load(U32 op, const char* name, U8 bytes, bool is_signed = false,
                          Part part = Part::kWhole) {
  return {op, name, Action::kLoad, bytes, is_signed, part};
}
constexpr MemoryLine store(U32 op, const char* name, U8 bytes, Part part = Part::kWhole) {
  return {op, name, Action::kStore, bytes, false, part};
}
constexpr MemoryLine atomic(U32 op, const char* name, U8 bytes, Change change, bool compares = false) {
  return {op, name, Action::kAtomic, bytes, false, Part::kWhole, compares, change};
}

constexpr MemoryLine kLines[] = {
    load(0x10, "load_ubyte", 1),
    load(0x11, "load_sbyte", 1, true),
    load(0x12, "load_ushort", 2),
    load(0x13, "load_sshort", 2, true),
    load(0x14, "load_dword", 4),
    load(0x15, "load_dwordx2", 8),
    load(0x16, "load_dwordx3", 12),
    load(0x17, "load_dwordx4", 16),
    store(0x18, "store_byte", 1),
    store(0x19, "store_byte_d16_hi", 1, Part::kHigh),
    store(0x1a, "store_short", 2),
    store(0x1b, "store_short_d16_hi", 2, Part::kHigh),
    store(0x1c, "store_dword", 4),
    store(0x1d, "store_dwordx2", 8),
    store(0x1e, "store_dwordx3", 12),
    store(0x1f, "store_dwordx4", 16),
    load(0x20, "load_ubyte_d16", 1, false, Part::kLow),
    load(0x21, "load_ubyte_d16_hi", 1, false, Part::kHigh),
    load(0x22, "load_sbyte_d16", 1, true, Part::kLow),
    load(0x23, "load_sbyte_d16_hi", 1, true, Part::kHigh),
    load(0x24, "load_short_d16", 2, false, Part::kLow),
    load(0x25, "load_short_d16_hi", 2, false, Part::kHigh),
    atomic(0x40, "atomic_swap", 4, exchange<U32>),
    atomic(0x41, "atomic_cmpswap", 4, exchange_if_equal<U32>, true),
    atomic(0x42, "atomic_add", 4, add<U32>),
    atomic(0x43, "atomic_sub", 4, subtract<U32>),
    atomic(0x44, "atomic_smin", 4, minimum<I32>),
    atomic(0x45, "atomic_umin", 4, minimum<U32>),
    atomic(0x46, "atomic_smax", 4, maximum<I32>),
    atomic(0x47, "atomic_umax", 4, maximum<U32>),
    atomic(0x48, "atomic_and", 4, bits_and),
    atomic(0x49, "atomic_or", 4, bits_or),
    atomic(0x4a, "atomic_xor", 4, bits_xor),
    atomic(0x4b, "atomic_inc", 4, increment<U32>),
    atomic(0x4c, "atomic_dec", 4, decrement<U32>),
    atomic(0x4d, "atomic_add_f32", 4, add_float),
    atomic(0x4e, "atomic_pk_add_f16", 4, add_halves),
    atomic(0x4f, "atomic_add_f64", 8, add_double),
    atomic(0x50, "atomic_min_f64", 8, min_double),
    atomic(0x51, "atomic_max_f64", 8, max_double),
    atomic(0x60, "atomic_swap_x2", 8, exchange<U64>),
    atomic(0x61, "atomic_cmpswap_x2", 8, exchange_if_equal<U64>, true),
    atomic(0x62, "atomic_add_x2", 8, add<U64>),
    atomic(0x63, "atomic_sub_x2", 8, subtract<U64>),
    atomic(0x64, "atomic_smin_x2", 8, minimum<I64>),
    atomic(0x65, "atomic_umin_x2", 8, minimum<U64>),
    atomic(0x66, "atomic_smax_x2", 8, maximum<I64>),
    atomic(0x67, "atomic_umax_x2", 8, maximum<U64>),
    atomic(0x68, "atomic_and_x2", 8, bits_and),
    atomic(0x69, "atomic_or_x2", 8, bits_or),
    atomic(0x6a, "atomic_xor_x2", 8, bits_xor),
    atomic(0x6b, "atomic_inc_x2", 8, increment<U64>),
    atomic(0x6c, "atomic_dec_x2", 8, decrement<U64>),
};

// "s_" stands before these.
constexpr MemoryLine kScalarLines[] = {
    load(0x00, "load_dword", 4),
    load(0x01, "load_dwordx2", 8),
    load(0x02, "load_dwordx4", 16),
    load(0x03, "load_dwordx8", 32),
    load(0x04, "load_dwordx16", 64),
    load(0x08, "buffer_load_dword", 4),
    load(0x09, "buffer_load_dwordx2", 8),
    load(0x0a, "buffer_load_dwordx4", 16),
    load(0x0b, "buffer_load_dwordx8", 32),
    load(0x0c, "buffer_load_dwordx16", 64),
    store(0x10, "store_dword", 4),
    store(0x11, "store_dwordx2", 8),
    store(0x12, "store_dwordx4", 16),
    store(0x18, "buffer_store_dword", 4),
    store(0x19, "buffer_store_dwordx2", 8),
    store(0x1a, "buffer_store_dwordx4", 16),
};

// ---- LDS ----

using LdsAction = LdsLine::Action;

constexpr LdsLine read(U32 op, const char* name, U8 bytes, bool is_signed = false, Part part = Part::kWhole) {
  return {op, name, LdsAction::kRead, bytes, is_signed, part};
}
constexpr LdsLine write(U32 op, const char* name, U8 bytes, Part part = Part::kWhole) {
  return {op, name, LdsAction::kWrite, bytes, false, part};
}
constexpr LdsLine two(U32 op, const char* name, LdsAction action, U8 bytes, U8 stride) {
  return {op, name, action, bytes, false, Part::kWhole, stride};
}
constexpr LdsLine change(U32 op, const char* name, U8 bytes, Change function, bool returns,
                         bool compares = false) {
  return {op, name, LdsAction::kAtomic, bytes, false, Part::kWhole, 1, returns, compares, function};
}

constexpr LdsLine kLdsLines[] = {
    change(0x00, "ds_add_u32", 4, add<U32>, false),
    change(0x01, "ds_sub_u32", 4, subtract<U32>, false),
    change(0x02, "ds_rsub_u32", 4, subtract_reversed<U32>, false),
    change(0x03, "ds_inc_u32", 4, increment<U32>, false),
    change(0x04, "ds_dec_u32", 4, decrement<U32>, false),
    change(0x05, "ds_min_i32", 4, minimum<I32>, false),
    change(0x06, "ds_max_i32", 4, maximum<I32>, false),
    change(0x07, "ds_min_u32", 4, minimum<U32>, false),
    change(0x08, "ds_max_u32", 4, maximum<U32>, false),
    change(0x09, "ds_and_b32", 4, bits_and, false),
    change(0x0a, "ds_or_b32", 4, bits_or, false),
    change(0x0b, "ds_xor_b32", 4, bits_xor, false),
    write(0x0d, "ds_write_b32", 4),
    two(0x0e, "ds_write2_b32", LdsAction::kWrite2, 4, 1),
    two(0x0f, "ds_write2st64_b32", LdsAction::kWrite2, 4, 64),
    change(0x10, "ds_cmpst_b32", 4, exchange_if_equal<U32>, false, true),
    change(0x12, "ds_min_f32", 4, min_float, false),
    change(0x13, "ds_max_f32", 4, max_float, false),
    {0x14, "ds_nop", LdsAction::kNothing, 0},
    change(0x15, "ds_add_f32", 4, add_float, false),
    write(0x1e, "ds_write_b8", 1),
    write(0x1f, "ds_write_b16", 2),
    change(0x20, "ds_add_rtn_u32", 4, add<U32>, true),
    change(0x21, "ds_sub_rtn_u32", 4, subtract<U32>, true),
    change(0x22, "ds_rsub_rtn_u32", 4, subtract_reversed<U32>, true),
    change(0x23, "ds_inc_rtn_u32", 4, increment<U32>, true),
    change(0x24, "ds_dec_rtn_u32", 4, decrement<U32>, true),
    change(0x25, "ds_min_rtn_i32", 4, minimum<I32>, true),
    change(0x26, "ds_max_rtn_i32", 4, maximum<I32>, true),
    change(0x27, "ds_min_rtn_u32", 4, minimum<U32>, true),
    change(0x28, "ds_max_rtn_u32", 4, maximum<U32>, true),
    change(0x29, "ds_and_rtn_b32", 4, bits_and, true),
    change(0x2a, "ds_or_rtn_b32", 4, bits_or, true),
    change(0x2b, "ds_xor_rtn_b32", 4, bits_xor, true),
    change(0x2d, "ds_wrxchg_rtn_b32", 4, exchange<U32>, true),
    change(0x30, "ds_cmpst_rtn_b32", 4, exchange_if_equal<U32>, true, true),
    change(0x32, "ds_min_rtn_f32", 4, min_float, true),
    change(0x33, "ds_max_rtn_f32", 4, max_float, true),
    change(0x35, "ds_add_rtn_f32", 4, add_float, true),
    read(0x36, "ds_read_b32", 4),
    two(0x37, "ds_read2_b32", LdsAction::kRead2, 4, 1),
    two(0x38, "ds_read2st64_b32", LdsAction::kRead2, 4, 64),
    read(0x39, "ds_read_i8", 1, true),
    read(0x3a, "ds_read_u8", 1),
    read(0x3b, "ds_read_i16", 2, true),
    read(0x3c, "ds_read_u16", 2),
    {0x3d, "ds_swizzle_b32", LdsAction::kSwizzle, 4},
    {0x3e, "ds_permute_b32", LdsAction::kPermute, 4},
    {0x3f, "ds_bpermute_b32", LdsAction::kBackwardPermute, 4},
    change(0x40, "ds_add_u64", 8, add<U64>, false),
    change(0x41, "ds_sub_u64", 8, subtract<U64>, false),
    change(0x45, "ds_min_i64", 8, minimum<I64>, false),
    change(0x46, "ds_max_i64", 8, maximum<I64>, false),
    change(0x47, "ds_min_u64", 8, minimum<U64>, false),
    change(0x48, "ds_max_u64", 8, maximum<U64>, false),
    change(0x49, "ds_and_b64", 8, bits_and, false),
    change(0x4a, "ds_or_b64", 8, bits_or, false),
    change(0x4b, "ds_xor_b64", 8, bits_xor, false),
    write(0x4d, "ds_write_b64", 8),
    two(0x4e, "ds_write2_b64", LdsAction::kWrite2, 8, 1),
    two(0x4f, "ds_write2st64_b64", LdsAction::kWrite2, 8, 64),
    change(0x50, "ds_cmpst_b64", 8, exchange_if_equal<U64>, false, true),
    change(0x52, "ds_min_f64", 8, min_double, false),
    change(0x53, "ds_max_f64", 8, max_double, false),
    write(0x54, "ds_write_b8_d16_hi", 1, Part::kHigh),
    write(0x55, "ds_write_b16_d16_hi", 2, Part::kHigh),
    read(0x56, "ds_read_u8_d16", 1, false, Part::kLow),
    read(0x57, "ds_read_u8_d16_hi", 1, false, Part::kHigh),
    read(0x58, "ds_read_i8_d16", 1, true, Part::kLow),
    read(0x59, "ds_read_i8_d16_hi", 1, true, Part::kHigh),
    read(0x5a, "ds_read_u16_d16", 2, false, Part::kLow),
    read(0x5b, "ds_read_u16_d16_hi", 2, false, Part::kHigh),
    change(0x5c, "ds_add_f64", 8, add_double, false),
    change(0x60, "ds_add_rtn_u64", 8, add<U64>, true),
    change(0x61, "ds_sub_rtn_u64", 8, subtract<U64>, true),
    change(0x65, "ds_min_rtn_i64", 8, minimum<I64>, true),
    change(0x66, "ds_max_rtn_i64", 8, maximum<I64>, true),
    change(0x67, "ds_min_rtn_u64", 8, minimum<U64>, true),
    change(0x68, "ds_max_rtn_u64", 8, maximum<U64>, true),
    change(0x69, "ds_and_rtn_b64", 8, bits_and, true),
    change(0x6a, "ds_or_rtn_b64", 8, bits_or, true),
    change(0x6b, "ds_xor_rtn_b64", 8, bits_xor, true),
    change(0x6d, "ds_wrxchg_rtn_b64", 8, exchange<U64>, true),
    change(0x70, "ds_cmpst_rtn_b64", 8, exchange_if_equal<U64>, true, true),
    read(0x76, "ds_read_b64", 8),
    two(0x77, "ds_read2_b64", LdsAction::kRead2, 8, 1),
    two(0x78, "ds_read2st64_b64", LdsAction::kRead2, 8, 64),
    change(0x7c, "ds_add_rtn_f64", 8, add_double, true),
    // Global wave sync: a resource that no other queue has here. HIP sets it up before cooperative launches.
    {0x99, "ds_gws_init", LdsAction::kNothing, 0},
    write(0xde, "ds_write_b96", 12),
    write(0xdf, "ds_write_b128", 16),
    read(0xfe, "ds_read_b96", 12),
    read(0xff, "ds_read_b128", 16),
};

}  // namespace

const Table<MemoryLine, 128>& memory_table() {
  static const Table<MemoryLine, 128> table(kLines);
  return table;
}

const MemoryLine* find_scalar_memory(U32 op) {
  static const Table<MemoryLine, 64> table(kScalarLines);
  if (op < 0x40) return table.find(op);
  const MemoryLine* line = memory_table().find(op < 0x80 ? op : op - 0x40);
  return line != nullptr && line->action == Action::kAtomic ? line : nullptr;
}

const Table<LdsLine, 256>& lds_table() {
  static const Table<LdsLine, 256> table(kLdsLines);
  return table;
}

}  // namespace sluice::card::shader
