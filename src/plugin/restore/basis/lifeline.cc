// SPDX-License-Identifier: MIT
#include "plugin/restore/basis/lifeline.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <new>

namespace sluice::plugin {

struct Lifeline::Held {
  pthread_mutex_t mutex;
  std::atomic<bool> has_files;
  VramWatch vram;
};

Result<std::unique_ptr<Lifeline>> Lifeline::make() {
  void* memory = ::mmap(nullptr, sizeof(Held), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return make_error(errno, "memory that restored tasks share with CRIU");
  std::unique_ptr<Lifeline> made(new Lifeline(new (memory) Held{}));
  pthread_mutexattr_t robust;
  (void)::pthread_mutexattr_init(&robust);
  (void)::pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  (void)::pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  (void)::pthread_mutex_init(&made->held_->mutex, &robust);
  (void)::pthread_mutexattr_destroy(&robust);
  (void)::pthread_mutex_lock(&made->held_->mutex);  // nobody else locks it
  return made;
}

Lifeline::~Lifeline() {
  (void)::pthread_mutex_unlock(&held_->mutex);
  (void)::munmap(held_, sizeof(Held));
}

// Reads the word that kernel and glibc agree upon and does not use the mutex' functions. In a task that the
// host cloned without glibc's knowledge, glibc has the id of the parent's thread.
Result<void> Lifeline::check() const {
  const int word = std::atomic_ref<int>(held_->mutex.__data.__lock).load();
  if ((static_cast<unsigned>(word) & FUTEX_OWNER_DIED) == 0) return {};
  return Error{ESRCH,
               "CRIU's main process died, so this task is not restored any further; kill what is left of the "
               "tree, and "
               "restore again [SL-R25]"};
}

void Lifeline::note_file() {
  held_->has_files = true;
}

bool Lifeline::has_files() const {
  return held_->has_files;
}

VramWatch& Lifeline::vram() {
  return held_->vram;
}

}  // namespace sluice::plugin
