// SPDX-License-Identifier: MIT
// libhsakmt's memory that all GPU processes of a machine share, and its semaphore, in a /dev/shm of the
// program's own: what the machine's GPU processes have there is not touched.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace sluice::plugin_test {

// For this program and those that it starts from now on; false where it may not.
inline bool make_private_shm() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0;
}

class ThunkMemory {
 public:
  static constexpr const char* kMemory = "/hsakmt_shared_mem";
  static constexpr const char* kSemaphore = "/hsakmt_semaphore";
  static constexpr off_t kBytes = 4096;
  static bool exists() { return UniqueFd(::shm_open(kMemory, O_RDONLY, 0)).valid(); }
  static bool semaphore_exists() {
    sem_t* semaphore = ::sem_open(kSemaphore, 0);
    if (semaphore == SEM_FAILED) return false;
    (void)::sem_close(semaphore);
    return true;
  }
  ThunkMemory() {
    const UniqueFd fd(::shm_open(kMemory, O_RDWR | O_CREAT, 0600));
    made_ = fd.valid() && ::ftruncate(fd.get(), kBytes) == 0;
    sem_t* semaphore = ::sem_open(kSemaphore, O_CREAT, 0600, 1);
    made_ = made_ && semaphore != SEM_FAILED;
    if (semaphore != SEM_FAILED) (void)::sem_close(semaphore);
  }
  ~ThunkMemory() { remove(); }
  ThunkMemory(const ThunkMemory&) = delete;
  ThunkMemory& operator=(const ThunkMemory&) = delete;
  bool made() const { return made_; }
  static void remove() {
    (void)::shm_unlink(kMemory);
    (void)::sem_unlink(kSemaphore);
  }

 private:
  bool made_ = false;
};

}  // namespace sluice::plugin_test
