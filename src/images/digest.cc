// SPDX-License-Identifier: MIT
#include "images/digest.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "pipeline/checksum/checksum.h"

namespace sluice {

namespace {

// Number, type and length of a field of 16 bytes. The numbers stand in proto/*.proto: 2000, 2013 and, of
// version 0.1, 2007; each is more than a flipped bit away from the others.
using Tag = std::array<std::uint8_t, 3>;
constexpr Tag kPlain{0x82, 0x7d, sizeof(Sum128)};
constexpr Tag kKeyed{0xea, 0x7d, sizeof(Sum128)};
constexpr Tag kKeyedBy01{0xba, 0x7d, sizeof(Sum128)};
constexpr std::size_t kFieldBytes = sizeof(Tag) + sizeof(Sum128);

Sum128 digest_of(std::span<const std::uint8_t> message, MessageKind kind) {
  return message_method(kind).of(std::as_bytes(message));
}

}  // namespace

std::vector<std::uint8_t> with_digest(std::vector<std::uint8_t> message, MessageKind kind) {
  const Sum128 digest = digest_of(message, kind);
  const Tag& tag = has_image_key() ? kKeyed : kPlain;
  message.insert(message.end(), tag.begin(), tag.end());
  message.insert(message.end(), digest.begin(), digest.end());
  return message;
}

Result<bool> check_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name) {
  SLUICE_TRY(image_key_is_usable());
  const bool keyed = has_image_key();
  const std::size_t message_bytes = payload.size() - std::min(payload.size(), kFieldBytes);
  const auto field = payload.subspan(message_bytes);
  const auto has_tag = [&](const Tag& tag) {
    return field.size() == kFieldBytes && std::equal(tag.begin(), tag.end(), field.begin());
  };
  if (has_tag(kKeyedBy01)) {
    return Error{EKEYREJECTED,
                 name +
                     " was made with a key by sluice 0.1, whose keyed images only that version reads: "
                     "restore it with 0.1, and dump again"};
  }
  if (!keyed && has_tag(kKeyed))
    return Error{ENOKEY, name + " was made with a key: SLUICE_KEY_FILE has to name its file"};
  if (keyed && !has_tag(kKeyed)) {
    return Error{EKEYREJECTED, name +
                                   " was not made with the key of SLUICE_KEY_FILE: by a dump without one, by "
                                   "upstream's plugin or by somebody else, or it has lost its end"};
  }
  if (!has_tag(keyed ? kKeyed : kPlain)) return false;
  const Sum128 digest = digest_of(payload.first(message_bytes), kind);
  if (std::equal(digest.begin(), digest.end(), field.begin() + sizeof(Tag))) return true;
  if (!keyed) return make_error(EBADMSG, name + " is not what its digest says; the image is damaged");
  return Error{EKEYREJECTED,
               name +
                   " is not what the key of SLUICE_KEY_FILE says: it was made with another key, "
                   "somebody has changed it, or it is damaged"};
}

Error lost_digest(const std::string& name) {
  return make_error(EBADMSG, name + " has lost its digest; the image is damaged");
}

Result<void> require_digest(std::span<const std::uint8_t> payload, MessageKind kind,
                            const std::string& name) {
  SLUICE_TRY_ASSIGN(const bool has_digest, check_digest(payload, kind, name));
  return has_digest ? Result<void>() : lost_digest(name);
}

}  // namespace sluice
