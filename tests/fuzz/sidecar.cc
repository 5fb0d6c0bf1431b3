// SPDX-License-Identifier: MIT
// amdgpu-sums-*.img.
#include "fuzz.h"
#include "images/files/digest.h"
#include "images/sums.h"

using namespace sluice;

namespace {

fuzz::Goal a_sidecar("a sidecar");

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto sidecar = unpack_sidecar(with_digest({data, data + size}, MessageKind::Sums, {}), "image", {});
  if (!sidecar) {
    FUZZ_CHECK(sidecar.error().err > 0 && !sidecar.error().what.empty());
    return 0;
  }
  a_sidecar.reach();
  FUZZ_CHECK(sidecar->tables.size() == sidecar->pages_files.size());
  const auto again = unpack_sidecar(pack_sidecar(*sidecar, {}), "image", {});
  FUZZ_CHECK(again.ok() && again->pages_files == sidecar->pages_files && again->dump_id == sidecar->dump_id);
  for (std::size_t i = 0; i < sidecar->tables.size(); ++i) {
    FUZZ_CHECK(again->tables[i].sums == sidecar->tables[i].sums);
    FUZZ_CHECK(again->tables[i].file_bytes == sidecar->tables[i].file_bytes);
  }
  return 0;
}
