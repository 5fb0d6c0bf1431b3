// SPDX-License-Identifier: MIT
#include "images/files/key.h"

#include <span>
#include <string_view>
#include <utility>

namespace sluice {

ImageKeys::ImageKeys(Result<std::optional<ImageKey>> key) : key_(std::move(key)) {
  if (!any()) return;
  if (Result<void> loaded = load_mac(); !loaded) key_ = std::move(loaded).error();
}

SumMethod ImageKeys::method_for(std::string_view purpose) const {
  if (!any()) return SumMethod();
  return SumMethod(mac_of(std::as_bytes(std::span(purpose)), **key_));
}

SumMethod ImageKeys::contents() const {
  return method_for("sluice contents");
}

SumMethod ImageKeys::message(MessageKind kind) const {
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
      return method_for("sluice stream_index");
    case MessageKind::PreDumpMark:
      break;
  }
  return method_for("sluice predump_mark");
}

}  // namespace sluice
