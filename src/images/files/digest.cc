// SPDX-License-Identifier: MIT
#include "images/files/digest.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "images/files/cause.h"
#include "pipeline/checksum/checksum.h"

namespace sluice {

namespace {

// Number, type and length of a field of 16 bytes. The numbers are in proto/*.proto: 2000, 2013 and, for
// version 0.1, 2007; they differ by more than one bit.
using Tag = std::array<std::uint8_t, 3>;
constexpr Tag kPlain{0x82, 0x7d, sizeof(Sum128)};
constexpr Tag kKeyed{0xea, 0x7d, sizeof(Sum128)};
constexpr Tag kKeyedBy01{0xba, 0x7d, sizeof(Sum128)};
static_assert(kDigestFieldBytes == sizeof(Tag) + sizeof(Sum128));

}  // namespace

std::vector<std::uint8_t> with_digest(std::vector<std::uint8_t> message, MessageKind kind,
                                      const ImageKeys& keys) {
  const Sum128 digest = keys.message(kind).of(std::as_bytes(std::span(message)));
  const Tag& tag = keys.any() ? kKeyed : kPlain;
  message.insert(message.end(), tag.begin(), tag.end());
  message.insert(message.end(), digest.begin(), digest.end());
  return message;
}

Result<bool> check_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name,
                          const ImageKeys& keys) {
  SLUICE_TRY(keys.usable());
  const bool keyed = keys.any();
  const std::size_t message_bytes = payload.size() - std::min(payload.size(), kDigestFieldBytes);
  const auto field = payload.subspan(message_bytes);
  const auto has_tag = [&](const Tag& tag) {
    return field.size() == kDigestFieldBytes && std::equal(tag.begin(), tag.end(), field.begin());
  };
  if (has_tag(kKeyedBy01)) {
    return Error{ENOSYS,
                 name + " was made with a key by sluice 0.1; restore it with 0.1, and dump again [SL-I05]"};
  }
  if (!keyed && has_tag(kKeyed))
    return Error{ENOKEY, name + " was made with a key; name the key's file with SLUICE_KEY_FILE [SL-I06]"};
  const auto matches = [&](const SumMethod& method) {
    const Sum128 digest = method.of(std::as_bytes(payload.first(message_bytes)));
    return std::equal(digest.begin(), digest.end(), field.begin() + sizeof(Tag));
  };
  if (has_tag(kPlain) && !matches(SumMethod()))
    return Error{EBADMSG,
                 name + " does not match its digest: it is damaged; use another checkpoint [SL-I08]"};
  if (!keyed) return has_tag(kPlain);
  if (!has_tag(kKeyed))
    return Error{kUnsigned, name +
                                " was made without a key, or is cut off; if you trust its origin, set "
                                "SLUICE_KEY_FILE=none [SL-I07]"};
  if (matches(keys.message(kind))) return true;
  return Error{EKEYREJECTED,
               name +
                   " does not match the key of SLUICE_KEY_FILE: it has another key, was changed, or is "
                   "damaged; use its key, or another checkpoint [SL-I09]"};
}

Error beside_signed(Error error) {
  if (error.err == kUnsigned) error.err = EKEYREJECTED;
  return error;
}

Error lost_digest(const std::string& name) {
  return Error{EBADMSG, name + " has lost its digest: it is damaged; use another checkpoint [SL-I10]"};
}

Result<void> require_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name,
                            const ImageKeys& keys) {
  SLUICE_TRY_ASSIGN(const bool has_digest, check_digest(payload, kind, name, keys));
  return has_digest ? Result<void>() : lost_digest(name);
}

}  // namespace sluice
