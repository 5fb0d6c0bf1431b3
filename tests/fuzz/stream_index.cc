// SPDX-License-Identifier: MIT
// What comes out of a stream: an image's frame, and amdgpu-sluice-index.img.
#include <algorithm>
#include <vector>

#include "fuzz.h"
#include "images/files/digest.h"
#include "images/files/files.h"
#include "plugin/host/image_store.h"

using namespace sluice;

namespace {

fuzz::Goal a_frame("an image in its frame"), an_index("an index of images and maps");

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> bytes(data, data + size);
  const auto payload = unframe(bytes, "image");
  if (payload) {
    a_frame.reach();
    FUZZ_CHECK(payload->size() + 8 == size &&
               std::equal(payload->begin(), payload->end(), bytes.begin() + 8));
  } else {
    FUZZ_CHECK(payload.error().err == EBADMSG && !payload.error().what.empty());
  }
  auto index = plugin::parse_index(with_digest(payload ? *payload : bytes, MessageKind::StreamIndex, {}), {});
  if (!index) {
    FUZZ_CHECK(index.error().err > 0 && !index.error().what.empty());
    return 0;
  }
  if (!index->images.empty() && !index->maps.empty()) an_index.reach();
  for (const auto& [pid, maps] : index->maps) {
    const auto runs = plugin::VmaRuns::of(maps);
    for (const plugin::PluginMap& map : maps) FUZZ_CHECK(runs.maps(map.offset, 1));
  }
  keep_images(index->images, kKfdPrefix);
  for (const std::string& name : index->images)
    FUZZ_CHECK(name.starts_with(kKfdPrefix) && name.find('/') == std::string::npos);
  return 0;
}
