// SPDX-License-Identifier: MIT
// What one process knows of the machine it is on: the mapped shared state, its own identity, and the
// callbacks by which the device model reaches this process's memory and descriptors. No thread exists before
// the first submission. After fork the mapping is shared and goes on; identity is asked anew.
#pragma once

#include "shared.h"

namespace vamdgpu {

struct Local {
  Shared* shared = nullptr;
  const char* directory = nullptr;
  std::uint64_t device = 0;  // st_dev of the machine's files

  vam_model* model() const { return shared->model(); }
};

// nullptr when this process is on no machine. Any thread, any time.
const Local* local();

// One ioctl on its way through the model.
struct CallFrame {
  vam_call call;
  const Local* local;
  int fd_flags;
};

extern const vam_os kOs;

// Identity of the calling thread and process, filled into `frame`; `file` is the device file of the ioctl.
void fill_call(const Local& local, std::uint32_t file, CallFrame* frame);

// Identifies an fd of the calling process. kind None when it is none of ours; -EBADF when not open, else 0.
int tag_of_fd(const Local& local, int fd, FileTag* tag);

// Start time of the calling process.
std::uint64_t own_start_time();

}  // namespace vamdgpu
