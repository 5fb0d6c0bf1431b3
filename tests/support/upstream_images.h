// SPDX-License-Identifier: MIT
// Images as the plugins of upstream's releases write them, made from ours by a writer without our schema,
// which assembles the wire format field by field.
//
// Field numbers and contents: criu-amdgpu.proto, amdgpu_plugin.c and amdgpu_plugin_drm.c of CRIU 3.17.1,
// 3.19, 4.0, 4.2 and criu-dev (November 2025).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "images/kfd_image.h"
#include "images/metadata.h"

namespace sluice::test {

enum class UpstreamForm {
  Released,  // CRIU 3.17 to 4.2: 4.0 renamed two messages, which does not change the bytes
  Dev,       // criu-dev after 4.2
};

// Payloads. Imported BOs are left out: our images do not tell what upstream's plugin makes of them.
std::vector<std::uint8_t> upstream_kfd_image(const KfdImage& image, UpstreamForm form);
// `kfd_handles`: how many handles, from 1, criu-dev has given to the KFD's BOs. It marks a render file's BO
// with one of these numbers as imported.
std::vector<std::uint8_t> upstream_render_image(const RenderImage& image, UpstreamForm form,
                                                std::uint32_t kfd_handles);

// Converts the images of our dump to upstream's, and removes files that upstream's plugin does not write.
// Errors: those of reading and writing.
Result<void> make_upstreams(const std::filesystem::path& directory, UpstreamForm form);

}  // namespace sluice::test
