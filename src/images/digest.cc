// SPDX-License-Identifier: MIT
#include "images/digest.h"

#include <algorithm>
#include <array>

#include "pipeline/checksum.h"

namespace sluice {

namespace {

// Key and length of field 2000, a string of 16 bytes: the field's number stands in proto/*.proto.
constexpr std::array<std::uint8_t, 3> kKey{0x82, 0x7d, sizeof(Sum128)};
constexpr std::size_t kFieldBytes = kKey.size() + sizeof(Sum128);

Sum128 digest_of(std::span<const std::uint8_t> message) {
  return sum_of(std::as_bytes(message));
}

}  // namespace

std::vector<std::uint8_t> with_digest(std::vector<std::uint8_t> message) {
  const Sum128 digest = digest_of(message);
  message.insert(message.end(), kKey.begin(), kKey.end());
  message.insert(message.end(), digest.begin(), digest.end());
  return message;
}

Result<bool> check_digest(std::span<const std::uint8_t> payload, const std::string& name) {
  if (payload.size() < kFieldBytes) return false;
  const auto message = payload.first(payload.size() - kFieldBytes);
  const auto field = payload.last(kFieldBytes);
  if (!std::equal(kKey.begin(), kKey.end(), field.begin())) return false;
  const Sum128 digest = digest_of(message);
  if (std::equal(digest.begin(), digest.end(), field.begin() + kKey.size())) return true;
  return make_error(EBADMSG, name + " is not what its digest says; the image is damaged");
}

Error lost_digest(const std::string& name) {
  return make_error(EBADMSG, name + " has lost its digest; the image is damaged");
}

Result<void> require_digest(std::span<const std::uint8_t> payload, const std::string& name) {
  SLUICE_TRY_ASSIGN(const bool has_digest, check_digest(payload, name));
  return has_digest ? Result<void>() : lost_digest(name);
}

}  // namespace sluice
