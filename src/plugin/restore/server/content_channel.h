// SPDX-License-Identifier: MIT
// How a restored task hands its BOs to the content server: messages on SOCK_SEQPACKET sockets, with file
// descriptors.
//
//   shared socket (in CRIU's fdstore):  Hello + 1 fd: the task's own channel
//   channel, task → server:             Request, then per GPU: GpuHeader, then its BOs in BoBatches of at
//                                       most 253 fds
//   channel, server → task:             Reply
//   channel, task → server:             Handover, after a good reply: from here on the contents are the
//                                       server's
//
// A BO has one writer. The server touches no BO before the Handover. A task that could not send it restores
// itself; after sending it, it never does.
//
// A task waits for at most kPatience. If another plugin answers POST_FORKING, the host never starts the
// server, and the task restores itself. The server's calls never wait, because it shares the sockets, and any
// holder could change their timeouts. It polls (content_server.h).
//
// Both ends are the same binary in processes forked from each other, so messages are plain structs. Still
// nothing is trusted: message sizes must match, counts are bounded, and a missing or surplus fd ends the
// channel. Each task has its own socket, so messages of different tasks do not mix.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/contents/contents_job.h"

namespace sluice::plugin {

// "slice-05": begins every message except those of BOs; changes whenever a message does.
inline constexpr std::uint64_t kChannelMagic = 0x35302d6563696c73;
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr std::size_t kFdsPerMessage = 253;  // SCM_MAX_FD of Linux
inline constexpr std::uint32_t kMostGpus = 64;
inline constexpr std::uint32_t kMostBos = 1U << 20;

// A task's request: the contents of one open file.
struct ContentRequest {
  int id = 0;  // CRIU's file id: names the images
  DumpId dump_id{};
  std::vector<LaneContents> lanes;
};

// Makes the pair shared by the server (first) and the tasks (second, through fdstore). Both are
// close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> make_content_sockets();

// Task: sends `request`, waits for the server's consent for at most `patience`, and hands the contents over.
// The request's dma-buf fds stay open: they and the contents remain the caller's if this fails. Errors: the
// sockets' (EAGAIN: patience ran out); the server's own error if it refused.
Result<void> hand_over(int shared_socket, const ContentRequest& request,
                       std::chrono::seconds patience = kPatience);

// Server: takes a Hello from the shared socket; returns the task's channel. ECONNRESET if the socket was shut
// down and nothing is pending; EBADMSG for a message that is no Hello, or without a channel; EAGAIN if there
// is none.
Result<UniqueFd> accept_channel(int shared_socket);

// Server: assembles a task's request, message by message.
class RequestReader {
 public:
  // Takes the next message; returns whether the request is complete. Must not be called again then, nor after
  // an error: EBADMSG for anything that violates the protocol, ECONNRESET if the task died, EAGAIN if there
  // is none.
  Result<bool> read(int channel);
  ContentRequest take() { return std::move(request_); }

 private:
  Result<void> read_head(int channel);
  Result<void> read_gpu(int channel);
  Result<void> read_bos(int channel);

  ContentRequest request_;
  bool has_head_ = false;
  std::uint32_t gpus_left_ = 0;
  std::uint64_t bos_left_ = 0;  // of the last GPU
};

// Server: tells the task that its request is accepted, or why not (`error`.err != 0). EAGAIN if the socket is
// full, which it never is for a task that only asks.
Result<void> send_reply(int channel, const Error& error);

// Server, after a good reply: takes the Handover. If it is not there, it never will be: the task restores
// itself, or is dead. Needs no memory before that is settled. Errors: ECONNRESET, EBADMSG.
Result<void> receive_handover(int channel);

}  // namespace sluice::plugin
