// SPDX-License-Identifier: MIT
#include "plugin/restore/gpus/vram_ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <limits>
#include <optional>

#include "kfd/topology.h"

namespace sluice::plugin {

namespace {

constexpr std::uint64_t kForm = 0x31'6D'61'72'76'6C'73;  // "slvram1"
constexpr auto kLedgerPatience = std::chrono::milliseconds(2000);
constexpr const char* kFileName = "vram";

struct Reservation {
  std::atomic<std::uint32_t> gpu_id{0};  // 0: free
  std::atomic<std::uint64_t> bytes{0};
};

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max()
                                                           : a + b;
}

bool is_ours(const struct stat& status, mode_t forbidden) {
  return (status.st_uid == 0 || status.st_uid == ::geteuid()) && (status.st_mode & forbidden) == 0;
}

Error another_form(const std::string& path) {
  return Error{EBADMSG,
               path + " is of another version of sluice; remove it when no restore is under way [SL-R43]"};
}

Result<UniqueFd> open_directory(const std::string& path) {
  const auto open = [&] {
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  };
  UniqueFd directory = open();
  if (!directory && errno == ENOENT) {
    if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return make_error(errno, "mkdir " + path);
    directory = open();
  }
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0) return make_error(errno, "open " + path);
  if (!is_ours(status, S_IWGRP | S_IWOTH))
    return Error{EPERM,
                 path + " is not a directory that only root or this user can write; remove it [SL-R21]"};
  return directory;
}

// All its pages are allocated: a full file system fails here, not by a signal at the first write.
Result<UniqueFd> open_file(int directory, const std::string& path, std::uint64_t bytes) {
  UniqueFd fd(::openat(directory, kFileName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return make_error(errno, "open " + path);
  if (!S_ISREG(status.st_mode) || !is_ours(status, S_IRWXG | S_IRWXO))
    return Error{EPERM, path + " is not a file that only root or this user can open; remove it [SL-R22]"};
  if (status.st_size != 0 && static_cast<std::uint64_t>(status.st_size) != bytes) return another_form(path);
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return make_error(errno, "allocate " + path);
  return fd;
}

bool take_slot(int file, unsigned slot, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(slot);
  lock.l_len = 1;
  return ::fcntl(file, F_SETLK, &lock) == 0;
}

}  // namespace

struct VramLedger::Slot {
  std::array<Reservation, kfd::kGpusMax> gpus;

  void clear() {
    for (Reservation& reservation : gpus) {
      reservation.gpu_id = 0;
      reservation.bytes = 0;
    }
  }
  std::uint64_t bytes_on(std::uint32_t gpu_id) const {
    std::uint64_t bytes = 0;
    for (const Reservation& reservation : gpus) {
      if (reservation.gpu_id == gpu_id) bytes = sum(bytes, reservation.bytes);
    }
    return bytes;
  }
};

struct VramLedger::File {
  std::atomic<std::uint64_t> form;
  FutexLock lock;
  std::array<Slot, kSlots> slots;
};

Result<std::unique_ptr<VramLedger>> VramLedger::open(const std::string& directory) {
  const std::string path = directory + "/" + kFileName;
  SLUICE_TRY_ASSIGN(const UniqueFd folder, open_directory(directory));
  SLUICE_TRY_ASSIGN(UniqueFd fd, open_file(folder.get(), path, sizeof(File)));
  void* memory = ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return make_error(errno, "map " + path);
  auto* const file = static_cast<File*>(memory);  // zeros are a ledger without reservations
  std::unique_ptr<VramLedger> ledger(new VramLedger(std::move(fd), file, kSlots));
  std::uint64_t none = 0;
  if (!file->form.compare_exchange_strong(none, kForm) && none != kForm) return another_form(path);
  for (unsigned slot = 0; slot < kSlots; ++slot) {
    if (!take_slot(ledger->fd_.get(), slot, F_WRLCK)) continue;
    file->slots[slot].clear();
    if (ledger->slot_ == kSlots) {
      ledger->slot_ = slot;
    } else {
      (void)take_slot(ledger->fd_.get(), slot, F_UNLCK);
    }
  }
  if (ledger->slot_ == kSlots) return make_error(EAGAIN, "all slots of " + path + " are taken");
  return ledger;
}

bool VramLedger::exists(const std::string& directory) {
  return ::access((directory + "/" + kFileName).c_str(), F_OK) == 0;
}

VramLedger::~VramLedger() {
  clear();
  (void)::munmap(file_, sizeof(File));
}

FutexLocked VramLedger::lock() {
  return {file_->lock, kLedgerPatience};
}

void VramLedger::lock_into(std::optional<FutexLocked>& locked) {
  locked.emplace(file_->lock, kLedgerPatience);
}

std::uint64_t VramLedger::reserved_by_others(std::uint32_t gpu_id) const {
  std::uint64_t bytes = 0;
  for (unsigned slot = 0; slot < kSlots; ++slot) {
    if (slot != slot_) bytes = sum(bytes, file_->slots[slot].bytes_on(gpu_id));
  }
  return bytes;
}

void VramLedger::reserve(std::uint32_t gpu_id, std::uint64_t bytes) {
  for (Reservation& reservation : file_->slots[slot_].gpus) {
    if (reservation.gpu_id != 0 && reservation.gpu_id != gpu_id) continue;
    reservation.bytes = sum(reservation.bytes, bytes);
    reservation.gpu_id = gpu_id;
    return;
  }
}

void VramLedger::take_back(std::uint32_t gpu_id, std::uint64_t bytes) {
  for (Reservation& reservation : file_->slots[slot_].gpus) {
    if (reservation.gpu_id != gpu_id) continue;
    const std::uint64_t have = reservation.bytes;
    reservation.bytes = have > bytes ? have - bytes : 0;
    return;
  }
}

void VramLedger::clear() {
  if (slot_ < kSlots) file_->slots[slot_].clear();
}

}  // namespace sluice::plugin
