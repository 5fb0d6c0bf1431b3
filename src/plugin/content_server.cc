// SPDX-License-Identifier: MIT
#include "plugin/content_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>

namespace sluice::plugin {

Result<std::unique_ptr<ContentServer>> ContentServer::make(const Config& config, std::size_t lanes) {
  std::unique_ptr<ContentServer> server(new ContentServer(config));
  server->shared_.lanes = lanes;
  SLUICE_TRY_ASSIGN(auto pair, make_content_sockets());
  server->socket_ = std::move(pair.first);
  server->fdstore_id_ = fdstore_add(pair.second.get());
  if (server->fdstore_id_ < 0)
    return make_error(EIO, "CRIU's fdstore did not take the content server's socket");
  return server;
}

ContentServer::~ContentServer() {
  cancel();
  (void)join(nullptr);
}

Result<void> ContentServer::start(int image_dir) {
  image_dir_ = image_dir;
  auto thread = LaneThread::start("sluice-server", [this] { return serve(); });
  if (!thread) {
    turn_away();
    return thread.error();
  }
  thread_.emplace(std::move(*thread));
  return {};
}

// Until the socket is shut down and all that was sent before is answered, or until it fails. What was handed
// over by then goes on.
Result<void> ContentServer::serve() {
  Result<void> failure;
  for (;;) {
    try {
      auto channel = accept_channel(socket_.get());
      if (channel) {
        take_request(std::move(*channel));
      } else if (channel.error().err == EBADMSG) {
        warn(channel.error().what);
      } else {
        if (channel.error().err != ECONNRESET) failure = channel.error();
        break;
      }
    } catch (const std::bad_alloc&) {  // before a handover: the task sees its channel close
      failure = Error{ENOMEM, "out of memory"};
      break;
    }
  }
  turn_away();
  return failure;
}

// One task's request. Until it is handed over all is the task's to handle.
void ContentServer::take_request(UniqueFd channel) {
  const std::int64_t began_ns = monotonic_ns();
  auto request = receive_request(channel.get());
  auto job = request ? ContentsJob::restore(image_dir_, request->id, std::move(request->gpus), config_,
                                            request->dump_id, shared_)
                     : Result<std::unique_ptr<ContentsJob>>(request.error());
  if (!job) {
    warn("the content server refused a task: " + job.error().what);
    (void)send_reply(channel.get(), job.error());  // a task that is gone needs none
    return;
  }
  running_.reserve(running_.size() + 1);
  Result<void> taken = send_reply(channel.get(), Error{0, {}});
  if (taken) taken = receive_handover(channel.get());
  if (!taken) {
    warn("a task did not hand its GPU memory to the content server: " + taken.error().what);
    return;
  }
  // Nothing fails from here on: the task goes on and counts on it.
  (*job)->begin();
  running_.push_back({request->id, began_ns, std::move(*job)});
}

// However many messages come, there are not more lines than anybody would read.
void ContentServer::warn(std::string text) {
  if (log_lines_.size() < kMostWarnings) log_lines_.push_back({Level::Warning, std::move(text)});
}

// Who asks from now on learns at once that there is no server, and who has asked, too.
void ContentServer::turn_away() {
  (void)shutdown(socket_.get(), SHUT_RDWR);
  for (;;) {
    const auto channel = accept_channel(socket_.get());
    if (!channel && channel.error().err != EBADMSG) return;
  }
}

Result<void> ContentServer::join(const std::function<void(const std::string&)>& report) {
  if (joined_) return outcome_;
  joined_ = true;
  const std::int64_t joined_ns = monotonic_ns();
  if (thread_) {
    pollfd socket{socket_.get(), POLLRDHUP, 0};  // whoever has the tasks' end can shut it down
    const bool was_shut_down = poll(&socket, 1, 0) > 0 && socket.revents != 0;
    (void)shutdown(socket_.get(), SHUT_RDWR);
    Result<void> served = thread_->join();
    if (served && was_shut_down) served = Error{ECONNRESET, "somebody has shut its socket down"};
    if (!served)
      log_lines_.push_back({Level::Warning, "the content server failed, and tasks restored themselves: " +
                                                served.error().what});
    thread_.reset();
  }
  // All before any is waited for: of a stream, the next lane would ask for its files while the first one is.
  for (Running& running : running_) {
    if (cancelled_) running.job->cancel();
  }
  for (Running& running : running_) {
    auto result = running.job->wait(report);
    if (!result && outcome_) {
      outcome_ = result;
      for (Running& other : running_) other.job->cancel();
    }
    for (LogLine& line : running.job->take_log_lines()) log_lines_.push_back(std::move(line));
    FileTimes times{running.began_ns, joined_ns, running.began_ns};
    for (const GpuOutcome& gpu : running.job->outcomes())
      times.ended_ns = std::max(times.ended_ns, gpu.ended_ns);
    finished_.push_back({running.id, running.job->outcomes(), times});
  }
  running_.clear();
  return outcome_;
}

}  // namespace sluice::plugin
