// SPDX-License-Identifier: MIT
// amdgpu-predump.img.
#include "images/chain/predump_mark.h"
#include "fuzz.h"
#include "images/files/digest.h"

using namespace sluice;

namespace {

fuzz::Goal a_mark("a mark");

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto mark = unpack_predump_mark(with_digest({data, data + size}, MessageKind::PreDumpMark, {}), {});
  if (!mark) {
    FUZZ_CHECK(mark.error().err > 0 && !mark.error().what.empty());
    return 0;
  }
  a_mark.reach();
  const auto again = unpack_predump_mark(pack_predump_mark(*mark, {}), {});
  FUZZ_CHECK(again.ok() && again->images == mark->images && again->dump_id == mark->dump_id &&
             again->frozen_ns == mark->frozen_ns);
  return 0;
}
