// SPDX-License-Identifier: MIT
#include "bus/vram.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace sluice::card {

Result<Vram> Vram::make(std::uint64_t bytes) {
  UniqueFd fd(::memfd_create("vram", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return make_error(errno, "make a memfd for VRAM");
  // Sealed, so that no file that shrinks can take pages away from under the engines.
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return make_error(errno, "make VRAM of " + std::to_string(bytes) + " bytes");
  }
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (at == MAP_FAILED) return make_error(errno, "map VRAM of " + std::to_string(bytes) + " bytes");
  return Vram(std::move(fd), {static_cast<std::byte*>(at), static_cast<std::size_t>(bytes)});
}

Vram::Vram(Vram&& other) noexcept : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

Vram::~Vram() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
}

}  // namespace sluice::card
