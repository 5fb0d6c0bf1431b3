// SPDX-License-Identifier: MIT
#include "plugin/restore/server/content_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "base/format.h"

namespace sluice::plugin {

Result<std::unique_ptr<ContentServer>> ContentServer::make(const settings::Config& config, std::size_t lanes,
                                                           VramWatch& vram, ImageStore& store,
                                                           std::chrono::seconds patience,
                                                           ContentsWorld& world) {
  std::unique_ptr<ContentServer> server(new ContentServer(config, vram, store, patience, world));
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
  try {
    (void)join(nullptr);
  } catch (const std::bad_alloc&) {  // for messages; thread and jobs end with their owners
  }
}

void ContentServer::follow(const Chain& chain) {
  shared_.parents.chain = &chain;
  shared_.parents.directories = chain.directories();
}

Result<void> ContentServer::start() {
  auto thread = world_.start_thread("sluice-server", [this] { return serve(); });
  if (!thread) {
    turn_away();
    return thread.error();
  }
  thread_.emplace(std::move(*thread));
  return {};
}

Result<void> ContentServer::serve() {
  Result<void> failure;
  try {
    failure = hear_all();
  } catch (const std::bad_alloc&) {
    failure = Error{ENOMEM, "out of memory"};
  }
  for (Asking& asking : asking_) {
    try {
      give_up(asking, "it had not said all when the server ended");
    } catch (const std::bad_alloc&) {  // for messages about settled tasks
    }
  }
  asking_.clear();
  turn_away();
  return failure;
}

// Until the socket is shut down and all earlier requests are answered, or until the server fails. Contents
// that were handed over go on.
Result<void> ContentServer::hear_all() {
  std::vector<pollfd> files;
  for (bool open = true;;) {
    files.assign(1, {open ? socket_.get() : -1, POLLIN, 0});
    for (const Asking& asking : asking_) files.push_back({asking.channel.get(), POLLIN, 0});
    const std::optional<timespec> left = open ? time_left() : timespec{};
    const auto ready =
        TEMP_FAILURE_RETRY(ppoll(files.data(), files.size(), left ? &*left : nullptr, nullptr));
    if (ready < 0) return make_error(errno, "wait for what tasks ask");
    if (!open && ready == 0) return {};
    const std::uint64_t now_ns = world_.now_ns();
    for (std::size_t i = 0; i < asking_.size(); ++i) {
      if (files[i + 1].revents != 0) {
        hear(asking_[i]);
      } else if (now_ns >= asking_[i].deadline_ns) {
        give_up(asking_[i], "it was silent for too long");
      }
    }
    std::erase_if(asking_, [](const Asking& asking) { return !asking.channel; });
    if (files.front().revents != 0) {
      SLUICE_TRY_ASSIGN(open, take_hello());
    }
  }
}

// Nothing: no task is waited for.
std::optional<timespec> ContentServer::time_left() const {
  if (asking_.empty()) return std::nullopt;
  const auto first = std::min_element(asking_.begin(), asking_.end(), [](const Asking& a, const Asking& b) {
    return a.deadline_ns < b.deadline_ns;
  });
  const std::uint64_t now_ns = world_.now_ns();
  const auto left_ns = static_cast<std::int64_t>(first->deadline_ns - std::min(first->deadline_ns, now_ns));
  return timespec{left_ns / kNsPerSecond, left_ns % kNsPerSecond};
}

// False: there will be no more.
Result<bool> ContentServer::take_hello() {
  auto channel = accept_channel(socket_.get());
  if (channel) {
    const std::uint64_t now_ns = world_.now_ns();
    asking_.push_back({std::move(*channel), now_ns, now_ns + patience_ns_, {}, 0, nullptr});
    if (asking_.size() > kMostAsking) {
      give_up(asking_.front(), "too many others ask");
      asking_.erase(asking_.begin());
    }
    return true;
  }
  switch (channel.error().err) {
    case EBADMSG:
      warn(channel.error().what);
      return true;  // unreached: a race
    case EAGAIN:
      return true;  // unreached: a race
    case ECONNRESET:
      return false;
    default:
      return channel.error();
  }
}

// A task has sent a message, or has ended.
void ContentServer::hear(Asking& asking) {
  if (asking.job) return settle(asking);
  const auto whole = asking.reader.read(asking.channel.get());
  if (!whole) {
    warn_of_refusal(whole.error().what);
    (void)send_reply(asking.channel.get(), whole.error());  // a dead task needs no reply
    asking.channel.reset();
  } else if (*whole) {
    take_request(asking);
  }
}

// Until the Handover everything is the task's to handle.
void ContentServer::take_request(Asking& asking) {
  ContentRequest request = asking.reader.take();
  auto job =
      lanes_ + request.lanes.size() > kMostLanes
          ? make_error(E2BIG, "add another lane to the content server")
          : ContentsJob::restore(request.id, std::move(request.lanes), config_, request.dump_id, shared_);
  if (!job) {
    warn_of_refusal(job.error().what);
    (void)send_reply(asking.channel.get(), job.error());
    asking.channel.reset();
    return;
  }
  running_.reserve(running_.size() + asking_.size());  // for all that may be handed over
  asking.id = request.id;
  asking.job = std::move(*job);
  lanes_ += asking.job->lanes();
  if (!send_reply(asking.channel.get(), Error{0, {}})) return settle(asking);
  asking.deadline_ns = world_.now_ns() + patience_ns_;
}

// Contents that were handed over start, and from here on nothing may fail, because the task relies on it.
void ContentServer::settle(Asking& asking) {
  const UniqueFd channel = std::move(asking.channel);
  const auto handed = receive_handover(channel.get());
  if (!handed) {
    warn(formatted("a task did not hand its GPU memory to the content server: {} [SL-R36]",
                   handed.error().what));
    lanes_ -= asking.job->lanes();
    asking.job.reset();
    return;
  }
  asking.job->begin();
  running_.push_back({asking.id, asking.began_ns, std::move(asking.job)});
}

void ContentServer::give_up(Asking& asking, const char* why) {
  if (asking.job) return settle(asking);
  asking.channel.reset();
  warn_of_refusal(why);
}

void ContentServer::warn_of_refusal(const std::string& why) {
  warn(
      formatted("the content server refused a task, which restores its GPU memory itself: {} [SL-R37]", why));
}

// However many messages come, the number of lines is limited.
void ContentServer::warn(std::string text) {
  if (log_lines_.size() < kMostWarnings) log_lines_.push_back({Level::Warning, std::move(text)});
}

// A task that asks from now on, or has asked, learns at once that there is no server.
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
  const std::uint64_t joined_ns = world_.now_ns();
  if (thread_) {
    pollfd socket{socket_.get(), POLLRDHUP, 0};  // any holder of the tasks' end can shut it down
    const bool was_shut_down = poll(&socket, 1, 0) > 0 && socket.revents != 0;
    (void)shutdown(socket_.get(), SHUT_RDWR);
    Result<void> served = thread_->join();
    if (served && was_shut_down) served = make_error(ECONNRESET, "serve a socket that was shut down");
    if (!served)
      log_lines_.push_back(
          {Level::Warning,
           formatted("the content server failed, so tasks restored their GPU memory themselves: "
                     "{} [SL-R38]",
                     served.error().what)});
    thread_.reset();
  }
  // All jobs begin before any is waited for: with a stream, the next lane would ask for its files while the
  // first one runs.
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
