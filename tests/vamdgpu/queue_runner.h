// SPDX-License-Identifier: MIT
// Runs the user-mode queues of a virtual machine in user space: a thread of a program that is not on the
// machine looks at every queue about once a millisecond and lets the device model consume its packets
// (model/queue_run.h). No process on the machine gets a thread by it, so what dumps and restores processes
// finds them as they are.
//
// Memory of a process that is not a BO (userptr BOs, SVM ranges) is reached with process_vm_readv and
// process_vm_writev, so this program must be allowed to ptrace it; an atomic there (a signal in such memory)
// cannot be done from outside and is a fault of the queue.
#pragma once

#include <memory>
#include <string>

namespace vamdgpu {

class QueueRunner {
 public:
  // Of the machine in a directory. The thread runs from here to the destructor. Throws std::system_error when
  // there is no machine.
  explicit QueueRunner(const std::string& directory);
  ~QueueRunner();
  QueueRunner(const QueueRunner&) = delete;
  QueueRunner& operator=(const QueueRunner&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamdgpu
