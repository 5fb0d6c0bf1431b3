// SPDX-License-Identifier: MIT
// The digest at the end of every message that we write: metadata, sidecars, the index of a stream. It is the
// message's last field, `digest`, or with the operator's key (images/key.h) `keyed_digest`, and covers all
// bytes before it, so that a byte that changed is found even where it still parses. A reader that does not
// know the field skips it, as upstream's does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/key.h"

namespace sluice {

// A packed message with its digest behind it. REQUIRES: image_key_is_usable().
std::vector<std::uint8_t> with_digest(std::vector<std::uint8_t> message, MessageKind kind);

// Whether the payload ends in a digest, as all that has our dump_id does. With a key: true, or an error.
// Errors: EBADMSG where it does, and the bytes before it have another one; ENOKEY where that takes a key;
// EKEYREJECTED where there is a key, and the digest is none by
// it, and for images that version 0.1 made with a key; image_key_is_usable()'s. `name` is for the
// message.
Result<bool> check_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name);
// EBADMSG: it should, and does not.
Error lost_digest(const std::string& name);
// Both, of what only we write.
Result<void> require_digest(std::span<const std::uint8_t> payload, MessageKind kind, const std::string& name);

}  // namespace sluice
