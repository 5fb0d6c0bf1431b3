// SPDX-License-Identifier: MIT
// Holds a mutex that lies in memory which several processes share.
#pragma once

#include <pthread.h>

namespace sluice::host {

class Locked {
 public:
  explicit Locked(pthread_mutex_t& mutex) : mutex_(mutex) { ::pthread_mutex_lock(&mutex_); }
  ~Locked() { ::pthread_mutex_unlock(&mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace sluice::host
