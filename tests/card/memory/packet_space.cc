// SPDX-License-Identifier: MIT
#include "memory/packet_space.h"

#include <algorithm>
#include <cstring>

namespace sluice::card {

namespace {

// Repeats the dword `value` over `bytes`; the first byte is byte `phase` of the dword.
void repeat(std::span<std::byte> bytes, std::uint32_t value, std::uint64_t phase) {
  std::byte pattern[4];
  std::memcpy(pattern, &value, sizeof pattern);
  for (std::size_t i = 0; i < bytes.size() && i < 4; ++i) bytes[i] = pattern[(phase + i) % 4];
  for (std::size_t done = 4; done < bytes.size();) {
    const std::size_t more = std::min(done, bytes.size() - done);
    std::memcpy(bytes.data() + done, bytes.data(), more);
    done += more;
  }
}

}  // namespace

PacketSpace::PacketSpace(const AddressSpace& space) : space_(space), table_{} {
  table_.self = this;
  table_.read = [](void* self, std::uint64_t va, void* to, std::uint64_t bytes) {
    auto& me = *static_cast<PacketSpace*>(self);
    if (bytes == 4 && va % 4 == 0) {
      const auto value = me.space_.load32(va);
      if (value) std::memcpy(to, &*value, 4);
      return me.keep(value);
    }
    if (bytes == 8 && va % 8 == 0) {
      const auto value = me.space_.load64(va);
      if (value) std::memcpy(to, &*value, 8);
      return me.keep(value);
    }
    return me.keep(me.space_.read(va, std::span(static_cast<std::byte*>(to), bytes)));
  };
  table_.write = [](void* self, std::uint64_t va, const void* from, std::uint64_t bytes) {
    auto& me = *static_cast<PacketSpace*>(self);
    return me.keep(me.space_.write(va, std::span(static_cast<const std::byte*>(from), bytes)));
  };
  table_.copy = [](void* self, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    auto& me = *static_cast<PacketSpace*>(self);
    while (bytes > 0) {
      const auto source = me.space_.at(from, bytes, Access::kRead);
      if (!source) return me.keep(source);
      const auto target = me.space_.at(to, source->size(), Access::kWrite);
      if (!target) return me.keep(target);
      std::memmove(target->data(), source->data(), target->size());
      to += target->size();
      from += target->size();
      bytes -= target->size();
    }
    return 0;
  };
  table_.fill = [](void* self, std::uint64_t to, std::uint32_t dword, std::uint64_t bytes) {
    auto& me = *static_cast<PacketSpace*>(self);
    for (std::uint64_t done = 0; done < bytes;) {
      const auto target = me.space_.at(to + done, bytes - done, Access::kWrite);
      if (!target) return me.keep(target);
      repeat(*target, dword, done);
      done += target->size();
    }
    return 0;
  };
  table_.add64 = [](void* self, std::uint64_t va, std::uint64_t value) {
    auto& me = *static_cast<PacketSpace*>(self);
    return me.keep(me.space_.add64(va, value));
  };
  table_.probe = [](void* self, std::uint64_t va, std::uint64_t bytes, int write) {
    auto& me = *static_cast<PacketSpace*>(self);
    return me.keep(me.space_.at(va, bytes, write != 0 ? Access::kWrite : Access::kRead));
  };
}

}  // namespace sluice::card
