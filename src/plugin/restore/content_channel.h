// SPDX-License-Identifier: MIT
// How a restored task hands its BOs to the content server: messages on SOCK_SEQPACKET sockets, file
// descriptors beside.
//
//   shared socket (in CRIU's fdstore):  Hello + 1 fd: the task's own channel
//   channel, task → server:             Request, then per GPU: GpuHeader, then its BOs in BoBatches of at
//                                       most 253 fds
//   channel, server → task:             Reply
//   channel, task → server:             Handover, after a good reply: the contents are the server's from here
//                                       on
//
// A BO has one writer. The server touches none before it has the Handover; a task that could not send it
// restores itself, and after one that was sent it never does.
//
// A task waits for kPatience at most (a host whose POST_FORKING another plugin answered never starts the
// server; the task then restores itself). The server's calls never wait: the sockets are not its alone, and
// what they are told of patience anybody could change. It polls (content_server.h).
//
// Both ends are the same binary in processes forked from each other, so plain structs travel. Yet nothing is
// believed: exact message sizes, bounded counts, a missing or surplus fd ends the channel. A socket of the
// task's own keeps messages of different tasks apart.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/contents/contents.h"

namespace sluice::plugin {

// "slice-05": begins each message but those of BOs, and changes with every change of one.
inline constexpr std::uint64_t kChannelMagic = 0x35302d6563696c73;
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr std::size_t kFdsPerMessage = 253;  // SCM_MAX_FD of Linux
inline constexpr std::uint32_t kMostGpus = 64;
inline constexpr std::uint32_t kMostBos = 1U << 20;

// What a task asks for: the contents of one open file.
struct ContentRequest {
  int id = 0;  // CRIU's file id: names the images
  DumpId dump_id{};
  std::vector<GpuContents> gpus;
};

// Makes the pair that the server (first) and the tasks (second, through fdstore) share. Both are
// close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> make_content_sockets();

// Task: sends `request`, waits, at most `patience`, until the server would take it, and hands it over. The
// request's dma-buf fds stay open: they, and the contents, are the caller's still if this fails. Errors:
// whatever the sockets gave (EAGAIN: patience ran out); the server's own error when it refused.
Result<void> hand_over(int shared_socket, const ContentRequest& request,
                       std::chrono::seconds patience = kPatience);

// Server: takes a Hello from the shared socket; returns the task's channel. ECONNRESET when the socket was
// shut down and nothing is pending any more; EBADMSG for a message that is no Hello, or has not a channel
// beside it; EAGAIN when there is none.
Result<UniqueFd> accept_channel(int shared_socket);

// Server: puts a task's request together, message by message.
class RequestReader {
 public:
  // Takes the next message; whether the request is whole with it. Not to be called again then, nor after an
  // error: EBADMSG for anything that does not fit the protocol, ECONNRESET when the task died, EAGAIN when
  // there is none.
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

// Server: tells the task that its request would be taken, or why not (`error`.err != 0). EAGAIN where there
// is no room, as there always is for a task that only asks.
Result<void> send_reply(int channel, const Error& error);

// Server, after a good reply: takes the Handover. If it is not there, there is none and never will be: the
// task restores itself, or is dead. Needs no memory before that is settled. Errors: ECONNRESET, EBADMSG.
Result<void> receive_handover(int channel);

}  // namespace sluice::plugin
