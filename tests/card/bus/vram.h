// SPDX-License-Identifier: MIT
// The memory of the card: a memfd. Only touched pages take memory. QEMU maps the same
// file, so that the guest's processor and the engines see one memory. Value type, movable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::card {

class Vram {
 public:
  // Zeros. REQUIRES: bytes is a multiple of the page.
  static Result<Vram> make(std::uint64_t bytes);

  Vram(Vram&& other) noexcept;
  Vram& operator=(Vram&& other) = delete;
  ~Vram();

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  Vram(UniqueFd fd, std::span<std::byte> bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

}  // namespace sluice::card
