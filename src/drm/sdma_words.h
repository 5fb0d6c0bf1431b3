// SPDX-License-Identifier: MIT
// What messages of the copy stage (sdma_copy.h) call things.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "pipeline/layout.h"

namespace sluice::drm {

// `error` with the object before it and the remedy after it.
Error copy_error(const std::string& object, const Error& error);

std::string describe_bo(const ImageLayout& layout, std::uint32_t bo);

// "chunk 17, BO 3 [4182008, 8376312) to BO 5"
std::string describe(const ImageLayout& layout, const Chunk& chunk);

}  // namespace sluice::drm
