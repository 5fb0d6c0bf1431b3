// SPDX-License-Identifier: MIT
// The CRIU operations over a KFD made of one function: what is asked of the kernel, once, in order, on which
// thread, and what becomes of its answers.
#include "kfd/criu_ops.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "kfd/uapi.h"
#include "support/machines.h"
#include "support/refuse_system_call.h"

namespace sluice::kfd {
namespace {

using test::Folder;
using test::write_text;

// A kernel of one process: two GPUs, three BOs, one of them without contents.
class FakeKfd {
 public:
  IoctlFunction function() {
    return [this](int fd, unsigned long request, void* argument) {
      const int result = call(fd, request, argument);
      const int err = errno;
      if (request == kIocCriuOp && static_cast<CriuArgs*>(argument)->op == handled_op_) {
        if (const auto handler = std::exchange(handler_, nullptr)) handler();
      }
      errno = err;
      return result;
    };
  }

  // Runs on top of the next return of `op`, as a signal's handler does: the caller does not know yet how the
  // call went.
  void on_return_of(CriuOp op, std::function<void()> handler) {
    handled_op_ = op;
    handler_ = std::move(handler);
  }

  // The n-th next call of `op` fails with `err` (0: the next one).
  void fail(CriuOp op, int err, int calls = 1) { failures_[op] = {err, calls}; }

  // Every call of `request`, which is no operation of CRIU's, fails with `err`.
  void fail(unsigned long request, int err) { refused_[request] = err; }

  // That reached the kernel, failed or not; without an UNPAUSE of what runs.
  std::vector<CriuOp> ops;
  int paused = 0;  // how often queues were stopped
  void leave_paused() {
    paused++;
    flag_ = true;
  }
  std::vector<BoBucket> bos = {
      {0x1000000, 4096, 0x100000000, 0, 0x2000, kAllocVram | kAllocWritable, kInvalidFd, 0},
      {0x2000000, 8192, 0x100001000, 0, 0x2001, kAllocGtt, kInvalidFd, 0},
      {0x3000000, 8192, 0xC000000000000000, 0, 0x2001, kAllocDoorbell, kInvalidFd, 0}};
  std::uint32_t num_objects = 3;
  std::uint32_t num_gpus = 2;
  std::uint64_t priv_data_bytes = 40;
  std::vector<AcquireVmArgs> vms;
  GetVersionArgs version = {1, 11};
  bool give_dmabufs = true;
  bool answer_any_memory = false;  // no kernel does
  // Of the last RESTORE.
  std::vector<DeviceBucket> seen_devices;
  std::vector<BoBucket> seen_bos;
  std::vector<std::uint8_t> seen_priv_data;
  CriuArgs seen_args = {};

 private:
  struct Failure {
    int err = 0;
    int calls = 0;
  };

  int call(int fd, unsigned long request, void* argument) {
    EXPECT_GE(fd, 0);
    if (request == kIocGetVersion) {
      *static_cast<GetVersionArgs*>(argument) = version;
      return 0;
    }
    if (const auto refused = refused_.find(request); refused != refused_.end()) {
      errno = refused->second;
      return -1;
    }
    if (request == kIocGetApertures) {
      static_cast<GetAperturesArgs*>(argument)->num_nodes = num_gpus;
      return 0;
    }
    if (request == kIocAcquireVm) {
      vms.push_back(*static_cast<AcquireVmArgs*>(argument));
      return 0;
    }
    if (request == kIocAllocMemory) {
      auto& memory = *static_cast<AllocMemoryArgs*>(argument);
      bos.push_back({memory.va_addr, memory.size, 0, 0, memory.gpu_id, memory.flags, kInvalidFd, 0});
      memory.handle = 99;
      return 0;
    }
    if (request == kIocFreeMemory) {
      EXPECT_EQ(static_cast<FreeMemoryArgs*>(argument)->handle, 99U);
      bos.pop_back();
      return 0;
    }
    EXPECT_EQ(request, kIocCriuOp);
    auto& args = *static_cast<CriuArgs*>(argument);
    if (args.op == CriuOp::Unpause && !flag_) {
      errno = EINVAL;
      return -1;
    }
    ops.push_back(args.op);
    if (Failure& failure = failures_[args.op]; failure.calls > 0) {
      failure.calls--;
      errno = failure.err;
      return -1;
    }
    switch (args.op) {
      case CriuOp::ProcessInfo:
        paused++;
        flag_ = true;
        args.num_devices = 2;
        args.num_bos = static_cast<std::uint32_t>(bos.size());
        args.num_objects = num_objects;
        args.priv_data_size = priv_data_bytes;
        args.pid = 77;
        return 0;
      case CriuOp::Checkpoint:
        if (args.priv_data == 1) return answer_any_memory ? 0 : refuse_without_memory(args);
        checkpoint(args);
        return 0;
      case CriuOp::Unpause:  // one eviction, while the flag is set
        flag_ = false;
        paused--;
        return 0;
      case CriuOp::Restore:
        restore(args);
        return 0;
      case CriuOp::Resume:
        seen_args = args;
        return 0;
    }
    return -1;
  }

  // The kernel's order: whether the queues stand, then the counts, then the caller's memory.
  int refuse_without_memory(const CriuArgs& args) const {
    const bool counts_agree = args.num_devices == 2 && args.num_bos == bos.size() &&
                              args.num_objects == num_objects && args.priv_data_size == priv_data_bytes;
    errno = paused > 0 && counts_agree ? EFAULT : EINVAL;
    return -1;
  }

