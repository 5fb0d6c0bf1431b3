// SPDX-License-Identifier: MIT
// Threads of ours in a process of others.
#pragma once

#include <pthread.h>

namespace vamdgpu {

// Starts `body` in a thread that takes no signals and bears the name from its first instant: who looks at the
// process' threads tells ours by it. `name` begins with "vamdgpu-" and has 15 characters at most. Whether it
// was started.
bool start_own_thread(const char* name, void* (*body)(void*), void* argument, pthread_t* thread);

}  // namespace vamdgpu
