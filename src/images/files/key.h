// SPDX-License-Identifier: MIT
// The operator's key. With a key, images get digests and sums that only its owner can make, and no others are
// read. So images that anyone else has made or changed are refused. The page docs/user/security.md says what
// that does not protect.
//
// ImageSource (the command) and ImageStore (the plugin) hold it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/mac.h"

namespace sluice {

using ImageKey = MacKey;

// The kinds of message in images, so that none is mistaken for another.
enum class MessageKind : std::uint8_t { Kfd, RenderNode, DmaBuf, Sums, StreamIndex, PreDumpMark };

// The keys derived from the operator's, if there is one: one for contents, and one for each kind of message.
// So the sum of bytes that a process has in its GPU memory is never a message's digest. Value type; may be
// read in any thread.
class ImageKeys {
 public:
  ImageKeys() = default;  // no key
  // With a key: loads the library that computes its sums (load_mac()), so call this before any change of
  // namespaces. With an error, the key's or load_mac()'s, no image can be read or written: all give that
  // error.
  explicit ImageKeys(Result<std::optional<ImageKey>> key);

  // The error, if there is one: writers of images check it first.
  Result<void> usable() const { return key_ ? Result<void>() : key_.error(); }
  bool any() const { return key_ && key_->has_value(); }

  // How sums are made of contents, and digests of messages.
  SumMethod contents() const;
  SumMethod message(MessageKind kind) const;

 private:
  SumMethod method_for(std::string_view purpose) const;

  Result<std::optional<ImageKey>> key_ = std::optional<ImageKey>();
};

}  // namespace sluice
