// SPDX-License-Identifier: MIT
#include "sim/sim_contents.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <vector>

#include "base/units.h"
#include "images/files/files.h"
#include "images/sums.h"
#include "pipeline/pipeline.h"
#include "sim/sim_reactor.h"
#include "sim/sim_stages.h"
#include "support/seeds.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kLaneStall = 3 * kSecond;  // nobody has a patience for lanes, but progress is told

SimContents* run = nullptr;
thread_local SimGpu* lane_gpu = nullptr;  // of the calling lane

Faults faults_of(SimGpu& gpu) {
  Faults faults;
  faults.short_percent = gpu.rng.percent(50) ? 0 : 30;
  faults.stall_percent = gpu.rng.percent(50) ? 0 : 20;
  if (gpu.trouble == SimGpu::Trouble::Disk) faults.fail_op = gpu.at, faults.fail_errno = EIO;
  if (gpu.trouble == SimGpu::Trouble::Ring) faults.break_wait = gpu.at;
  return faults;
}

SimCopyOptions copy_options_of(SimGpu& gpu, std::uint64_t chunk_bytes) {
  SimCopyOptions options{.depth = 2, .latency_ns_max = gpu.rng.between(1, 1000)};
  if (gpu.trouble == SimGpu::Trouble::Gpu) options.fail_op = gpu.at;
  if (gpu.trouble == SimGpu::Trouble::Corrupt) options.bad_chunk = gpu.at / chunk_bytes;
  return options;
}

class SimThread final : public LaneThread::Running {
 public:
  explicit SimThread(std::function<Result<void>()> body)
      : thread_(
            processes().spawn(processes().process(), [this, body = std::move(body)] { result_ = body(); })) {}
  ~SimThread() override {
    processes().wait_in_destructor([this, &all = processes()] { return all.ended(thread_); });
  }
  Result<void> join(LaneThread::Ring /*ring*/) override {
    processes().wait_until([this, &all = processes()] { return all.ended(thread_); });
    return std::move(result_);
  }

 private:
  static SimProcesses& processes() { return *SimProcesses::current(); }

  Result<void> result_;
  int thread_;
};

// A poll waits for what other threads do, in their time.
class PollingReactor : public SimReactor {
 public:
  using SimReactor::SimReactor;

  void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) override {
    if (op.in_flight) test::fail("an Op was started twice");
    op.in_flight = true;
    ++in_flight_;
    const auto patience_ns = static_cast<std::uint64_t>(timeout.count());
    polls_.push_back({&op, fd, SimProcesses::current()->now_ns() + patience_ns});
  }
  Result<std::size_t> wait(std::span<Completion> out) override {
    if (const std::size_t count = take_polls(out); count > 0) return count;
    if (in_flight() > polls_.size()) return SimReactor::wait(out);
    on_polls_only();
    std::uint64_t end_ns = UINT64_MAX;
    for (const Polled& each : polls_) end_ns = std::min(end_ns, each.end_ns);
    SimProcesses::current()->wait_until(
        [this] { return std::any_of(polls_.begin(), polls_.end(), is_ready); }, end_ns);
    return take_polls(out);
  }

 protected:
  struct Polled {
    Op* op = nullptr;
    int fd = -1;
    std::uint64_t end_ns = 0;  // of its patience
  };
  const std::vector<Polled>& polls() const { return polls_; }

 private:
  // Nothing else is in flight.
  virtual void on_polls_only() {}
  // Not through poll(), which is a call of the simulated processes.
  static bool is_ready(const Polled& each) {
    pollfd look{each.fd, POLLIN, 0};
    const timespec at_once{};
    return ::syscall(SYS_ppoll, &look, 1, &at_once, nullptr, 0) > 0;
  }
  std::size_t take_polls(std::span<Completion> out) {
    const std::uint64_t now_ns = SimProcesses::current()->now_ns();
    std::size_t count = 0;
    std::erase_if(polls_, [&](const Polled& each) {
      const bool ready = is_ready(each);
      if (count == out.size() || (!ready && now_ns < each.end_ns)) return false;
      each.op->in_flight = false;
      --in_flight_;
      out[count++] = {each.op, ready ? 0 : -ETIME};
      return true;
    });
    return count;
  }

  std::vector<Polled> polls_;
};

class LaneReactor final : public PollingReactor {
 public:
  explicit LaneReactor(SimGpu& gpu)
      : PollingReactor(test::Rng(gpu.rng.next()), gpu.rng.between(1, 1000), faults_of(gpu)), gpu_(gpu) {}
  ~LaneReactor() override {
    gpu_.fault_fired = gpu_.fault_fired || fault_fired() || broke();
    const bool killed = std::uncaught_exceptions() > 0;
    if (!killed && !broke() && in_flight() != 0) test::fail("a lane has left something in flight");
  }

  // Of a dump: whose lanes wait for each other.
  void watch(std::span<Slot> slots) { slots_ = slots; }

