// SPDX-License-Identifier: MIT
#include "images/chain/predump_mark.h"

#include <algorithm>
#include <cerrno>
#include <memory>

#include "images/files/digest.h"
#include "images/files/files.h"
#include "repeated.h"
#include "sluice-predump.pb-c.h"
#include "unpack_memory.h"

namespace sluice {
namespace {

struct FreeMark {
  void operator()(PredumpMark* mark) const { predump_mark__free_unpacked(mark, nullptr); }
};

}  // namespace

std::vector<std::uint8_t> pack_predump_mark(const PreDumpMark& mark, const ImageKeys& keys) {
  std::vector<char*> images = pointers_to(mark.images);
  DumpId dump_id = mark.dump_id;
  PredumpMark message = PREDUMP_MARK__INIT;
  message.n_images = images.size();
  message.images = images.data();
  message.has_frozen_ns = 1;
  message.frozen_ns = mark.frozen_ns;
  message.has_dump_id = 1;
  message.dump_id = {dump_id.size(), dump_id.data()};
  std::vector<std::uint8_t> payload(predump_mark__get_packed_size(&message));
  (void)predump_mark__pack(&message, payload.data());
  return with_digest(std::move(payload), MessageKind::PreDumpMark, keys);
}

Result<PreDumpMark> unpack_predump_mark(std::span<const std::uint8_t> payload, const ImageKeys& keys) {
  SLUICE_TRY(require_digest(payload, MessageKind::PreDumpMark, kPreDumpMark, keys));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<PredumpMark, FreeMark> message(
      predump_mark__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  PreDumpMark mark;
  if (!message || message->has_dump_id == 0 || message->dump_id.len != mark.dump_id.size())
    return make_error(EBADMSG, std::string(kPreDumpMark) + " cannot be parsed");
  mark.images.assign(message->images, message->images + message->n_images);
  mark.frozen_ns = message->frozen_ns;
  std::copy_n(message->dump_id.data, mark.dump_id.size(), mark.dump_id.begin());
  return mark;
}

}  // namespace sluice
