// SPDX-License-Identifier: MIT
// XXH3-128 compiled with -mavx2. See checksum_kernels.h for what must not be included here.
#include "pipeline/checksum/checksum_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sluice::detail {

void xxh3_128_avx2(const void* data, size_t bytes, const unsigned char* secret, unsigned char* sum) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, secret == nullptr
                                           ? XXH3_128bits(data, bytes)
                                           : XXH3_128bits_withSecret(data, bytes, secret, kSecretBytes));
  __builtin_memcpy(sum, canonical.digest, sizeof canonical.digest);
}

}  // namespace sluice::detail
