// SPDX-License-Identifier: MIT
// Memory for unpacking one protobuf message that anybody may have written. The tables of a message of many
// tiny parts take many times its own size; here they are bounded, and unpacking fails where they are not
// enough.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include <cstddef>
#include <cstdlib>

namespace sluice {

// Thread-bound, for one call of an unpack function. What that returns is freed without an allocator, and may
// live longer.
class UnpackMemory {
 public:
  // Beside the message's own texts and bytes. A BO takes less than 200 bytes of it, and its metadata
  // less than 150.
  static constexpr std::size_t kTableBytes = std::size_t{256} << 20;

  explicit UnpackMemory(std::size_t message_bytes) : left_(message_bytes + kTableBytes) {}
  UnpackMemory(const UnpackMemory&) = delete;
  UnpackMemory& operator=(const UnpackMemory&) = delete;

  ProtobufCAllocator* allocator() { return &allocator_; }

 private:
  static void* allocate(void* self, std::size_t bytes) {
    constexpr std::size_t kOwnBytes = 32;  // of the C library, for the smallest part
    std::size_t& left = static_cast<UnpackMemory*>(self)->left_;
    if (bytes > left || left - bytes < kOwnBytes) return nullptr;
    left -= bytes + kOwnBytes;
    return std::malloc(bytes);
  }
  static void release(void* /*self*/, void* memory) { std::free(memory); }

  std::size_t left_;
  ProtobufCAllocator allocator_{allocate, release, this};
};

}  // namespace sluice
