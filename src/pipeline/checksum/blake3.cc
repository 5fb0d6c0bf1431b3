// SPDX-License-Identifier: MIT
#include "pipeline/checksum/blake3.h"

#include <algorithm>
#include <bit>

#include "pipeline/checksum/blake3_lanes.h"

namespace sluice {

namespace detail {

void blake3_subtree_baseline(const unsigned char* data, size_t chunks, const uint32_t* key, uint64_t counter,
                             uint32_t* value) {
  hash_subtree(data, chunks, key, counter, value);
}

}  // namespace detail

namespace {

using detail::kBlake3ChunkBytes;
using Value = std::array<std::uint32_t, detail::kBlake3Words>;  // a key or a chaining value
using Bytes = std::span<const unsigned char>;

detail::Blake3Subtree best_subtree_function() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return detail::blake3_subtree_avx2;
#endif
  return detail::blake3_subtree_baseline;
}

// Of at most a chunk. `flags`: kRoot where it is the whole message.
Value hash_chunk(Bytes bytes, const Value& key, std::uint64_t counter, std::uint32_t flags) {
  Value value = key;
  std::uint32_t start = detail::kChunkStart;
  for (bool ended = false; !ended;) {
    const Bytes block = bytes.first(std::min(bytes.size(), detail::kBlockBytes));
    bytes = bytes.subspan(block.size());
    ended = bytes.empty();
    std::array<unsigned char, detail::kBlockBytes> padded{};
    std::copy(block.begin(), block.end(), padded.begin());
    std::array<std::uint32_t, detail::kBlockWords> words;
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = detail::load_word(padded.data() + i * sizeof(std::uint32_t));
    detail::compress<std::uint32_t>(value.data(), words.data(), static_cast<std::uint32_t>(counter),
                                    static_cast<std::uint32_t>(counter >> 32),
                                    static_cast<std::uint32_t>(block.size()),
                                    detail::kKeyedHash | start | (ended ? detail::kChunkEnd | flags : 0U));
    start = 0;
  }
  return value;
}

Value hash_node(Bytes bytes, const Value& key, std::uint64_t counter, std::uint32_t flags);

// Of more than a chunk: the left child has the largest power of two of chunks that leaves the right one some.
Value hash_parent(Bytes bytes, const Value& key, std::uint64_t counter, std::uint32_t flags) {
  const std::uint64_t left_chunks = std::bit_floor((bytes.size() - 1) / kBlake3ChunkBytes);
  const Bytes left = bytes.first(static_cast<std::size_t>(left_chunks * kBlake3ChunkBytes));
  std::array<Value, 2> children{hash_node(left, key, counter, 0),
                                hash_node(bytes.subspan(left.size()), key, counter + left_chunks, 0)};
  Value value;
  detail::hash_parent(children[0].data(), key.data(), detail::kKeyedHash | flags, value.data());
  return value;
}

Value hash_node(Bytes bytes, const Value& key, std::uint64_t counter, std::uint32_t flags) {
  static const detail::Blake3Subtree hash_subtree = best_subtree_function();
  const std::size_t chunks = bytes.size() / kBlake3ChunkBytes;
  if (flags == 0 && bytes.size() % kBlake3ChunkBytes == 0 && std::has_single_bit(chunks) &&
      chunks >= detail::kBlake3LeastChunks && chunks <= detail::kBlake3MostChunks) {
    Value value;
    hash_subtree(bytes.data(), chunks, key.data(), counter, value.data());
    return value;
  }
  return bytes.size() <= kBlake3ChunkBytes ? hash_chunk(bytes, key, counter, flags)
                                           : hash_parent(bytes, key, counter, flags);
}

}  // namespace

std::array<std::uint8_t, 32> blake3_keyed(std::span<const std::byte> bytes, const Blake3Key& key) {
  Value words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = detail::load_word(key.data() + i * sizeof(std::uint32_t));
  const Bytes message(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  const Value value = hash_node(message, words, 0, detail::kRoot);
  std::array<std::uint8_t, 32> made;
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = static_cast<std::uint8_t>(value[i / 4] >> (i % 4 * 8));
  return made;
}

}  // namespace sluice
