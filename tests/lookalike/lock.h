// SPDX-License-Identifier: MIT
// A mutex in memory that several processes share.
//
// CRIU's are words that its tasks wait on, for ever where a task is killed that holds one: then what is left
// of the tree has to be killed, too. Here it ends itself, for tests wait for that. Only of threads that glibc
// has made the kernel tells that they died; the main thread of a task, which was cloned without glibc's
// knowledge, is none of them.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::lookalike {

// In memory that nobody uses yet.
inline void init_shared(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
}

class Locked {
 public:
  explicit Locked(pthread_mutex_t& mutex) : mutex_(mutex) {
    if (::pthread_mutex_lock(&mutex_) == EOWNERDEAD) ::_exit(1);  // and so does who waits next
  }
  ~Locked() { ::pthread_mutex_unlock(&mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace sluice::lookalike
