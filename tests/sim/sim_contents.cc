// SPDX-License-Identifier: MIT
#include "sim/sim_contents.h"

#include <cerrno>

#include "pipeline/lane.h"
#include "plugin/contents.h"
#include "plugin/criu_host.h"
#include "support/seeds.h"

namespace sluice::sim {
namespace {

SimContents* run = nullptr;

}  // namespace

SimContents& contents() {
  return *run;
}
void set_contents(SimContents* now) {
  run = now;
}

}  // namespace sluice::sim

namespace sluice {

struct LaneThread::Outcome {
  int thread = -1;
  Result<void> result;
};

Result<LaneThread> LaneThread::start(const std::string&, std::function<Result<void>()> body) {
  if (sim::contents().no_thread) return make_error(EAGAIN, "make a thread");
  auto outcome = std::make_unique<Outcome>();
  sim::SimProcesses& processes = *sim::SimProcesses::current();
  outcome->thread = processes.spawn(processes.process(),
                                    [body = std::move(body), out = outcome.get()] { out->result = body(); });
  return LaneThread({}, std::move(outcome));
}

LaneThread::LaneThread(std::thread thread, std::unique_ptr<Outcome> outcome)
    : thread_(std::move(thread)), outcome_(std::move(outcome)) {}
LaneThread::LaneThread(LaneThread&&) noexcept = default;
LaneThread::~LaneThread() {
  if (outcome_) (void)join();
}

Result<void> LaneThread::join() {
  const std::unique_ptr<Outcome> outcome = std::move(outcome_);
  sim::SimProcesses& processes = *sim::SimProcesses::current();
  processes.wait_until([&] { return processes.ended(outcome->thread); });
  return std::move(outcome->result);
}

namespace plugin {

int fdstore_add(int fd) {
  sim::contents().stored_fd = sim::SimProcesses::current()->duplicate(fd);
  return 1;
}

std::int64_t monotonic_ns() {
  return static_cast<std::int64_t>(sim::SimProcesses::current()->now_ns());
}

struct ContentsJob::Lane {};

ContentsJob::ContentsJob(Direction direction, int image_dir, int id, const Config& config,
                         const DumpId& dump_id, SharedByJobs& shared)
    : direction_(direction),
      image_dir_(image_dir),
      id_(id),
      config_(config),
      dump_id_(dump_id),
      shared_(shared) {}
ContentsJob::~ContentsJob() = default;

Result<std::unique_ptr<ContentsJob>> ContentsJob::restore(int image_dir, int id, std::vector<GpuContents>,
                                                          const Config& config, const DumpId& dump_id,
                                                          SharedByJobs& shared) {
  sim::SimProcesses::current()->pause();
  if (sim::contents().plans[id].cannot_be_made) return make_error(EAGAIN, "make a lane's thread");
  return std::unique_ptr<ContentsJob>(
      new ContentsJob(Direction::Restore, image_dir, id, config, dump_id, shared));
}

void ContentsJob::begin() {
  begun_ = true;
  if (!sim::contents().begun.insert(id_).second) test::fail("the contents of a file began twice");
}

Result<void> ContentsJob::wait(const std::function<void(const std::string&)>&) {
  if (!begun_) test::fail("the server waits for contents that it has not begun");
  sim::SimProcesses::current()->pause();
  if (cancelled_) return Error{ECANCELED, "cancelled"};
  if (!sim::contents().plans[id_].fails) return {};
  sim::contents().failed.insert(id_);
  return make_error(EBADMSG, "a block is not what its sum says");
}

void ContentsJob::cancel() {
  cancelled_ = true;
}

LogLines ContentsJob::take_log_lines() {
  return {};
}

}  // namespace plugin
}  // namespace sluice
