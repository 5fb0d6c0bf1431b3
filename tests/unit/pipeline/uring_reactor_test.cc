// SPDX-License-Identifier: MIT
// What is io_uring's alone: registered buffers, refusal, a kernel without memory, a ring that breaks, and
// that no worker outlives the lane's thread.
#include "pipeline/reactor/uring_reactor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "pipeline/arena.h"
#include "pipeline/reactor/thread_reactor.h"
#include "support/lane.h"
#include "support/process_state.h"
#include "support/refuse_system_call.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace {

// What the kernel does where it has no memory for a request.
bool g_takes_one = false;   // of all that is submitted
unsigned g_takes_none = 0;  // submissions

}  // namespace

// In place of liburing's, by the linker.
extern "C" {
int __real_io_uring_submit(io_uring* ring);
int __wrap_io_uring_submit(io_uring* ring);

int __wrap_io_uring_submit(io_uring* ring) {
  if (g_takes_none > 0) {
    --g_takes_none;
    return -EAGAIN;
  }
  const unsigned held_back = g_takes_one ? io_uring_sq_ready(ring) - 1 : 0;
  ring->sq.sqe_tail -= held_back;
  const int taken = __real_io_uring_submit(ring);
  ring->sq.sqe_tail += held_back;
  return taken;
}
}

