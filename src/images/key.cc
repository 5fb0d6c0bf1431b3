// SPDX-License-Identifier: MIT
#include "images/key.h"

#include <span>
#include <string_view>
#include <utility>

namespace sluice {

namespace {

Result<std::optional<ImageKey>>& key_in_use() {
  static Result<std::optional<ImageKey>> key = std::optional<ImageKey>();
  return key;
}

SumMethod method_for(std::string_view purpose) {
  if (!has_image_key()) return SumMethod();
  return SumMethod(mac_of(std::as_bytes(std::span(purpose)), **key_in_use()));
}

}  // namespace

void use_image_key(Result<std::optional<ImageKey>> key) {
  if (key && key->has_value()) {
    if (Result<void> loaded = load_mac(); !loaded) key = std::move(loaded).error();
  }
  key_in_use() = std::move(key);
}

Result<void> image_key_is_usable() {
  return key_in_use() ? Result<void>() : key_in_use().error();
}

bool has_image_key() {
  return key_in_use() && key_in_use()->has_value();
}

SumMethod contents_method() {
  return method_for("sluice contents");
}

SumMethod message_method(MessageKind kind) {
  switch (kind) {
    case MessageKind::Kfd:
      return method_for("sluice criu_kfd");
    case MessageKind::RenderNode:
      return method_for("sluice criu_render_node");
    case MessageKind::DmaBuf:
      return method_for("sluice criu_dmabuf_node");
    case MessageKind::Sums:
      return method_for("sluice sums_image");
    case MessageKind::StreamIndex:
      break;
  }
  return method_for("sluice stream_index");
}

}  // namespace sluice
