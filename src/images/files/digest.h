// SPDX-License-Identifier: MIT
// The digest at the end of every message that we write: metadata, sidecars, the index of a stream. It is the
// message's last field, `digest` or, with the operator's key (images/files/key.h), `keyed_digest`. It covers
// all bytes before it, so a changed byte is found even if the message still parses. Readers that do not know
// the field skip it, as upstream's do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files/key.h"

namespace sluice {

// What with_digest() appends.
inline constexpr std::size_t kDigestFieldBytes = 3 + sizeof(Sum128);

// A packed message with its digest appended. Copies a message without room for that. REQUIRES: keys.usable().
std::vector<std::uint8_t> with_digest(std::vector<std::uint8_t> message, MessageKind kind,
                                      const ImageKeys& keys);

// Whether the payload ends in a digest, as everything with our dump_id does. With a key: true, or an error.
// Errors: EBADMSG if the digest does not match the bytes before it; ENOKEY if checking it takes a key;
// kUnsigned if there is a key, and the payload has no digest of any; EKEYREJECTED if its digest does not
// match the key; ENOSYS if version 0.1 made the image with a key; ImageKeys::usable()'s. `name` is for the
// message.
Result<bool> check_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name,
                          const ImageKeys& keys);
// Of what belongs to an image that has the key's digest: that others lack theirs is damage, not their origin.
Error beside_signed(Error error);
// EBADMSG: a digest is missing.
Error lost_digest(const std::string& name);
// Both, for messages that only we write.
Result<void> require_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name,
                            const ImageKeys& keys);

}  // namespace sluice
