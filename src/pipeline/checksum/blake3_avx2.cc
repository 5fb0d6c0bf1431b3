// SPDX-License-Identifier: MIT
// BLAKE3 compiled with -mavx2. See blake3_kernels.h for what must not be included here.
#include "pipeline/checksum/blake3_lanes.h"

namespace sluice::detail {

void blake3_subtree_avx2(const unsigned char* data, size_t chunks, const uint32_t* key, uint64_t counter,
                         uint32_t* value) {
  hash_subtree(data, chunks, key, counter, value);
}

}  // namespace sluice::detail