 private:
  // A lane that waits has nothing else to do. Of the chunks that wait for another lane, one has a slot, and
  // one may be behind it; every other slot is free, unless a worker has it. A lane that has failed is
  // different: it offers no slot any more.
  void on_polls_only() override {
    if (slots_.empty()) return;
    const auto waits = std::count_if(polls().begin(), polls().end(),
                                     [](const Polled& each) { return each.op->slot->stage == 0; });
    const auto workers = static_cast<long>(polls().size()) - waits;
    long at_gate = 0;
    long beyond = 0;
    for (const Slot& slot : slots_)
      if (slot.state != SlotState::Free) ++(slot.stage == 0 ? at_gate : beyond);
    gpu_.waits += static_cast<std::uint64_t>(waits);
    if (gpu_.failed) return;
    if (waits > 1 || (waits == 1 && at_gate > 2)) test::fail("chunks that wait for another lane hold slots");
    if (waits == 1 && beyond > workers) test::fail("a lane waits for another while a chunk could go on");
  }

  SimGpu& gpu_;
  std::span<Slot> slots_;  // the lane's
};

// A SharedReader's: the disk or the ring may fail, which is no trouble of any lane.
class SharedReactor final : public PollingReactor {
 public:
  SharedReactor(test::Rng& rng, SimContents& all)
      : PollingReactor(test::Rng(rng.next()), rng.between(1, 1000), faults_of(rng)), all_(all) {}
  ~SharedReactor() override {
    all_.read_once += transfers();
    if (std::uncaught_exceptions() == 0 && !broke() && in_flight() != 0)
      test::fail("a shared reader has left something in flight");
  }
  Result<std::size_t> wait(std::span<Completion> out) override {
    SimProcesses::current()->pause(kLaneStall);
    return PollingReactor::wait(out);
  }

 private:
  static Faults faults_of(test::Rng& rng) {
    Faults faults;
    faults.short_percent = rng.percent(50) ? 0 : 30;
    faults.stall_percent = rng.percent(50) ? 0 : 20;
    if (rng.percent(20)) faults.fail_op = rng.between(0, 20), faults.fail_errno = EIO;
    if (rng.percent(10)) faults.break_wait = rng.between(0, 20);
    return faults;
  }

  SimContents& all_;
};

class LaneCopy final : public SimCopy {
 public:
  LaneCopy(Direction direction, Lane& lane, SimGpu& gpu)
      : SimCopy(direction, lane.layout(), static_cast<LaneReactor&>(lane.reactor()), gpu.bos,
                test::Rng(gpu.rng.next()), copy_options_of(gpu, lane.layout().chunk_bytes())),
        gpu_(gpu) {}
  ~LaneCopy() override { gpu_.fault_fired = gpu_.fault_fired || fault_fired(); }
  Result<void> finish() override {
    gpu_.filled = true;
    return {};
  }
  void abandon() override { gpu_.failed = true; }

 private:
  SimGpu& gpu_;
};

class OpenGpu final : public plugin::LaneGpu {
 public:
  OpenGpu(SimContents& all, SimGpu& gpu) : all_(all), gpu_(gpu) {
    if (gpu.opened) test::fail("the contents of a file began twice");
    gpu.opened = true;
    lane_gpu = &gpu;
    all_.most_lanes = std::max(all_.most_lanes, ++all_.at_once);
  }
  ~OpenGpu() override {
    --all_.at_once;
    const bool own = gpu_.fault_fired || gpu_.trouble == SimGpu::Trouble::Corrupt;
    if (!gpu_.filled && !own) ++all_.stopped;
  }

  // Asked before the first chunk and after the last.
  Result<std::uint32_t> vram_losses() override {
    if (!gpu_.filled) return 0U;
    if (gpu_.trouble == SimGpu::Trouble::End) {
      gpu_.fault_fired = true;
      return make_error(EREMOTEIO, "look at the VRAM");
    }
    gpu_.complete = true;
    return 0U;
  }
  Result<plugin::GpuCopy> make_copy(Direction direction, Lane& lane, std::vector<UniqueFd> dmabufs,
                                    const drm::SdmaCopyOptions& /*options*/) override {
    if (dmabufs.size() != gpu_.bos.size()) test::fail("a lane has other BOs than its GPU");
    if (direction == Direction::Dump) static_cast<LaneReactor&>(lane.reactor()).watch(lane.slots());
    return plugin::GpuCopy{std::make_unique<LaneCopy>(direction, lane, gpu_), "", 0};
  }

 private:
  SimContents& all_;
  SimGpu& gpu_;
};

}  // namespace

SimGpu::SimGpu(test::BoList was, std::uint64_t block_bytes, test::Rng own, Trouble what, std::uint64_t where)
    : image(std::move(was)), rng(own), trouble(what), at(where) {
  for (const test::Bytes& bo : image) bos.emplace_back(bo.size(), kGarbage);
  if (trouble == Trouble::Corrupt) at %= test::serial_file(image).size();
  sums = test::serial_sums(image, block_bytes);
}

