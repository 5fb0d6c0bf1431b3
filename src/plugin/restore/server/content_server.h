// SPDX-License-Identifier: MIT
// The content server: fills restored tasks' BOs from CRIU's main process while the tasks go on with their own
// memory.
//
// Made in init(RESTORE) on hosts whose fdstore works there (CRIU >= 4.2), started in POST_FORKING, joined by
// the first RESUME_DEVICES_LATE or by exit(). Its threads live only in between. Main process only; the tasks
// see its fdstore id.
//
// One thread serves all tasks at once and waits for none of them. A task with an incomplete request delays no
// other. It is dropped after a while, when there are too many, or at join(). By then a task that is still
// being restored has sent everything.
//
// Contents that a task has handed over (content_channel.h) are the server's, and their failure fails the
// restore. An error before that does not: the task restores itself, and the server has not touched its BOs.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "pipeline/lane_thread.h"
#include "plugin/contents/contents_job.h"
#include "plugin/contents/stats.h"
#include "plugin/restore/server/content_channel.h"

namespace sluice::plugin {

inline constexpr std::size_t kMostWarnings = 64;  // that a server logs
inline constexpr std::size_t kMostAsking = 64;    // tasks served at a time
// Running, or about to: each is a thread of CRIU's main process until it is joined. Later tasks restore their
// memory themselves.
inline constexpr std::size_t kMostLanes = 1024;

class ContentServer {
 public:
  // Puts the tasks' end of the socket into the host's fdstore. Starts no thread. Errors: socketpair's; EIO if
  // the fdstore refuses.
  // `lanes`: the number that all tasks together will request. `vram`, `store` and `world` are borrowed.
  // `patience`: for a task's whole request, and again for its handover.
  static Result<std::unique_ptr<ContentServer>> make(const settings::Config& config, std::size_t lanes,
                                                     VramWatch& vram, ImageStore& store,
                                                     std::chrono::seconds patience = kPatience,
                                                     ContentsWorld& world = ContentsWorld::real());
  ~ContentServer();  // cancels whatever runs and joins

  int fdstore_id() const { return fdstore_id_; }

  // Reads contents that lie in a parent along this chain, opened by this process; borrowed. Before start().
  void follow(const Chain& chain);
  // Reads these pages files for several lanes at once. Before start().
  void share(ReadBySeveral files) {
    shared_.read_by_several = std::move(files);
    shared_.readers = std::make_unique<SharedReaders>();
  }

  // Starts to take requests. Error: EAGAIN (threads); then tasks are turned away and restore themselves.
  Result<void> start();

  // Takes no further requests, waits for all contents that were handed over and returns the first error of
  // any. Further calls return the same at once. `report`: see ContentsJob::wait.
  Result<void> join(const std::function<void(const std::string&)>& report);

  // Makes running contents fail with ECANCELED. Main thread, before join().
  void cancel() { cancelled_ = true; }

  // After join(): outcomes per file id, and queued log lines.
  struct Finished {
    int id = 0;
    std::vector<GpuOutcome> gpus;
    FileTimes times;
  };
  std::vector<Finished> take_finished() { return std::exchange(finished_, {}); }
  LogLines take_log_lines() { return std::exchange(log_lines_, {}); }

 private:
  struct Running {
    int id = 0;
    std::uint64_t began_ns = 0;
    std::unique_ptr<ContentsJob> job;
  };
  // A task from its Hello to its Handover. Without a channel it is finished.
  struct Asking {
    UniqueFd channel;
    std::uint64_t began_ns = 0;
    std::uint64_t deadline_ns = 0;
    RequestReader reader;
    int id = 0;
    std::unique_ptr<ContentsJob> job;  // set once the request is complete: the Handover begins it
  };
  ContentServer(const settings::Config& config, VramWatch& vram, ImageStore& store,
                std::chrono::nanoseconds patience, ContentsWorld& world)
      : config_(config),
        world_(world),
        patience_ns_(static_cast<std::uint64_t>(patience.count())),
        shared_(vram, store, world) {}
  Result<void> serve();
  Result<void> hear_all();
  Result<bool> take_hello();
  void hear(Asking& asking);
  void take_request(Asking& asking);
  void settle(Asking& asking);
  void give_up(Asking& asking, const char* why);
  std::optional<timespec> time_left() const;
  void turn_away();
  void warn_of_refusal(const std::string& why);
  void warn(std::string text);

  settings::Config config_;
  ContentsWorld& world_;
  std::uint64_t patience_ns_;
  SharedByJobs shared_;
  int fdstore_id_ = -1;
  UniqueFd socket_;               // shut down: no further request
  std::vector<Asking> asking_;    // oldest first; the server thread's
  std::vector<Running> running_;  // running; the server thread's until it was joined
  std::size_t lanes_ = 0;         // lanes of these and of the asking tasks; the server thread's
  std::atomic<bool> cancelled_{false};
  bool joined_ = false;
  Result<void> outcome_;
  std::vector<Finished> finished_;
  LogLines log_lines_;
  std::optional<LaneThread> thread_;  // last: ends before everything it uses, whatever join() returned
};

}  // namespace sluice::plugin
