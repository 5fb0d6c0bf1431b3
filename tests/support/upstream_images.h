// SPDX-License-Identifier: MIT
// Images as the plugins of upstream's releases write them, made from ours by a writer that knows nothing of
// our schema: it puts the wire format together field by field.
//
// Field numbers and what is written of each: criu-amdgpu.proto, amdgpu_plugin.c and amdgpu_plugin_drm.c of
// CRIU 3.17.1, 3.19, 4.0, 4.2 and criu-dev (November 2025).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "images/kfd_image.h"
#include "images/metadata.h"

namespace sluice::test {

enum class UpstreamForm {
  Released,  // CRIU 3.17 to 4.2: 4.0 has renamed two messages, which the octets do not show
  Dev,       // criu-dev after 4.2
};

// Payloads. BOs that are imported are left out: what upstream's plugin makes of them no image of ours tells.
std::vector<std::uint8_t> upstream_kfd_image(const kfd::KfdImage& image, UpstreamForm form);
// `kfd_handles`: criu-dev has given that many to the KFD's BOs, from 1, and calls a BO of a render file
// imported that has one of these numbers.
std::vector<std::uint8_t> upstream_render_image(const RenderImage& image, UpstreamForm form,
                                                std::uint32_t kfd_handles);

// Turns the images of a dump of ours into such ones, and removes the files that upstream's plugin has not.
// Errors: those of reading and writing.
Result<void> make_upstreams(const std::filesystem::path& directory, UpstreamForm form);

}  // namespace sluice::test
