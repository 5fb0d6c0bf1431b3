// SPDX-License-Identifier: MIT
// amdgpu-renderD-<id>.img and amdgpu-dmabuf_<id>.img.
#include "fuzz.h"
#include "images/files/digest.h"
#include "images/metadata.h"

using namespace sluice;

namespace {

fuzz::Goal a_node("an image of a render node with BOs"), a_dmabuf("an image of a dma-buf");

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> payload =
      with_digest({data, data + size}, MessageKind::RenderNode, {});  // or nothing gets past it
  const auto image = unpack_render_image(payload, "image", {});
  if (image) {
    if (!image->bos.empty()) a_node.reach();
    const auto again = unpack_render_image(pack_render_image(*image, {}), "image", {});
    FUZZ_CHECK(again.ok() && again->bos == image->bos && again->minor == image->minor);
    FUZZ_CHECK(again->gpu_id == image->gpu_id && again->dump_id == image->dump_id &&
               again->pid == image->pid);
    FUZZ_CHECK(bo_table_digest(image->bos) == bo_table_digest(again->bos));
  } else {
    FUZZ_CHECK(image.error().err > 0 && !image.error().what.empty());
  }
  const auto dmabuf = unpack_dmabuf_image(payload, "image", {});
  if (dmabuf) {
    a_dmabuf.reach();
    const auto again = unpack_dmabuf_image(pack_dmabuf_image(*dmabuf, {}), "image", {});
    FUZZ_CHECK(again.ok() && again->shared == dmabuf->shared && again->gem_handle == dmabuf->gem_handle);
  }
  return 0;
}
