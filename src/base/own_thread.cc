// SPDX-License-Identifier: MIT
#include "base/own_thread.h"

#include <sys/mman.h>

#include <cerrno>
#include <memory>

namespace sluice {

namespace {

using Body = std::function<void()>;

void* run(void* argument) {
  const std::unique_ptr<Body> body(static_cast<Body*>(argument));
  (*body)();
  return nullptr;
}

// pthread_create() returns EAGAIN for both.
bool has_room_for_stack() {
  void* const room = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (room == MAP_FAILED) return false;
  (void)::munmap(room, kStackBytes);
  return true;
}

}  // namespace

Result<OwnThread> OwnThread::start(Body body) {
  auto kept = std::make_unique<Body>(std::move(body));
  pthread_attr_t attributes;
  (void)::pthread_attr_init(&attributes);
  (void)::pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread{};
  const int err = ::pthread_create(&thread, &attributes, run, kept.get());
  (void)::pthread_attr_destroy(&attributes);
  if (err == 0) {
    (void)kept.release();
    return OwnThread(thread);
  }
  if (err == EAGAIN && !has_room_for_stack()) return make_error(ENOMEM, "make room for a thread's stack");
  return make_error(err, "make a thread", Topic::Threads);
}

void OwnThread::join() {
  (void)::pthread_join(thread_, nullptr);
  joinable_ = false;
}

}  // namespace sluice
