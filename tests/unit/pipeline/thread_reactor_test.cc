// SPDX-License-Identifier: MIT
// What is the thread reactor's alone: a system that has no descriptor, no thread or no poll for it.
#include "pipeline/reactor/thread_reactor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <new>
#include <thread>

#include "base/unique_fd.h"
#include "support/failing_allocation.h"
#include "support/process_state.h"
#include "support/refuse_system_call.h"

namespace sluice {
namespace {

TEST(ThreadReactor, WithoutDescriptorsThereIsNone) {
  std::thread([] {
    ASSERT_TRUE(test::refuse_system_call(SYS_eventfd2, EMFILE));
    EXPECT_EQ(ThreadReactor::make(2, 4).error().err, EMFILE);
  }).join();
}

TEST(ThreadReactor, WithoutThreadsThereIsNone) {
  std::thread([] {
    ASSERT_TRUE(test::refuse_threads(EAGAIN));
    const std::size_t fds = test::open_fds();
    EXPECT_EQ(ThreadReactor::make(2, 4).error().err, EAGAIN);
    EXPECT_EQ(test::open_fds(), fds);
  }).join();
}

// Its maker is told; a thread that found none could only end the process.
TEST(ThreadReactor, WithoutMemoryThereIsNone) {
  const std::size_t threads = test::own_threads();
  bool all_tried = false;
  for (int nth = 0; !all_tried; ++nth) {
    SCOPED_TRACE(nth);
    bool made = false;
    test::failing_allocation().arm(nth);
    try {
      const auto reactor = ThreadReactor::make(2, 4);
      Op op;
      if (reactor.ok()) {  // its threads have begun when they have done something
        std::array<Completion, 1> completions;
        (*reactor)->sync_data(op, -1);
        EXPECT_TRUE((*reactor)->wait(completions).ok());
        (*reactor)->poll_readable(op, STDIN_FILENO, std::chrono::seconds(0));
        EXPECT_TRUE((*reactor)->wait(completions).ok());
      }
      all_tried = test::failing_allocation().disarm();
      made = reactor.ok();
    } catch (const std::bad_alloc&) {
    }
    EXPECT_EQ(made, all_tried);
    ASSERT_TRUE(test::own_threads_come_down_to(threads));
  }
}

// Threads inherit what their maker is refused.
TEST(ThreadReactor, APollThatIsRefusedCompletesWithItsErrno) {
  std::thread([] {
    ASSERT_TRUE(test::refuse_system_call(SYS_ppoll, ENOMEM));
    const auto reactor = std::move(ThreadReactor::make(1, 4)).value();
    const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
    Op op;
    reactor->poll_readable(op, never.get(), std::chrono::hours(1));
    std::array<Completion, 1> completions;
    ASSERT_EQ(reactor->wait(completions).value(), 1U);
    EXPECT_EQ(completions[0].result, -ENOMEM);
  }).join();
}

}  // namespace
}  // namespace sluice
