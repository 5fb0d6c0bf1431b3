// SPDX-License-Identifier: MIT
// Damages a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace sluice::test {

// Flips one bit of the byte at `offset`; twice restores the file. Throws on failure.
inline void flip_byte(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(offset));
  if (!file.put(byte).flush()) throw std::runtime_error("cannot change a byte of " + path.string());
}

}  // namespace sluice::test