namespace sluice {
namespace {

using test::Bytes;

bool no_uring() {
  return !test::unavailable(test::ReactorKind::Uring).empty();
}
#define SKIP_WITHOUT_URING() \
  if (no_uring()) GTEST_SKIP() << test::unavailable(test::ReactorKind::Uring)

std::int32_t wait_for_one(Reactor& reactor) {
  std::array<Completion, 1> completions;
  const auto count = reactor.wait(completions);
  EXPECT_TRUE(count.ok());
  return completions[0].result;
}

TEST(UringReactor, FixedBuffersCarryTheSameBytes) {
  SKIP_WITHOUT_URING();
  const test::TempDir dir;
  const StagingArena arena = std::move(StagingArena::make(kBufferAlignment, 2, -1)).value();
  auto reactor = std::move(UringReactor::make(4)).value();
  if (const auto registered = reactor->register_buffer(arena.bytes()); !registered) {
    GTEST_SKIP() << registered.error().what;
  }
  const UniqueFd fd(::openat(dir.fd(), "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  test::Rng(9).fill(arena.buffer(0));
  Op op;
  reactor->write(op, fd.get(), arena.buffer(0).subspan(8, 5000), 0);
  EXPECT_EQ(wait_for_one(*reactor), 5000);
  reactor->read(op, fd.get(), arena.buffer(1).subspan(100, 5000), 0);
  EXPECT_EQ(wait_for_one(*reactor), 5000);
  EXPECT_TRUE(
      std::equal(arena.buffer(0).begin() + 8, arena.buffer(0).begin() + 5008, arena.buffer(1).begin() + 100));

  // Memory that was not registered still works, and so does what only begins within.
  Bytes outside(5000);
  reactor->read(op, fd.get(), outside, 0);
  EXPECT_EQ(wait_for_one(*reactor), 5000);
  EXPECT_TRUE(std::equal(outside.begin(), outside.end(), arena.buffer(1).begin() + 100));
}

// Direct writes to a new file are done by io-wq workers, which belong to the submitting thread, not to the
// ring.
TEST(UringReactor, NoWorkerOutlivesTheThreadOfTheRing) {
  SKIP_WITHOUT_URING();
  const test::TempDir dir;
  const std::size_t threads_before = test::thread_names().size();
  for (int round = 0; round < 5; ++round) {
    std::thread lane([&dir] {
      const StagingArena arena = std::move(StagingArena::make(kMiB, 4, -1)).value();
      auto reactor = std::move(UringReactor::make(4)).value();
      const UniqueFd fd(::openat(dir.fd(), "file", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600));
      const UniqueFd plain(fd ? -1
                              : ::openat(dir.fd(), "file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      std::array<Op, 4> ops;
      for (std::uint32_t i = 0; i < ops.size(); ++i) {
        reactor->write(ops[i], fd ? fd.get() : plain.get(), arena.buffer(i), i * kMiB);
      }
      while (reactor->in_flight() > 0) EXPECT_GT(wait_for_one(*reactor), 0);
    });
    lane.join();
    EXPECT_TRUE(test::threads_come_down_to(threads_before)) << "round " << round;
  }
}

// The poll is in the kernel before its timeout, which is refused.
TEST(UringReactor, APollWithoutMemoryForItsTimeoutIsNotWaitedForForEver) {
  SKIP_WITHOUT_URING();
  const auto reactor = std::move(UringReactor::make(2)).value();
  const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd always(::eventfd(1, EFD_CLOEXEC));
  std::array<Op, 2> ops;
  for (int round = 0; round < 3; ++round) {
    g_takes_one = true;
    reactor->poll_readable(ops[0], never.get(), std::chrono::hours(1));
    g_takes_one = false;
    EXPECT_EQ(wait_for_one(*reactor), -ENOMEM);
    g_takes_one = true;
    reactor->poll_readable(ops[0], always.get(), std::chrono::hours(1));
    g_takes_one = false;
    const std::int32_t result = wait_for_one(*reactor);
    EXPECT_TRUE(result == 0 || result == -ENOMEM) << result;
    reactor->poll_readable(ops[0], never.get(), std::chrono::milliseconds(1));
    reactor->poll_readable(ops[1], never.get(), std::chrono::milliseconds(1));
    EXPECT_EQ(wait_for_one(*reactor), -ETIME);
    EXPECT_EQ(wait_for_one(*reactor), -ETIME);
  }
}

TEST(UringReactor, ARingThatTakesNothingForAWhileIsNotBrokenWhileSomethingIsUnderWay) {
  SKIP_WITHOUT_URING();
  const auto reactor = std::move(UringReactor::make(2)).value();
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd zeros(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  Bytes memory(16);
  std::array<Op, 2> ops;
  reactor->poll_readable(ops[0], event.get(), std::chrono::hours(1));
  g_takes_none = 12'000;
  reactor->read(ops[1], zeros.get(), memory, 0);
  EXPECT_EQ(g_takes_none, 0U);
  EXPECT_EQ(wait_for_one(*reactor), 16);
  ASSERT_EQ(::eventfd_write(event.get(), 1), 0);
  EXPECT_EQ(wait_for_one(*reactor), 0);
}

// The kernel has never heard of what was asked: nothing completes, and whoever waits is told why.
TEST(UringReactor, ARingThatTakesNothingKeepsEveryOpAndSaysWhy) {
  SKIP_WITHOUT_URING();
  for (const int err : {EIO, EAGAIN, EBUSY}) {
    std::thread lane([err] {
      const auto reactor = std::move(UringReactor::make(8)).value();
      const UniqueFd zeros(::open("/dev/zero", O_RDWR | O_CLOEXEC));
      Bytes memory(16);
      std::array<Op, 5> ops;
      ASSERT_TRUE(test::refuse_system_call(__NR_io_uring_enter, static_cast<unsigned>(err)));
      reactor->read(ops[0], zeros.get(), memory, 0);
      reactor->write(ops[1], zeros.get(), memory, 0);
      reactor->sync_data(ops[2], zeros.get());
      reactor->poll_readable(ops[3], zeros.get(), std::chrono::seconds(1));
      reactor->post(ops[4], 7);
      std::array<Completion, 8> completions;
      for (int again = 0; again < 2; ++again) EXPECT_EQ(reactor->wait(completions).error().err, err);
      EXPECT_EQ(reactor->in_flight(), ops.size());
      EXPECT_TRUE(std::all_of(ops.begin(), ops.end(), [](const Op& op) { return op.in_flight; }));
    });
    lane.join();
  }
}

TEST(UringReactor, ARingThatBreaksEndsTheWait) {
  SKIP_WITHOUT_URING();
  std::thread lane([] {
    const auto reactor = std::move(UringReactor::make(4)).value();
    const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
    Op op;
    reactor->poll_readable(op, never.get(), std::chrono::hours(1));
    ASSERT_TRUE(test::refuse_system_call(__NR_io_uring_enter, EIO));
    std::array<Completion, 1> completions;
    EXPECT_EQ(reactor->wait(completions).error().err, EIO);
    EXPECT_TRUE(op.in_flight);
  });
  lane.join();
}

TEST(MakeReactor, PrefersIoUringWithoutANote) {
  SKIP_WITHOUT_URING();
  const StagingArena arena = std::move(StagingArena::make(kBufferAlignment, 1, -1)).value();
  std::string note;
  const auto reactor = make_reactor(4, arena.bytes(), note);
  ASSERT_TRUE(reactor.ok());
  EXPECT_NE(dynamic_cast<UringReactor*>(reactor->get()), nullptr);
  EXPECT_TRUE(note.empty() || note.find("registering") != std::string::npos) << note;
}

TEST(MakeReactor, WhereIoUringIsRefusedThreadsDoTheSame) {
  for (const std::uint32_t err : {EPERM, ENOSYS, ENOMEM}) {
    std::thread lane([err] {
      ASSERT_TRUE(test::refuse_system_call(__NR_io_uring_setup, err));
      std::string note;
      const auto reactor = make_reactor(4, {}, note);
      ASSERT_TRUE(reactor.ok());
      EXPECT_NE(dynamic_cast<ThreadReactor*>(reactor->get()), nullptr);
      EXPECT_NE(note.find(strerrordesc_np(static_cast<int>(err))), std::string::npos) << note;
      EXPECT_EQ(note.find('\n'), std::string::npos);
      Op op;
      (*reactor)->post(op, 7);
      EXPECT_EQ(wait_for_one(**reactor), 7);
    });
    lane.join();
  }
}

TEST(MakeReactor, WhereRegisteringIsRefusedPlainBuffersAreUsed) {
  SKIP_WITHOUT_URING();
  std::thread lane([] {
    const StagingArena arena = std::move(StagingArena::make(kBufferAlignment, 1, -1)).value();
    // Allows io_uring_setup and the probe, which is a registration too: refuse by its operation
    // (IORING_REGISTER_BUFFERS).
    std::array<sock_filter, 6> program{{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_register, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    }};
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    std::string note;
    const auto reactor = make_reactor(4, arena.bytes(), note);
    ASSERT_TRUE(reactor.ok());
    EXPECT_NE(dynamic_cast<UringReactor*>(reactor->get()), nullptr);
    EXPECT_NE(note.find("Cannot allocate memory"), std::string::npos) << note;

    const test::TempDir dir;
    const UniqueFd fd(::openat(dir.fd(), "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    Op op;
    (*reactor)->write(op, fd.get(), arena.buffer(0), 0);
    EXPECT_EQ(wait_for_one(**reactor), static_cast<std::int32_t>(kBufferAlignment));
  });
  lane.join();
}

}  // namespace
}  // namespace sluice
