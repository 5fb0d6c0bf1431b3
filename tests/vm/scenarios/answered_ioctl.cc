// SPDX-License-Identifier: MIT
#include "answered_ioctl.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sync_file.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "criu.h"
#include "support/send_fds.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)  // Linux 5.19
#endif

namespace sluice::vm_test {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Of this thread, for ever: a descriptor that tells of its ioctls of this request.
UniqueFd watch_ioctl(std::uint32_t request) {
  std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(std::uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, request, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  // A call that this program knows of is not begun again because of a signal.
  constexpr unsigned long kFlags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
  UniqueFd calls(static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, kFlags, &filter)));
  if (!calls) fail("seccomp");
  return calls;
}

// The descriptor in a message.
UniqueFd receive_fd(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  int fd = -1;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != nullptr)
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return UniqueFd(fd);
}

// Waits until there is something to read. False: `end` is.
bool wait_for_one(int fd, int end) {
  std::array<pollfd, 2> both{{{fd, POLLIN, 0}, {end, POLLIN, 0}}};
  while (::poll(both.data(), both.size(), -1) < 0 && errno == EINTR) {
  }
  return both[1].revents == 0 && (both[0].revents & POLLIN) != 0;
}

bool peek(pid_t thread, std::uint64_t address, std::uint32_t* value) {
  const iovec here{value, sizeof *value}, there{reinterpret_cast<void*>(address), sizeof *value};
  return ::process_vm_readv(thread, &here, 1, &there, 1, 0) == sizeof *value;
}

bool poke(pid_t thread, std::uint64_t address, int value) {
  const iovec here{&value, sizeof value}, there{reinterpret_cast<void*>(address), sizeof value};
  return ::process_vm_writev(thread, &here, 1, &there, 1, 0) == sizeof value;
}

}  // namespace

AnsweredIoctl::AnsweredIoctl(std::uint32_t request, Answer answer)
    : request_(request), answer_(std::move(answer)), end_(::eventfd(0, EFD_CLOEXEC)) {
  std::array<int, 2> pair{};
  if (!end_ || ::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair.data()) != 0) fail("socketpair");
  ours_.reset(pair[0]);
  theirs_.reset(pair[1]);
  server_ = std::thread([this] { serve(); });
}

AnsweredIoctl::~AnsweredIoctl() {
  (void)::eventfd_write(end_.get(), 1);
  server_.join();
}

void AnsweredIoctl::watch_this_process() const {
  const UniqueFd calls = watch_ioctl(request_);
  const int fd = calls.get();
  const char byte = 0;
  if (test::send_with_fds(theirs_.get(), &byte, 1, {&fd, 1}) != 1) fail("sendmsg");
}

void AnsweredIoctl::serve() const {
  if (!wait_for_one(ours_.get(), end_.get())) return;
  const UniqueFd calls = receive_fd(ours_.get());
  while (calls && wait_for_one(calls.get(), end_.get())) {
    seccomp_notif call{};
    if (::ioctl(calls.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;  // its thread is gone
    const auto answer = answer_({static_cast<pid_t>(call.pid), call.data.args[2]});
    seccomp_notif_resp response{};
    response.id = call.id;
    response.error = answer.value_or(0);
    response.flags = answer ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    (void)::ioctl(calls.get(), SECCOMP_IOCTL_NOTIF_SEND, &response);
  }
}

AnsweredIoctl refused_criu_op(std::uint32_t op, int error, unsigned before) {
  return {kCriuOp, [op, error, left = before + 1](const AnsweredIoctl::Call& call) mutable {
            std::uint32_t asked = 0;
            const bool meant = peek(call.thread, call.argument + kOffsetOfOp, &asked) && asked == op;
            return meant && left > 0 && --left == 0 ? std::optional(-error) : std::nullopt;
          }};
}

AnsweredIoctl failed_fence(int error) {
  return {SYNC_IOC_FILE_INFO, [error, done = false](const AnsweredIoctl::Call& call) mutable {
            if (std::exchange(done, true)) return std::optional<int>();
            const bool told = poke(call.thread, call.argument + offsetof(sync_file_info, status), -error);
            return std::optional(told ? 0 : -EFAULT);
          }};
}

}  // namespace sluice::vm_test
