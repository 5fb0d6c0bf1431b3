// SPDX-License-Identifier: MIT
// What is the thread reactor's alone: a system that has no descriptor, no thread or no poll for it.
#include "pipeline/thread_reactor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "pipeline/unique_fd.h"
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
    ASSERT_TRUE(test::refuse_system_call(SYS_clone3, ENOSYS));  // the C library tries the older one then
    ASSERT_TRUE(test::refuse_system_call(SYS_clone, EAGAIN));
    const std::size_t fds = test::open_fds();
    EXPECT_EQ(ThreadReactor::make(2, 4).error().err, EAGAIN);
    EXPECT_EQ(test::open_fds(), fds);
  }).join();
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
