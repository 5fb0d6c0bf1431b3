// SPDX-License-Identifier: MIT
// Memory for unpacking one untrusted protobuf message. The tables of a message of many tiny parts need many
// times its own size. Here they are limited, and unpacking fails if the limit does not suffice.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace sluice {

// Thread-bound, for one call of an unpack function. Its result is freed without an allocator, and may live
// longer.
class UnpackMemory {
 public:
  // In addition to the message's own texts and bytes. A BO takes less than 200 bytes of it, and its metadata
  // less than 150.
  static constexpr std::size_t kTableBytes = std::size_t{256} << 20;

  explicit UnpackMemory(std::size_t message_bytes) : left_(message_bytes + kTableBytes) {}
  UnpackMemory(const UnpackMemory&) = delete;
  UnpackMemory& operator=(const UnpackMemory&) = delete;

  ProtobufCAllocator* allocator() { return &allocator_; }

  // After an unpack function has returned null, which also means damage: throws std::bad_alloc if the process
  // had no memory, as operator new does.
  void throw_if_process_had_none() const {
    if (process_had_none_) throw std::bad_alloc();
  }

 private:
  static void* allocate(void* self, std::size_t bytes) {
    constexpr std::size_t kOwnBytes = 32;  // the C library's, for the smallest part
    UnpackMemory& memory = *static_cast<UnpackMemory*>(self);
    if (bytes > memory.left_ || memory.left_ - bytes < kOwnBytes) return nullptr;
    memory.left_ -= bytes + kOwnBytes;
    void* const found = std::malloc(bytes);
    memory.process_had_none_ = memory.process_had_none_ || found == nullptr;
    return found;
  }
  static void release(void* /*self*/, void* memory) { std::free(memory); }

  std::size_t left_;
  bool process_had_none_ = false;
  ProtobufCAllocator allocator_{allocate, release, this};
};

}  // namespace sluice
