// SPDX-License-Identifier: MIT
#include "plugin/restore/server/content_channel.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sluice::plugin {

namespace {

constexpr std::size_t kReplyText = 512;

struct HelloWire {
  std::uint64_t magic = kChannelMagic;
};

struct RequestWire {
  std::uint64_t magic = kChannelMagic;
  std::int32_t id = 0;
  std::uint32_t gpus = 0;
  DumpId dump_id{};
};

constexpr std::uint32_t kNoMinor = UINT32_MAX;

struct LaneWire {
  std::uint32_t gpu_id = 0;
  std::uint32_t render_minor = 0;
  std::int32_t numa_node = -1;
  std::uint32_t sharers = 1;
  std::uint32_t drm_minor = kNoMinor;
  std::uint32_t has_sums = 0;
  std::uint64_t bos = 0;
  Sum128 bo_table_digest{};
};

struct BoWire {
  std::uint64_t bytes = 0;
  std::uint64_t va = 0;
  std::uint32_t number = 0;
  std::uint32_t padding = 0;
};

struct BatchWire {
  std::uint64_t count = 0;
  std::array<BoWire, kFdsPerMessage> bos{};
};

struct ReplyWire {
  std::uint64_t magic = kChannelMagic;
  std::int32_t err = 0;
  std::array<char, kReplyText> text{};
};

struct HandoverWire {
  std::uint64_t magic = kChannelMagic;
};

// Sends one message with `fds` beside it. MSG_NOSIGNAL: a dead peer is an error, not a SIGPIPE. `flags`:
// MSG_DONTWAIT, or none.
Result<void> send_message(int socket, const void* bytes, std::size_t length, std::span<const int> fds,
                          int flags = 0) {
  iovec part{const_cast<void*>(bytes), length};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsPerMessage * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  const ssize_t sent = TEMP_FAILURE_RETRY(sendmsg(socket, &message, MSG_NOSIGNAL | flags));
  if (sent < 0) return make_error(errno, "send to the content channel");
  // unreached: a guard
  if (static_cast<std::size_t>(sent) != length) return make_error(EMSGSIZE, "send to the content channel");
  return {};
}

// Whether no more messages can come, except empty ones. A socket that is shut down accepts no new ones.
bool has_ended(int socket) {
  pollfd ended{socket, POLLRDHUP, 0};
  if (TEMP_FAILURE_RETRY(poll(&ended, 1, 0)) == 0) return false;
  int pending_bytes = 0;
  return ioctl(socket, FIONREAD, &pending_bytes) != 0 || pending_bytes == 0;
}

// Receives one message of exactly `length` bytes and exactly `fd_count` fds. Anything else is EBADMSG,
// including an empty message, which looks like the end. `flags`: MSG_DONTWAIT, or none.
Result<std::vector<UniqueFd>> receive_message(int socket, void* bytes, std::size_t length,
                                              std::size_t fd_count, int flags) {
  iovec part{bytes, length};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsPerMessage * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  std::vector<UniqueFd> fds;
  fds.reserve(kFdsPerMessage);  // before any exist that would have no owner
  const ssize_t got = TEMP_FAILURE_RETRY(recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags));
  if (got < 0) return make_error(errno, "receive from the content channel");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;  // unreached: a guard
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (got == 0 && has_ended(socket))
    return make_error(ECONNRESET, "the other end of the content channel is gone");
  if (static_cast<std::size_t>(got) != length || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      fds.size() != fd_count) {
    return make_error(
        EBADMSG,
        "receive a message of the right size from the content channel, which a low limit of open files "
        "cuts");
  }
  return fds;
}

// Limits every later wait on `socket`, in both directions.
Result<void> set_patience(int socket, std::chrono::seconds patience) {
  const timeval limit{static_cast<time_t>(patience.count()), 0};
  if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
      setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
    return make_error(errno, "bound the waits on the content channel");
  }
  return {};
}

// Whether the fd is a socket as make_content_sockets() makes it.
bool is_content_socket(int fd) {
  const auto is = [fd](int option, int wanted) {
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &length) == 0 && value == wanted;
  };
  return is(SO_DOMAIN, AF_UNIX) && is(SO_TYPE, SOCK_SEQPACKET);
}

template <class Message>
Result<void> receive_plain(int socket, Message& message, int flags) {
  SLUICE_TRY(receive_message(socket, &message, sizeof message, 0, flags));
  return {};
}

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> make_content_sockets() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return make_error(errno, "socketpair for the content server");
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