  bool flag_ = false;  // "paused by CRIU"
  CriuOp handled_op_ = CriuOp::ProcessInfo;
  std::function<void()> handler_;

  static std::uint32_t dmabuf() { return static_cast<std::uint32_t>(::memfd_create("dmabuf", 0)); }

  void checkpoint(const CriuArgs& args) {
    ASSERT_NE(args.devices, 0U);
    ASSERT_NE(args.bos, 0U);
    ASSERT_NE(args.priv_data, 0U);
    EXPECT_EQ(args.num_devices, 2U);
    EXPECT_EQ(args.num_bos, bos.size());
    EXPECT_EQ(args.num_objects, num_objects);
    EXPECT_EQ(args.priv_data_size, priv_data_bytes);
    auto* devices = reinterpret_cast<DeviceBucket*>(args.devices);
    devices[0] = {0x2000, 0x5000, 0, 0};
    devices[1] = {0x2001, 0x5001, 0, 0};
    auto* out = reinterpret_cast<BoBucket*>(args.bos);
    for (std::size_t i = 0; i < bos.size(); i++) {
      out[i] = bos[i];
      if (has_contents(bos[i].alloc_flags) && give_dmabufs) out[i].dmabuf_fd = dmabuf();
    }
    std::memset(reinterpret_cast<void*>(args.priv_data), 0x5A, args.priv_data_size);
  }

  void restore(const CriuArgs& args) {
    seen_args = args;
    const auto* devices = reinterpret_cast<const DeviceBucket*>(args.devices);
    seen_devices.assign(devices, devices + args.num_devices);
    auto* buckets = reinterpret_cast<BoBucket*>(args.bos);
    seen_bos.assign(buckets, buckets + args.num_bos);
    const auto* priv_data = reinterpret_cast<const std::uint8_t*>(args.priv_data);
    seen_priv_data.assign(priv_data, priv_data + args.priv_data_size);
    for (std::size_t i = 0; i < args.num_bos; i++) {
      buckets[i].dmabuf_fd = has_contents(buckets[i].alloc_flags) && give_dmabufs ? dmabuf() : kInvalidFd;
      buckets[i].restored_offset = 0x900000000 + i;
    }
  }

