// SPDX-License-Identifier: MIT
// The content server: fills restored tasks' BOs from CRIU's main process while the tasks go on with their own
// memory.
//
// Made in init(RESTORE) on hosts whose fdstore works there (CRIU >= 4.2), started in POST_FORKING, joined by
// the first RESUME_DEVICES_LATE or by exit(). Its threads live only in between. Main process only; the tasks
// see its fdstore id.
//
// One thread hears all tasks side by side and waits for none of them. Who says nothing, or not all, keeps
// nobody else waiting, and is given up: after a while, when too many are heard, or at join(), for whoever is
// still restored then has said what he had to say.
//
// What a task has handed over (content_channel.h) is the server's, and its failure the restore's. Whatever
// goes wrong before that is no failure of the restore: the task restores itself, and the server has not
// touched its BOs.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "pipeline/lane_thread.h"
#include "plugin/contents/contents.h"
#include "plugin/contents/stats.h"
#include "plugin/restore/content_channel.h"

namespace sluice::plugin {

inline constexpr std::size_t kMostWarnings = 64;  // that a server says
inline constexpr std::size_t kMostAsking = 64;    // tasks that are heard at a time
// Begun, or about to be: each is a thread of CRIU's main process until it is joined. Whoever comes later
// restores its memory itself.
inline constexpr std::size_t kMostLanes = 1024;

class ContentServer {
 public:
  // Puts the tasks' end of the socket into the host's fdstore. Starts no thread. Errors: socketpair's; EIO
  // when the fdstore refuses.
  // `lanes`: that all tasks together will ask for. `vram` and `world` are borrowed. `patience`: for a task's
  // whole request, and again for its handover.
  static Result<std::unique_ptr<ContentServer>> make(const Config& config, std::size_t lanes, VramWatch& vram,
                                                     std::chrono::seconds patience = kPatience,
                                                     ContentsWorld& world = ContentsWorld::real());
  ~ContentServer();  // cancels whatever runs and joins

  int fdstore_id() const { return fdstore_id_; }

  // Begins to take requests. `image_dir` is borrowed until join(). Error: EAGAIN (threads); tasks are turned
  // away then, and restore themselves.
  Result<void> start(int image_dir);

  // Takes no further request, waits for all contents that were handed over and returns the first error of
  // any. Further calls return the same at once. `report` as in ContentsJob::wait.
  Result<void> join(const std::function<void(const std::string&)>& report);

  // Makes contents that are still under way fail with ECANCELED. Main thread, before join().
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
  // A task from its hello to its handover. Without a channel: it is done with.
  struct Asking {
    UniqueFd channel;
    std::uint64_t began_ns = 0;
    std::uint64_t deadline_ns = 0;
    RequestReader reader;
    int id = 0;
    std::unique_ptr<ContentsJob> job;  // there once the request is whole: what the handover begins
  };
  ContentServer(const Config& config, VramWatch& vram, std::chrono::nanoseconds patience,
                ContentsWorld& world)
      : config_(config),
        world_(world),
        patience_ns_(static_cast<std::uint64_t>(patience.count())),
        shared_(vram, world) {}
  Result<void> serve();
  Result<void> hear_all();
  Result<bool> take_hello();
  void hear(Asking& asking);
  void take_request(Asking& asking);
  void settle(Asking& asking);
  void give_up(Asking& asking, const char* why);
  std::optional<timespec> time_left() const;
  void turn_away();
  void warn(std::string text);

  Config config_;
  ContentsWorld& world_;
  std::uint64_t patience_ns_;
  SharedByJobs shared_;
  int fdstore_id_ = -1;
  int image_dir_ = -1;
  UniqueFd socket_;               // shut down: no further request
  std::vector<Asking> asking_;    // the oldest first; the server thread's
  std::vector<Running> running_;  // begun; the server thread's until it was joined
  std::size_t lanes_ = 0;         // of them, and of whoever asks; the server thread's
  std::atomic<bool> cancelled_{false};
  bool joined_ = false;
  Result<void> outcome_;
  std::vector<Finished> finished_;
  LogLines log_lines_;
  std::optional<LaneThread> thread_;  // last: it ends before all that it uses, whatever join() ended with
};

}  // namespace sluice::plugin
