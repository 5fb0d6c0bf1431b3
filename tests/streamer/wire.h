// SPDX-License-Identifier: MIT
// The protocol between CRIU and an image streamer, both ends (facts: criu/img-streamer.c of v3.17.1 to
// criu-dev, criu-image-streamer 1.0.0). One stream socket for the whole tree, one request at a time:
//
//   CRIU → streamer   u32 length, img_streamer_request_entry {1: filename}
//   streamer → CRIU   u32 length, img_streamer_reply_entry {1: exists}          restore only
//   CRIU → streamer   one byte, and beside it the streamer's end of a new pipe  unless it does not exist
//
// Lengths are little endian. Nothing here is thread-safe; results are -errno.
#pragma once

#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace sluice::streamer {

inline constexpr const char* kCaptureSocket = "streamer-capture.sock";
inline constexpr const char* kServeSocket = "streamer-serve.sock";

// ---- CRIU's end

// Connects to `name` in the directory. An empty fd: errno says why.
UniqueFd connect_to(const std::string& directory, const char* name);

// A new pipe for `file`: the end that CRIU keeps (writes on dump, reads on restore), blocking, not
// close-on-exec, of the default size. -ENOENT: the streamer has no such file.
int open_stream(int socket, const std::string& file, bool dump);

// ---- the streamer's end

// Listens as `name` in the directory. Empty fds: errno says why.
UniqueFd listen_in(const std::string& directory, const char* name);
// The one who connects.
UniqueFd accept_from(int listener);

// The next file asked for. Nothing: the connection is closed, or what came is no request (`broken`).
std::optional<std::string> next_request(int socket, bool* broken);
int answer(int socket, bool exists);
// The pipe that comes with a request.
UniqueFd receive_pipe(int socket);

}  // namespace sluice::streamer