  std::map<CriuOp, Failure> failures_;
  std::map<unsigned long, int> refused_;
};

UniqueFd some_fd() {
  return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 256; fd++) count += ::fcntl(fd, F_GETFD) >= 0 ? 1U : 0U;
  return count;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- dump
// -----------------------------------------------------------------------------------------------------------

TEST(CriuSession, dumps_in_order) {
  const std::size_t before = open_descriptors();
  {
    FakeKfd kfd;
    CriuSession session(some_fd(), "process 77", kfd.function());
    EXPECT_FALSE(session.paused());
    const auto info = session.process_info();
    ASSERT_TRUE(info.ok()) << info.error().what;
    EXPECT_EQ(info->num_devices, 2U);
    EXPECT_EQ(info->num_bos, 3U);
    EXPECT_EQ(info->num_objects, 3U);
    EXPECT_EQ(info->pid, 77U);
    EXPECT_EQ(info->priv_data_bytes, 40U);
    EXPECT_TRUE(session.paused());

    auto checkpoint = session.checkpoint();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().what;
    EXPECT_EQ(checkpoint->devices, (std::vector<DeviceIds>{{0x2000, 0x5000}, {0x2001, 0x5001}}));
    EXPECT_EQ(checkpoint->priv_data, std::vector<std::uint8_t>(40, 0x5A));
    ASSERT_EQ(checkpoint->bos.size(), 3U);
    EXPECT_EQ(checkpoint->bos[1].addr, 0x2000000U);
    EXPECT_EQ(checkpoint->bos[1].bytes, 8192U);
    EXPECT_EQ(checkpoint->bos[1].gpu_id, 0x2001U);
    EXPECT_EQ(checkpoint->bos[1].alloc_flags, kAllocGtt);
    EXPECT_EQ(checkpoint->bos[2].offset, 0xC000000000000000U);
    ASSERT_TRUE(checkpoint->dmabufs[0].valid());
    EXPECT_TRUE(checkpoint->dmabufs[1].valid());
    EXPECT_FALSE(checkpoint->dmabufs[2].valid());
    EXPECT_EQ(::fcntl(checkpoint->dmabufs[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);

    ASSERT_TRUE(session.unpause().ok());
    EXPECT_FALSE(session.paused());
    EXPECT_EQ(kfd.paused, 0);
    EXPECT_EQ(kfd.ops, (std::vector<CriuOp>{CriuOp::ProcessInfo, CriuOp::Checkpoint, CriuOp::Unpause}));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(CriuSession, process_info_happens_once_while_the_queues_are_stopped) {
  FakeKfd kfd;
  CriuSession session(some_fd(), "process 77", kfd.function());
  ASSERT_TRUE(session.process_info().ok());
  EXPECT_EQ(session.process_info().error().err, EALREADY);
  EXPECT_EQ(kfd.paused, 1);
  EXPECT_EQ(kfd.ops.size(), 1U);
}

TEST(CriuSession, everything_is_checkpointed_anew_after_the_queues_have_run) {
  FakeKfd kfd;
  CriuSession session(some_fd(), "process 77", kfd.function());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(session.process_info().ok());
    ASSERT_TRUE(session.checkpoint().ok());
    EXPECT_EQ(kfd.paused, 1);
    ASSERT_TRUE(session.unpause().ok());
    EXPECT_EQ(kfd.paused, 0);
    EXPECT_EQ(session.checkpoint().error().err, EINVAL);
  }
}

TEST(CriuSession, a_pause_that_an_older_dump_left_behind_is_ended_first) {
  FakeKfd kfd;
  kfd.leave_paused();
  {
    CriuSession session(some_fd(), "process 77", kfd.function());
    ASSERT_TRUE(session.process_info().ok());
    EXPECT_TRUE(session.found_paused());
    EXPECT_EQ(kfd.paused, 1);
  }
  EXPECT_EQ(kfd.paused, 0);
  CriuSession next(some_fd(), "process 77", kfd.function());
  ASSERT_TRUE(next.process_info().ok());
  EXPECT_FALSE(next.found_paused());
}

TEST(CriuSession, a_pause_that_cannot_be_ended_gets_no_second_one_on_top) {
  FakeKfd kfd;
  kfd.leave_paused();
  kfd.fail(CriuOp::Unpause, EIO);
  CriuSession session(some_fd(), "process 77", kfd.function());
  EXPECT_EQ(session.process_info().error().err, EIO);
  EXPECT_EQ(kfd.paused, 1);
}

TEST(CriuSession, an_older_pause_is_ended_once_and_may_be_beforehand) {
  FakeKfd kfd;
  kfd.leave_paused();
  CriuSession session(some_fd(), "process 77", kfd.function());
  kfd.fail(CriuOp::Unpause, EIO);
  EXPECT_EQ(session.end_older_pause().error().err, EIO);
  EXPECT_EQ(kfd.paused, 1);
  ASSERT_TRUE(session.end_older_pause().ok());
  EXPECT_TRUE(session.found_paused());
  EXPECT_EQ(kfd.paused, 0);
  const std::size_t asked = kfd.ops.size();
  ASSERT_TRUE(session.process_info().ok());
  EXPECT_EQ(kfd.ops.size(), asked + 1) << "it does not try again";
  EXPECT_TRUE(session.found_paused());
}

TEST(CriuSession, checkpoint_wants_paused_queues_and_happens_once) {
  FakeKfd kfd;
  CriuSession session(some_fd(), "process 77", kfd.function());
  EXPECT_EQ(session.checkpoint().error().err, EINVAL);
  ASSERT_TRUE(session.process_info().ok());
  ASSERT_TRUE(session.checkpoint().ok());
  EXPECT_EQ(session.checkpoint().error().err, EALREADY);
  ASSERT_TRUE(session.unpause().ok());
  EXPECT_EQ(session.checkpoint().error().err, EINVAL);
}

TEST(CriuSession, unpause_happens_once_whoever_calls_it) {
  FakeKfd kfd;
  {
    CriuSession session(some_fd(), "process 77", kfd.function());
    EXPECT_TRUE(session.unpause().ok());
    EXPECT_TRUE(kfd.ops.empty());
    ASSERT_TRUE(session.process_info().ok());
    EXPECT_TRUE(session.unpause().ok());
    EXPECT_TRUE(session.unpause().ok());
  }
  EXPECT_EQ(kfd.ops.size(), 2U);
}

TEST(CriuSession, the_destructor_unpauses) {
  FakeKfd kfd;
  {
    CriuSession session(some_fd(), "process 77", kfd.function());
    ASSERT_TRUE(session.process_info().ok());
    EXPECT_EQ(kfd.paused, 1);
  }
  EXPECT_EQ(kfd.paused, 0);
}

TEST(CriuSession, a_failed_process_info_pauses_nothing_and_may_be_repeated) {
  FakeKfd kfd;
  kfd.fail(CriuOp::ProcessInfo, ENODEV);
  CriuSession session(some_fd(), "process 77", kfd.function());
  EXPECT_EQ(session.process_info().error().err, ENODEV);
  EXPECT_FALSE(session.paused());
  EXPECT_TRUE(session.unpause().ok());
  EXPECT_TRUE(session.process_info().ok());
}

TEST(CriuSession, a_failed_checkpoint_leaves_the_queues_to_unpause) {
  FakeKfd kfd;
  kfd.fail(CriuOp::Checkpoint, EINVAL);
  CriuSession session(some_fd(), "process 77", kfd.function());
  ASSERT_TRUE(session.process_info().ok());
  const auto checkpoint = session.checkpoint();
  EXPECT_EQ(checkpoint.error().err, EINVAL);
  EXPECT_TRUE(contains(checkpoint.error().what, "process 77"));
  EXPECT_TRUE(contains(checkpoint.error().what, "[SL-G09]"));
  EXPECT_TRUE(session.paused());
  EXPECT_TRUE(session.unpause().ok());
}

TEST(CriuSession, interrupted_calls_are_repeated) {
  FakeKfd kfd;
  CriuSession session(some_fd(), "process 77", kfd.function());
  kfd.fail(CriuOp::ProcessInfo, EINTR, 3);
  ASSERT_TRUE(session.process_info().ok());
  kfd.fail(CriuOp::Checkpoint, EINTR, 2);
  ASSERT_TRUE(session.checkpoint().ok());
  kfd.fail(CriuOp::Unpause, EINTR);
  ASSERT_TRUE(session.unpause().ok());
  EXPECT_EQ(kfd.ops.size(), 4U + 3U + 2U);
}

TEST(CriuSession, another_thread_is_refused_before_the_kernel) {
  FakeKfd kfd;
  CriuSession session(some_fd(), "process 77", kfd.function());
  std::thread([&] {
    const auto info = session.process_info();
    EXPECT_EQ(info.error().err, EBADF);
    EXPECT_TRUE(contains(info.error().what, "traces it"));
  }).join();
  EXPECT_TRUE(kfd.ops.empty());
  ASSERT_TRUE(session.process_info().ok());
  std::thread([&] {
    EXPECT_EQ(session.checkpoint().error().err, EBADF);
    EXPECT_EQ(session.unpause().error().err, EBADF);
  }).join();
  EXPECT_EQ(kfd.ops.size(), 1U);
  EXPECT_TRUE(session.unpause().ok());
}

TEST(CriuSession, errors_say_what_to_do) {
  struct Advice {
    int err;
    const char* advice;
  };
  const Advice table[] = {
      {EBADF, "[SL-G05]"}, {EACCES, "Permission denied"}, {ENODEV, "[SL-G06]"}, {EOPNOTSUPP, "[SL-G07]"}};
  for (const auto& row : table) {
    FakeKfd kfd;
    kfd.fail(CriuOp::ProcessInfo, row.err);
    CriuSession session(some_fd(), "process 77", kfd.function());
    const auto info = session.process_info();
    EXPECT_EQ(info.error().err, row.err);
    EXPECT_TRUE(contains(info.error().what, row.advice)) << info.error().what;
  }
  for (const auto& row : {Advice{EBADF, "[SL-G05]"}, Advice{EOPNOTSUPP, "[SL-G10]"}}) {
    FakeKfd kfd;
    kfd.fail(CriuOp::Checkpoint, row.err);
    CriuSession session(some_fd(), "process 77", kfd.function());
    ASSERT_TRUE(session.process_info().ok());
    const auto checkpoint = session.checkpoint();
    EXPECT_EQ(checkpoint.error().err, row.err);
    EXPECT_TRUE(contains(checkpoint.error().what, row.advice)) << checkpoint.error().what;
    ASSERT_TRUE(session.unpause().ok());
  }
  FakeKfd kfd;
  kfd.fail(CriuOp::Checkpoint, EMFILE);
  CriuSession session(some_fd(), "process 77", kfd.function());
  ASSERT_TRUE(session.process_info().ok());
  const auto checkpoint = session.checkpoint();
  EXPECT_EQ(checkpoint.error().err, EMFILE);
  EXPECT_TRUE(contains(checkpoint.error().what, "RLIMIT_NOFILE is ")) << checkpoint.error().what;
}

TEST(CriuSession, answers_that_contradict_themselves_are_refused_without_losing_a_descriptor) {
  const std::size_t before = open_descriptors();
  {
    FakeKfd kfd;
    kfd.give_dmabufs = false;
    CriuSession session(some_fd(), "process 77", kfd.function());
    ASSERT_TRUE(session.process_info().ok());
    EXPECT_EQ(session.checkpoint().error().err, EIO);
  }
  {
    FakeKfd kfd;
    kfd.bos[1].gpu_id = 0x7777;
    CriuSession session(some_fd(), "process 77", kfd.function());
    ASSERT_TRUE(session.process_info().ok());
    const auto checkpoint = session.checkpoint();
    EXPECT_EQ(checkpoint.error().err, EIO);
    EXPECT_TRUE(contains(checkpoint.error().what, "0x7777")) << checkpoint.error().what;
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(CriuSession, private_data_that_no_image_can_hold_is_refused_paused) {
  FakeKfd kfd;
  kfd.priv_data_bytes = std::uint64_t{1} << 31;
  CriuSession session(some_fd(), "process 77", kfd.function());
  EXPECT_EQ(session.process_info().error().err, EOVERFLOW);
  EXPECT_TRUE(session.paused());
  EXPECT_EQ(session.process_info().error().err, EALREADY);
  EXPECT_TRUE(session.unpause().ok());
  EXPECT_EQ(kfd.paused, 0);
}

TEST(CriuSession, a_process_without_bos_is_dumped) {
  FakeKfd kfd;
  kfd.bos.clear();
  CriuSession session(some_fd(), "process 77", kfd.function());
  ASSERT_TRUE(session.process_info().ok());
  const auto checkpoint = session.checkpoint();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().what;
  EXPECT_TRUE(checkpoint->bos.empty());
}

TEST(UnpauseGuard, unpauses_what_is_paused_and_no_more) {
  FakeKfd a;
  FakeKfd b;
  FakeKfd c;
  {
    UnpauseGuard guard;
    ASSERT_TRUE(guard.open_session(some_fd(), "a", a.function()).process_info().ok());
    (void)guard.open_session(some_fd(), "b", b.function());
    ASSERT_TRUE(guard.open_session(some_fd(), "c", c.function()).process_info().ok());
    EXPECT_EQ(guard.paused_count(), 2U);
    const std::size_t before = open_descriptors();
    EXPECT_TRUE(guard.unpause_all().ok());
    EXPECT_EQ(guard.paused_count(), 0U);
    EXPECT_EQ(open_descriptors(), before - 3) << "of what runs nothing is held";
    EXPECT_TRUE(guard.unpause_all().ok());
  }
  EXPECT_EQ(a.ops.size(), 2U);
  EXPECT_TRUE(b.ops.empty());
  EXPECT_EQ(c.ops.size(), 2U);
}

TEST(UnpauseGuard, what_runs_for_a_while_can_be_stopped_again) {
  FakeKfd a;
  FakeKfd b;
  UnpauseGuard guard;
  CriuSession& first = guard.open_session(some_fd(), "a", a.function());
  CriuSession& second = guard.open_session(some_fd(), "b", b.function());
  ASSERT_TRUE(first.process_info().ok());
  ASSERT_TRUE(second.process_info().ok());
  a.fail(CriuOp::Unpause, EIO);
  EXPECT_EQ(guard.let_run().error().err, EIO);
  EXPECT_EQ(b.paused, 0);
  EXPECT_TRUE(guard.let_run().ok());
  EXPECT_EQ(a.paused, 0);
  EXPECT_TRUE(first.process_info().ok());
  EXPECT_TRUE(second.process_info().ok());
  EXPECT_EQ(a.paused + b.paused, 2);
}

TEST(UnpauseGuard, one_failure_keeps_no_other_from_running_and_is_tried_again) {
  FakeKfd a;
  FakeKfd b;
  {
    UnpauseGuard guard;
    ASSERT_TRUE(guard.open_session(some_fd(), "a", a.function()).process_info().ok());
    ASSERT_TRUE(guard.open_session(some_fd(), "b", b.function()).process_info().ok());
    a.fail(CriuOp::Unpause, EIO);
    const auto result = guard.unpause_all();
    EXPECT_EQ(result.error().err, EIO);
    EXPECT_TRUE(contains(result.error().what, "queues stay stopped"));
    EXPECT_EQ(guard.paused_count(), 1U);
    EXPECT_EQ(b.paused, 0);
  }
  EXPECT_EQ(a.paused, 0);
}

// Sessions stay, for what uses them is not unwound; one that the kernel refuses keeps no other from running.
TEST(UnpauseGuard, a_process_that_ends_on_top_of_its_work_unpauses_and_drops_nothing) {
  FakeKfd a;
  FakeKfd b;
  UnpauseGuard guard;
  CriuSession& first = guard.open_session(some_fd(), "a", a.function());
  CriuSession& second = guard.open_session(some_fd(), "b", b.function());
  ASSERT_TRUE(first.process_info().ok());
  ASSERT_TRUE(second.process_info().ok());
  a.fail(CriuOp::Unpause, EIO);
  guard.unpause_at_exit();
  EXPECT_TRUE(first.paused());
  EXPECT_FALSE(second.paused());
  EXPECT_EQ(b.paused, 0);
  EXPECT_EQ(first.name(), "a");
}

// CRIU's handler of SIGCHLD ends the process on top of whatever call it interrupts.
TEST(UnpauseGuard, no_call_has_a_moment_in_which_the_end_of_the_process_leaves_queues_stopped) {
  for (const CriuOp op : {CriuOp::ProcessInfo, CriuOp::Checkpoint, CriuOp::Unpause}) {
    FakeKfd other;
    FakeKfd kfd;
    UnpauseGuard guard;
    ASSERT_TRUE(guard.open_session(some_fd(), "other", other.function()).process_info().ok());
    CriuSession& session = guard.open_session(some_fd(), "process 77", kfd.function());
    bool handled = false;
    kfd.on_return_of(op, [&] {
      guard.unpause_at_exit();
      handled = true;
      EXPECT_EQ(kfd.paused, 0);
      EXPECT_EQ(other.paused, 0);
    });
    ASSERT_TRUE(session.process_info().ok());
    if (op != CriuOp::ProcessInfo) {
      ASSERT_TRUE(session.checkpoint().ok());
    }
    (void)guard.unpause_all();
    EXPECT_TRUE(handled);
    EXPECT_EQ(kfd.paused, 0);
  }
}

TEST(UnpauseGuard, the_end_of_the_process_after_a_refused_process_info_changes_nothing) {
  FakeKfd kfd;
  UnpauseGuard guard;
  CriuSession& session = guard.open_session(some_fd(), "process 77", kfd.function());
  kfd.fail(CriuOp::ProcessInfo, ENODEV);
  kfd.on_return_of(CriuOp::ProcessInfo, [&] { guard.unpause_at_exit(); });
  EXPECT_EQ(session.process_info().error().err, ENODEV);
  EXPECT_FALSE(session.paused());
  EXPECT_EQ(kfd.paused, 0);
}

TEST(UnpauseGuard, a_kernel_that_says_not_paused_is_believed) {
  FakeKfd a;
  UnpauseGuard guard;
  ASSERT_TRUE(guard.open_session(some_fd(), "a", a.function()).process_info().ok());
  a.fail(CriuOp::Unpause, EINVAL, 5);
  EXPECT_EQ(guard.unpause_all().error().err, EINVAL);
  EXPECT_TRUE(guard.unpause_all().ok());
}

// --- restore
// --------------------------------------------------------------------------------------------------------

TEST(CriuSession, tells_another_file_of_its_process_from_one_of_another) {
  FakeKfd kfd;
  CriuSession session(some_fd(), "process 77", kfd.function());
  const UniqueFd other = some_fd();
  EXPECT_EQ(session.same_process(other.get()).error().err, EINVAL);
  EXPECT_TRUE(kfd.ops.empty());
  ASSERT_TRUE(session.process_info().ok());
  EXPECT_TRUE(session.same_process(other.get()).value());
  // The kernel's word for a process that runs, or that stands with other counts.
  kfd.fail(CriuOp::Checkpoint, EINVAL);
  EXPECT_FALSE(session.same_process(other.get()).value());
  for (const int err : {EBADF, EACCES, ENODEV}) {
    kfd.fail(CriuOp::Checkpoint, err);
    EXPECT_EQ(session.same_process(other.get()).error().err, err);
  }
  kfd.answer_any_memory = true;
  EXPECT_EQ(session.same_process(other.get()).error().err, EIO);
  kfd.answer_any_memory = false;
  EXPECT_EQ(kfd.paused, 1);
  // The question leaves the answer to CHECKPOINT as it is.
  EXPECT_TRUE(session.checkpoint().ok());
  EXPECT_TRUE(session.unpause().ok());
  EXPECT_EQ(session.same_process(other.get()).error().err, EINVAL);
}

class KfdRestore : public ::testing::Test {
 protected:
  KfdDevice open() {
    auto device = KfdDevice::open(makedev(1, 3), "/dev/null", kfd.function());
    EXPECT_TRUE(device.ok());
    return std::move(device).value();
  }
  FakeKfd kfd;
  UniqueFd drm = some_fd();
  std::vector<RestoreDevice> devices = {{0x2000, 0x5001, drm.get()}, {0x2001, 0x5000, drm.get()}};
  std::vector<KfdBo> bos = {{0x1000000, 4096, 0x100000000, 0x2000, kAllocVram},
                            {0x3000000, 8192, 0xC000000000000000, 0x2001, kAllocDoorbell}};
  std::vector<std::uint8_t> priv_data = {1, 2, 3};
};

TEST_F(KfdRestore, hands_over_all_and_returns_the_new_offsets) {
  const std::size_t before = open_descriptors();
  {
    const KfdDevice device = open();
    const auto restored = restore(device, devices, bos, 3, priv_data);
    ASSERT_TRUE(restored.ok()) << restored.error().what;
    ASSERT_EQ(restored->size(), 2U);
    EXPECT_EQ((*restored)[1].offset, 0x900000001U);
    ASSERT_TRUE((*restored)[0].dmabuf.valid());
    EXPECT_EQ(::fcntl((*restored)[0].dmabuf.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_FALSE((*restored)[1].dmabuf.valid());
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(kfd.seen_devices.at(0).user_gpu_id, 0x2000U);
  EXPECT_EQ(kfd.seen_devices.at(0).actual_gpu_id, 0x5001U);
  EXPECT_EQ(kfd.seen_devices.at(1).drm_fd, static_cast<std::uint32_t>(drm.get()));
  EXPECT_EQ(kfd.seen_bos.at(1).addr, 0x3000000U);
  EXPECT_EQ(kfd.seen_bos.at(1).restored_offset, 0U);
  EXPECT_EQ(kfd.seen_bos.at(1).dmabuf_fd, kInvalidFd);
  EXPECT_EQ(kfd.seen_priv_data, priv_data);
  EXPECT_EQ(kfd.seen_args.num_objects, 3U);
}

TEST_F(KfdRestore, refuses_what_the_kernel_must_not_see) {
  const KfdDevice device = open();
  const auto refused = [&](const char* why) {
    const auto result = restore(device, devices, bos, 3, priv_data);
    ASSERT_FALSE(result.ok()) << why;
    EXPECT_EQ(result.error().err, EINVAL) << why;
    EXPECT_TRUE(contains(result.error().what, why)) << result.error().what;
  };
  const auto good_devices = devices;
  const auto good_bos = bos;
  devices.clear();
  refused("without GPUs");
  devices = good_devices;
  devices[1].user_gpu_id = 0x2000;
  refused("named twice");
  devices = good_devices;
  devices[1].actual_gpu_id = 0x5001;
  refused("two GPUs of the image");
  devices = good_devices;
  devices[0].drm_fd = -77;
  refused("GPU 0x2000 without an open render node");
  devices = good_devices;
  devices[0].user_gpu_id = 0;
  refused("without gpu_id");
  devices = good_devices;
  bos[1].gpu_id = 0x2002;
  refused("BO 1 at 0x3000000 on GPU 0x2002");
  bos = good_bos;
  bos[0].bytes = 0;
  refused("has no size");
  bos = good_bos;
  priv_data.clear();
  refused("without private data");
  EXPECT_TRUE(kfd.ops.empty());
}

TEST_F(KfdRestore, is_not_repeated_when_interrupted) {
  const KfdDevice device = open();
  kfd.fail(CriuOp::Restore, EINTR);
  EXPECT_EQ(restore(device, devices, bos, 3, priv_data).error().err, EINTR);
  EXPECT_EQ(kfd.ops.size(), 1U);
}

TEST_F(KfdRestore, errors_say_what_to_do) {
  const struct {
    int err;
    const char* advice;
  } table[] = {{EINVAL, "[SL-G13]"}, {EPERM, "[SL-G14]"},           {ENOMEM, "[SL-G15]"},
               {EMFILE, "[SL-G04]"}, {EACCES, "Permission denied"}, {EBADF, "[SL-G16]"}};
  const KfdDevice device = open();
  for (const auto& row : table) {
    kfd.fail(CriuOp::Restore, row.err);
    const auto result = restore(device, devices, bos, 3, priv_data);
    EXPECT_EQ(result.error().err, row.err);
    EXPECT_TRUE(contains(result.error().what, row.advice)) << result.error().what;
  }
}

TEST_F(KfdRestore, a_missing_dmabuf_is_an_error_without_losing_the_others) {
  const std::size_t before = open_descriptors();
  kfd.give_dmabufs = false;
  {
    const KfdDevice device = open();
    EXPECT_EQ(restore(device, devices, bos, 3, priv_data).error().err, EIO);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(KfdRestore, resume_tells_gpu_processes_from_others) {
  const KfdDevice device = open();
  const auto resumed = resume(device, 4711);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(*resumed, ResumeOutcome::Resumed);
  EXPECT_EQ(kfd.seen_args.pid, 4711U);
  kfd.fail(CriuOp::Resume, ESRCH);
  const auto other = resume(device, 4711);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(*other, ResumeOutcome::NotGpuProcess);
  kfd.fail(CriuOp::Resume, EINVAL);
  const auto twice = resume(device, 4711);
  EXPECT_EQ(twice.error().err, EINVAL);
  EXPECT_TRUE(contains(twice.error().what, "process 4711"));
}

// What it has not set by then the kernel forgets: a second one would say that all is well.
TEST_F(KfdRestore, a_resume_that_is_interrupted_is_not_repeated) {
  const KfdDevice device = open();
  kfd.fail(CriuOp::Resume, EINTR);
  EXPECT_EQ(resume(device, 4711).error().err, EINTR);
}

class BoRecordProbe : public KfdRestore {
 protected:
  BoRecordProbe() {
    kfd.bos.clear();
    kfd.num_objects = 0;
    kfd.priv_data_bytes = 8 + 2 * 8 + 272;
  }

  // Both of them.
  std::vector<GpuFile> gpus() const { return {{0x5000, drm.get()}, {0x5001, drm.get()}}; }
};

TEST_F(BoRecordProbe, asks_with_one_bo_and_leaves_nothing) {
  const std::size_t before = open_descriptors();
  {
    const KfdDevice device = open();
    const auto bytes = probe_bo_record_bytes(device, gpus());
    ASSERT_TRUE(bytes.ok()) << bytes.error().what;
    EXPECT_EQ(*bytes, 272U);
  }
  ASSERT_EQ(kfd.vms.size(), 2U) << "Linux 6.1 panics when the queues of a process start that lacks one";
  EXPECT_EQ(kfd.vms[0].gpu_id, 0x5000U);
  EXPECT_EQ(kfd.vms[1].gpu_id, 0x5001U);
  EXPECT_EQ(kfd.vms[1].drm_fd, static_cast<std::uint32_t>(drm.get()));
  EXPECT_TRUE(kfd.bos.empty());
  EXPECT_EQ(kfd.paused, 0);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(BoRecordProbe, nothing_is_stopped_while_a_gpu_cannot_be_opened) {
  kfd.num_gpus = 3;
  const KfdDevice device = open();
  const auto bytes = probe_bo_record_bytes(device, gpus());
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().err, ENODEV);
  EXPECT_TRUE(kfd.ops.empty());
  EXPECT_TRUE(kfd.vms.empty());
}

TEST_F(BoRecordProbe, a_process_that_uses_its_kfd_cannot_be_asked) {
  kfd.num_objects = 1;
  const KfdDevice device = open();
  EXPECT_EQ(probe_bo_record_bytes(device, gpus()).error().err, EBUSY);
  EXPECT_TRUE(kfd.bos.empty());
  EXPECT_EQ(kfd.paused, 0);
}

TEST_F(BoRecordProbe, a_failure_frees_the_bo) {
  kfd.fail(CriuOp::ProcessInfo, EACCES);
  const KfdDevice device = open();
  EXPECT_EQ(probe_bo_record_bytes(device, gpus()).error().err, EACCES);
  EXPECT_TRUE(kfd.bos.empty());
}

TEST_F(BoRecordProbe, what_the_kernel_refuses_is_named_and_nothing_stays_paused) {
  const std::pair<unsigned long, const char*> requests[] = {
      {kIocGetApertures, "GET_PROCESS_APERTURES_NEW"},
      {kIocAcquireVm, "ACQUIRE_VM of GPU 0x5000"},
      {kIocAllocMemory, "ALLOC_MEMORY_OF_GPU on GPU 0x5000"},
      {kIocFreeMemory, "FREE_MEMORY_OF_GPU on GPU 0x5000"}};
  for (const auto& [request, name] : requests) {
    SCOPED_TRACE(name);
    FakeKfd refusing;
    refusing.fail(request, ENOMEM);
    auto device = KfdDevice::open(makedev(1, 3), "/dev/null", refusing.function());
    ASSERT_TRUE(device.ok());
    const auto bytes = probe_bo_record_bytes(*device, gpus());
    ASSERT_FALSE(bytes.ok());
    EXPECT_EQ(bytes.error().err, ENOMEM);
    EXPECT_TRUE(contains(bytes.error().what, name)) << bytes.error().what;
    EXPECT_EQ(refusing.paused, 0);
  }
}

// --- device
// ---------------------------------------------------------------------------------------------------------

TEST(KfdDevice, passes_its_version_gate) {
  EXPECT_TRUE(check_version({1, 8}).ok());
  EXPECT_TRUE(check_version({1, 23}).ok());
  for (const KfdVersion version : {KfdVersion{1, 7}, KfdVersion{0, 9}, KfdVersion{2, 8}}) {
    const auto result = check_version(version);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().err, EPROTONOSUPPORT);
    EXPECT_TRUE(
        contains(result.error().what, std::to_string(version.major) + "." + std::to_string(version.minor)));
    EXPECT_TRUE(contains(result.error().what, "1.8"));
  }
  FakeKfd old;
  old.version = {1, 7};
  EXPECT_EQ(KfdDevice::open(makedev(1, 3), "/dev/null", old.function()).error().err, EPROTONOSUPPORT);
}

TEST(KfdDevice, a_machine_without_one_says_so) {
  const auto device = KfdDevice::open(makedev(511, 0), "/nonexistent/kfd");
  EXPECT_EQ(device.error().err, ENOENT);
  EXPECT_TRUE(contains(device.error().what, "amdgpu module"));
  EXPECT_EQ(kfd_device_number("/nonexistent/kfd", "/nonexistent/dev").error().err, ENOENT);
}

TEST(KfdDevice, one_that_cannot_be_opened_says_what_to_do) {
  const std::map<int, std::string> remedies = {
      {EACCES, "[SL-G20]"}, {EPERM, "[SL-G21]"},
      {EINVAL, "[SL-G22]"}, {EMFILE, "open /dev/null: Too many open files"},
      {ENXIO, "[SL-G19]"},  {EIO, "open /dev/null: Input/output error"}};
  for (const auto& [err, remedy] : remedies) {
    std::thread([err = err, remedy = remedy] {
      ASSERT_TRUE(test::refuse_system_call(SYS_openat, static_cast<unsigned>(err)));
      const auto version = read_version("/dev/null");
      EXPECT_EQ(version.error().err, err);
      EXPECT_TRUE(contains(version.error().what, remedy)) << version.error().what;
      const bool says_it = !remedy.starts_with("open ");
      EXPECT_EQ(has_id(version.error().what), says_it);
    }).join();
  }
}

TEST(KfdDevice, its_number_comes_from_the_node_or_from_sysfs) {
  EXPECT_EQ(kfd_device_number("/dev/null", "/nonexistent").value(), makedev(1, 3));
  const Folder dir;
  const std::string file = dir.path() / "dev";
  write_text(file, "511:0\n");
  EXPECT_EQ(kfd_device_number("/nonexistent", file.c_str()).value(), makedev(511, 0));
  write_text(file, "rubbish\n");
  EXPECT_FALSE(kfd_device_number("/nonexistent", file.c_str()).ok());
}

TEST(KfdDevice, files_are_told_apart) {
  const dev_t kfd = makedev(511, 0);
  EXPECT_EQ(classify_device(S_IFCHR, kfd, kfd).kind, FileKind::Kfd);
  EXPECT_EQ(classify_device(S_IFCHR, makedev(511, 1), kfd).kind, FileKind::Other);
  EXPECT_EQ(classify_device(S_IFBLK, kfd, kfd).kind, FileKind::Other);
  EXPECT_EQ(classify_device(S_IFCHR, makedev(226, 0), kfd).kind, FileKind::Other);
  EXPECT_EQ(classify_device(S_IFCHR, makedev(226, 127), kfd).kind, FileKind::Other);
  EXPECT_EQ(classify_device(S_IFCHR, makedev(226, 128), kfd).kind, FileKind::RenderNode);
  EXPECT_EQ(classify_device(S_IFCHR, makedev(226, 191), kfd).render_minor, 191U);
  EXPECT_EQ(classify_device(S_IFCHR, 0, 0).kind, FileKind::Other);

  const UniqueFd null = some_fd();
  EXPECT_EQ(classify_fd(null.get(), makedev(1, 3)).value().kind, FileKind::Kfd);
  EXPECT_EQ(classify_fd(null.get(), kfd).value().kind, FileKind::Other);
  const UniqueFd memory(::memfd_create("dmabuf", 0));
  EXPECT_EQ(classify_fd(memory.get(), kfd).value().kind, FileKind::Other);
  EXPECT_EQ(classify_fd(-1, kfd).error().err, EBADF);
}

TEST(MmapOffset, holds_the_type_and_the_gpu) {
  EXPECT_EQ(encode_mmap_offset({MmapType::Doorbell, 0xFFFF, 0}), 0xFFFFC00000000000U);
  EXPECT_EQ(decode_mmap_offset(0xD5D6400000002000U), (MmapOffset{MmapType::Doorbell, 0x5759, 0x2000}));
  EXPECT_EQ(decode_mmap_offset(encode_mmap_offset({MmapType::Mmio, 1, 0})).type, MmapType::Mmio);
}

}  // namespace
}  // namespace sluice::kfd
