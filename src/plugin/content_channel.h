// SPDX-License-Identifier: MIT
// How a restored task hands its BOs to the content server: messages on SOCK_SEQPACKET sockets, file
// descriptors beside.
//
//   shared socket (in CRIU's fdstore):  Hello + 1 fd: the task's own channel
//   channel, task → server:             Request, then per GPU: GpuHeader, then its BOs in BoBatches of at
//   most 253 fds channel, server → task:             Reply
//
// Neither end waits for ever: a peer that stays silent for kPatience is taken for gone (a host whose
// POST_FORKING another plugin answered never starts the server; the task then restores itself).
//
// Both ends are the same binary in processes forked from each other, so plain structs travel. Yet nothing is
// believed: exact message sizes, bounded counts, a missing or surplus fd ends the channel. A socket of the
// task's own keeps messages of different tasks apart.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pipeline/result.h"
#include "pipeline/unique_fd.h"
#include "plugin/contents.h"

namespace sluice::plugin {

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

// Task: sends `request` and waits, at most `patience`, until the server took it. The request's dma-buf fds
// stay open: they are the caller's still if this fails. Errors: whatever the sockets gave (EAGAIN: patience
// ran out); the server's own error when it refused.
Result<void> hand_over(int shared_socket, const ContentRequest& request,
                       std::chrono::seconds patience = kPatience);

// Server: one pending Hello on the shared socket; returns the task's channel. EAGAIN when there is none.
Result<UniqueFd> accept_channel(int shared_socket);

// Server: reads a whole request. EBADMSG for anything that does not fit the protocol, ECONNRESET when the
// task died.
Result<ContentRequest> receive_request(int channel);

// Server: tells the task that its request was taken, or why not (`error`.err != 0).
Result<void> send_reply(int channel, const Error& error);

}  // namespace sluice::plugin
