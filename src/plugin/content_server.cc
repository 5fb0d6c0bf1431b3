// SPDX-License-Identifier: MIT
#include "plugin/content_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace sluice::plugin {

Result<std::unique_ptr<ContentServer>> ContentServer::make(const Config& config, std::size_t lanes) {
  std::unique_ptr<ContentServer> server(new ContentServer(config));
  server->shared_.lanes = lanes;
  SLUICE_TRY_ASSIGN(auto pair, make_content_sockets());
  server->socket_ = std::move(pair.first);
  server->stop_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->stop_) return make_error(errno, "eventfd for the content server");
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
  SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("sluice-server", [this] { return serve(); }));
  thread_.emplace(std::move(thread));
  return {};
}

Result<void> ContentServer::serve() {
  std::array<pollfd, 2> sources{pollfd{socket_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
  for (;;) {
    if (TEMP_FAILURE_RETRY(poll(sources.data(), sources.size(), -1)) < 0)
      return make_error(errno, "poll of the content server");
    // Requests first: a task that got its reply is always served, whatever the order of events.
    if ((sources[0].revents & POLLIN) != 0) {
      SLUICE_TRY(take_request());
    } else if (sources[1].revents != 0 || sources[0].revents != 0) {
      return {};
    }
  }
}

// One task's request. What goes wrong with the channel or the start is the task's to handle (it restores
// itself); contents that fail later are the server's.
Result<void> ContentServer::take_request() {
  auto channel = accept_channel(socket_.get());
  if (!channel) {
    if (channel.error().err == EAGAIN) return {};
    log_lines_.push_back({Level::Warning, channel.error().what});
    return {};
  }
  auto request = receive_request(channel->get());
  Error answer{0, {}};
  if (!request) {
    answer = request.error();
  } else {
    const std::int64_t began_ns = monotonic_ns();
    auto job = ContentsJob::restore(image_dir_, request->id, std::move(request->gpus), config_,
                                    request->dump_id, shared_);
    if (job) {
      running_.push_back({request->id, began_ns, std::move(*job)});
    } else {
      answer = job.error();
    }
  }
  if (answer.err != 0)
    log_lines_.push_back({Level::Warning, "the content server refused a task: " + answer.what});
  if (auto sent = send_reply(channel->get(), answer); !sent) {
    log_lines_.push_back(
        {Level::Warning, "a task did not take the content server's reply: " + sent.error().what});
    if (answer.err == 0) running_.back().job->cancel();  // it will not know, and restores itself or dies
  }
  return {};
}

Result<void> ContentServer::join(const std::function<void(const std::string&)>& report) {
  if (joined_) return outcome_;
  joined_ = true;
  const std::int64_t joined_ns = monotonic_ns();
  if (thread_) {
    const std::uint64_t one = 1;
    if (TEMP_FAILURE_RETRY(write(stop_.get(), &one, sizeof one)) != sizeof one) {
      outcome_ =
          make_error(errno, "stop the content server");  // an eventfd write of 1 cannot fail; said if it does
    }
    if (auto served = thread_->join(); !served && outcome_) outcome_ = served;
    thread_.reset();
  }
  for (Running& running : running_) {
    if (cancelled_) running.job->cancel();
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