Result<void> hand_over(int shared_socket, const ContentRequest& request, std::chrono::seconds patience) {
  SLUICE_TRY(set_patience(shared_socket, patience));  // its queue may be full
  SLUICE_TRY_ASSIGN(auto pair, make_content_sockets());
  const UniqueFd channel = std::move(pair.first);
  SLUICE_TRY(set_patience(channel.get(), patience));
  {
    const UniqueFd servers =
        std::move(pair.second);  // closed here once sent: then the server's death is noticed
    const int fd = servers.get();
    const HelloWire hello;
    SLUICE_TRY(send_message(shared_socket, &hello, sizeof hello, {&fd, 1}));
  }
  RequestWire head;
  head.id = request.id;
  head.gpus = static_cast<std::uint32_t>(request.lanes.size());
  head.dump_id = request.dump_id;
  SLUICE_TRY(send_message(channel.get(), &head, sizeof head, {}));
  for (const LaneContents& lane : request.lanes) {
    const PagesSet& pages = lane.pages;
    const LaneWire header{pages.gpu_id,
                          lane.render_minor,
                          lane.numa_node,
                          lane.sharers,
                          pages.drm_minor.value_or(kNoMinor),
                          pages.has_sums,
                          pages.bos.size(),
                          pages.bo_table_digest};
    SLUICE_TRY(send_message(channel.get(), &header, sizeof header, {}));
    for (std::size_t at = 0; at < pages.bos.size();) {
      BatchWire batch;
      std::array<int, kFdsPerMessage> fds{};
      for (; batch.count < kFdsPerMessage && at < pages.bos.size(); ++at, ++batch.count) {
        batch.bos[batch.count] = {pages.bos[at].bytes, pages.bos[at].va, pages.bos[at].number, 0};
        fds[batch.count] = lane.dmabufs[at].get();
      }
      SLUICE_TRY(send_message(channel.get(), &batch, sizeof batch,
                              {fds.data(), static_cast<std::size_t>(batch.count)}));
    }
  }
  ReplyWire reply;
  SLUICE_TRY(receive_plain(channel.get(), reply, 0));
  reply.text.back() = '\0';
  if (reply.magic != kChannelMagic || reply.err < 0)
    return make_error(EBADMSG, "the content server's reply is garbled");
  if (reply.err != 0) return Error{reply.err, reply.text.data()};
  const HandoverWire handover;
  return send_message(channel.get(), &handover, sizeof handover, {});
}

Result<UniqueFd> accept_channel(int shared_socket) {
  HelloWire hello{0};
  SLUICE_TRY_ASSIGN(std::vector<UniqueFd> fds,
                    receive_message(shared_socket, &hello, sizeof hello, 1, MSG_DONTWAIT));
  if (hello.magic != kChannelMagic || !is_content_socket(fds.front().get()))
    return make_error(EBADMSG, "a hello on the content socket is not of this plugin");
  return std::move(fds.front());
}

Result<bool> RequestReader::read(int channel) {
  if (!has_head_) {
    SLUICE_TRY(read_head(channel));
  } else if (bos_left_ == 0) {
    SLUICE_TRY(read_gpu(channel));
  } else {
    SLUICE_TRY(read_bos(channel));
  }
  return gpus_left_ == 0 && bos_left_ == 0;
}

Result<void> RequestReader::read_head(int channel) {
  RequestWire head;
  SLUICE_TRY(receive_plain(channel, head, MSG_DONTWAIT));
  if (head.magic != kChannelMagic || head.gpus > kMostGpus)
    return make_error(EBADMSG, "a content request is not of this plugin");
  has_head_ = true;
  request_.id = head.id;
  request_.dump_id = head.dump_id;
  gpus_left_ = head.gpus;
  return {};
}

Result<void> RequestReader::read_gpu(int channel) {
  LaneWire header;
  SLUICE_TRY(receive_plain(channel, header, MSG_DONTWAIT));
  if (header.bos == 0) return make_error(EBADMSG, "a content request names a GPU without BOs");
  if (header.bos > kMostBos) return make_error(EBADMSG, "a content request names too many BOs");
  LaneContents& lane = request_.lanes.emplace_back();
  lane.render_minor = header.render_minor;
  lane.numa_node = header.numa_node;
  lane.sharers = header.sharers;
  lane.pages.gpu_id = header.gpu_id;
  if (header.drm_minor != kNoMinor) lane.pages.drm_minor = header.drm_minor;
  lane.pages.bo_table_digest = header.bo_table_digest;
  lane.pages.has_sums = header.has_sums != 0;
  --gpus_left_;
  bos_left_ = header.bos;
  return {};
}

Result<void> RequestReader::read_bos(int channel) {
  BatchWire batch;
  const std::size_t expected = std::min<std::size_t>(kFdsPerMessage, bos_left_);
  SLUICE_TRY_ASSIGN(std::vector<UniqueFd> fds,
                    receive_message(channel, &batch, sizeof batch, expected, MSG_DONTWAIT));
  if (batch.count != expected) return make_error(EBADMSG, "a batch of BOs has the wrong count");
  for (std::size_t i = 0; i < expected; ++i) {
    const BoWire& bo = batch.bos[i];
    request_.lanes.back().pages.bos.push_back({bo.bytes, bo.va, bo.number});
    request_.lanes.back().dmabufs.push_back(std::move(fds[i]));
  }
  bos_left_ -= expected;
  return {};
}

Result<void> send_reply(int channel, const Error& error) {
  ReplyWire reply;
  reply.err = error.err;
  error.what.copy(reply.text.data(), reply.text.size() - 1);
  return send_message(channel, &reply, sizeof reply, {}, MSG_DONTWAIT);
}

Result<void> receive_handover(int channel) {
  HandoverWire handover{0};
  const auto receive = [&] {
    return TEMP_FAILURE_RETRY(recv(channel, &handover, sizeof handover, MSG_TRUNC | MSG_DONTWAIT)) ==
           sizeof handover;
  };
  if (!receive()) {
    // A Handover from now on is refused: the task learns that it is too late. One sent before can be
    // received.
    (void)shutdown(channel, SHUT_RDWR);
    if (!receive()) return make_error(ECONNRESET, "wait for a task that restores itself, or is dead");
  }
  if (handover.magic != kChannelMagic) return make_error(EBADMSG, "a handover is not of this plugin");
  return {};
}

}  // namespace sluice::plugin