void SimContents::write_images(const test::TempDir& directory) const {
  for (const auto& [key, gpu] : gpus) {
    const auto& [id, gpu_id] = key;
    test::Bytes file = test::serial_file(gpu.image);
    if (gpu.trouble == SimGpu::Trouble::Corrupt) file[gpu.at] ^= std::byte{0x40};
    const std::string name = pages_image_name(id, gpu_id);
    directory.write(name, file);
    Sidecar sidecar{{gpu.sums}, {name}, {}, kDump};
    // All but the header.
    const std::uint64_t units = gpu.sums.sums.size() - 1;
    if (!gpu.leader.empty() && units > 0)
      sidecar.replicas = {{.files = {gpu.leader}, .runs = {{1, units, 0, kHeaderBytes}}}};
    if (!write_image(directory.fd(), sums_image_name(id, gpu_id), pack_sidecar(sidecar, {}), false))
      test::fail("the sums could not be written");
  }
}

bool SimContents::whole(int id) const {
  return std::all_of(gpus.begin(), gpus.end(), [id](const auto& each) {
    return each.first.first != id || each.second.bos == each.second.image;
  });
}

bool SimContents::untouched(int id) const {
  return std::all_of(gpus.begin(), gpus.end(), [id](const auto& each) {
    const auto is_garbage = [](std::byte byte) { return byte == kGarbage; };
    return each.first.first != id ||
           std::all_of(each.second.bos.begin(), each.second.bos.end(),
                       [&](const test::Bytes& bo) { return std::all_of(bo.begin(), bo.end(), is_garbage); });
  });
}

bool SimContents::begun(int id) const {
  return std::any_of(gpus.begin(), gpus.end(),
                     [id](const auto& each) { return each.first.first == id && each.second.opened; });
}

void SimContents::restore_itself(int id) {
  for (auto& [key, gpu] : gpus) {
    if (key.first == id) gpu.bos = gpu.image;
  }
}

std::uint64_t SimContents::now_ns() {
  return SimProcesses::current()->now_ns();
}

void SimContents::wait(Lock& lock, std::condition_variable& changed, std::uint64_t end_ns) {
  const std::uint64_t before = wakes_[&changed];
  lock.unlock();
  SimProcesses::current()->wait_until([&] { return wakes_[&changed] != before; }, end_ns);
  if (wakes_late) SimProcesses::current()->pause(0);
  lock.lock();
}

void SimContents::wake(std::condition_variable& changed) {
  ++wakes_[&changed];
}

void SimContents::wake_one(std::condition_variable& changed) {
  wake(changed);
}

Result<LaneThread> SimContents::start_thread(const std::string& /*name*/,
                                             std::function<Result<void>()> body) {
  if (no_threads.contains(threads_asked_for_++)) return make_error(EAGAIN, "make a thread");
  SimProcesses::current()->pause();
  return LaneThread(std::make_unique<SimThread>(std::move(body)));
}

Result<std::unique_ptr<Reactor>> SimContents::make_reactor(unsigned /*entries*/,
                                                           std::span<std::byte> /*arena*/,
                                                           std::string& /*note*/) {
  if (lane_gpu == nullptr)
    return std::unique_ptr<Reactor>(std::make_unique<SharedReactor>(reader_rng, *this));
  return std::unique_ptr<Reactor>(std::make_unique<LaneReactor>(*lane_gpu));
}

unsigned SimContents::spare_workers(std::size_t /*lanes*/) {
  return workers;
}

void SimContents::step(const Pipeline& pipeline) {
  pipeline.check_invariants();
  SimProcesses::current()->pause(kLaneStall);
  if (lane_gpu->lag_ns > 0) SimProcesses::current()->pause_for(lane_gpu->lag_ns);
}

Result<std::unique_ptr<plugin::LaneGpu>> SimContents::open_gpu(const plugin::LaneContents& contents) {
  const auto found = std::find_if(
      gpus.begin(), gpus.end(), [&](const auto& each) { return each.first.second == contents.pages.gpu_id; });
  if (found->second.trouble == SimGpu::Trouble::Opening) {
    found->second.fault_fired = true;
    return make_error(EREMOTEIO, "open a GPU");
  }
  return std::unique_ptr<plugin::LaneGpu>(std::make_unique<OpenGpu>(*this, found->second));
}

void set_contents(SimContents* now) {
  run = now;
}

SimContents& contents() {
  return *run;
}

}  // namespace sluice::sim

// CRIU's.
extern "C" int fdstore_add(int fd);
extern "C" int fdstore_add(int fd) {
  sluice::sim::run->stored_fd = sluice::sim::SimProcesses::current()->duplicate(fd);
  return 1;
}
