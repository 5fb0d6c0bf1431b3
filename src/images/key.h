// SPDX-License-Identifier: MIT
// The operator's key. With one, images get digests and sums that only who has it can make, and no others are
// read: what somebody else has made, or changed, is refused. docs/security.md says what that does not
// protect.
//
// One for the process, as the image directory is: set before any image is read or written and before there
// are threads, then left alone; until then there is none.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/mac.h"

namespace sluice {

using ImageKey = MacKey;

// With a key: loads what computes sums by it (load_mac()), so this belongs before any change of namespaces.
// An error, the key's or load_mac()'s: no image can be read or written then, with that error.
void use_image_key(Result<std::optional<ImageKey>> key);
// The error, if it is one: who writes images asks first.
Result<void> image_key_is_usable();
bool has_image_key();

// The messages that images have, so that none is taken for one of another kind.
enum class MessageKind : std::uint8_t { Kfd, RenderNode, DmaBuf, Sums, StreamIndex };

// How sums are made of contents, and digests of messages: with the key, if there is one, each with a key of
// its own that is made of it. What a process has in its GPU memory, and so has a sum, is no message's digest.
SumMethod contents_method();
SumMethod message_method(MessageKind kind);

}  // namespace sluice
