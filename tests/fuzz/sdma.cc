// SPDX-License-Identifier: MIT
// An indirect buffer of the virtual driver's copy engine: whatever it holds, what comes out stays inside BOs.
#include "model/sdma.h"

#include <cstring>
#include <vector>

#include "fuzz.h"
#include "tests/model_kit.h"

namespace {

sluice::fuzz::Goal a_copy("a buffer that copies, to its end");

class Engine {
 public:
  Engine() : file_(machine_.open_render(0)) {
    constexpr std::uint32_t kBoth = VAM_VM_READABLE | VAM_VM_WRITEABLE;
    vam_model* model = machine_.model();
    std::uint32_t vram = 0, gtt = 0;
    FUZZ_CHECK(vam_bo_create(model, 0, VAM_POOL_VRAM, VAM_BO_GEM, 8192, 4096, &vram) == 0);
    FUZZ_CHECK(vam_bo_create(model, 0, VAM_POOL_GTT, VAM_BO_GEM, 8192, 4096, &gtt) == 0);
    FUZZ_CHECK(vam_vm_map(model, file_, 1 << 20, 8192, vram, 0, kBoth, 0) == 0);
    FUZZ_CHECK(vam_vm_map(model, file_, 2 << 20, 4096, gtt, 4096, kBoth, 0) == 0);
    FUZZ_CHECK(vam_vm_map(model, file_, (2 << 20) + 4096, 4096, gtt, 0, kBoth, 0) == 0);
  }

  void run(const std::vector<std::uint32_t>& dwords, bool tolerant) {
    vam_sdma_reader reader{};
    reader.dwords = dwords.data();
    reader.count = static_cast<std::uint32_t>(dwords.size());
    reader.max_bytes = 4 << 20;
    reader.count_is_bytes_less_one = 1;
    reader.tolerant = tolerant ? 1 : 0;
    reader.file = file_;
    const vam_model* model = machine_.model();
    vam_sdma_op op;
    int result = 0;
    bool copies = false;
    while ((result = vam_sdma_next(model, &reader, &op)) == 1) {
      FUZZ_CHECK(op.bytes != 0);
      check_inside(op.dst_bo, op.dst_offset, op.bytes);
      if (op.kind != VAM_SDMA_COPY) continue;
      check_inside(op.src_bo, op.src_offset, op.bytes);
      copies = true;
    }
    if (result == 0 && copies) a_copy.reach();
    FUZZ_CHECK(result == 0 || reader.fault != nullptr);
  }

 private:
  void check_inside(std::uint32_t bo, std::uint64_t offset, std::uint64_t bytes) {
    const vam_bo* record = VAM_BO_AT(machine_.model(), bo);
    FUZZ_CHECK(record->rec.live && offset <= record->size && bytes <= record->size - offset);
  }

  vamdgpu::tests::Machine machine_;
  std::uint32_t file_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Engine engine;
  std::vector<std::uint32_t> dwords(size / sizeof(std::uint32_t));
  if (!dwords.empty()) std::memcpy(dwords.data(), data, dwords.size() * sizeof(std::uint32_t));
  for (const bool tolerant : {false, true}) engine.run(dwords, tolerant);
  return 0;
}
