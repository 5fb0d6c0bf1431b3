// SPDX-License-Identifier: MIT
#include "sim/sim_contents.h"

#include <algorithm>
#include <cerrno>
#include <exception>

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

class LaneReactor final : public SimReactor {
 public:
  explicit LaneReactor(SimGpu& gpu)
      : SimReactor(test::Rng(gpu.rng.next()), gpu.rng.between(1, 1000), faults_of(gpu)), gpu_(gpu) {}
  ~LaneReactor() override {
    gpu_.fault_fired = gpu_.fault_fired || fault_fired() || broke();
    const bool killed = std::uncaught_exceptions() > 0;
    if (!killed && !broke() && in_flight() != 0) test::fail("a lane has left something in flight");
  }

 private:
  SimGpu& gpu_;
};

// A SharedReader's: the disk or the ring may fail, which is no trouble of any lane.
class SharedReactor final : public SimReactor {
 public:
  SharedReactor(test::Rng& rng, SimContents& all)
      : SimReactor(test::Rng(rng.next()), rng.between(1, 1000), faults_of(rng)), all_(all) {}
  ~SharedReactor() override {
    all_.read_once += transfers();
    if (std::uncaught_exceptions() == 0 && !broke() && in_flight() != 0)
      test::fail("a shared reader has left something in flight");
  }
  Result<std::size_t> wait(std::span<Completion> out) override {
    SimProcesses::current()->pause(kLaneStall);
    return SimReactor::wait(out);
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

  Result<std::uint32_t> vram_losses() override { return 0; }
  Result<plugin::GpuCopy> make_copy(Direction direction, Lane& lane, std::vector<UniqueFd> dmabufs,
                                    const drm::SdmaCopyOptions& /*options*/) override {
    if (dmabufs.size() != gpu_.bos.size()) test::fail("a lane has other BOs than its GPU");
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
  const test::Bytes file = test::serial_file(image);
  at = trouble == Trouble::Corrupt ? at % file.size() : at;
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
  lock.lock();
}

void SimContents::wake(std::condition_variable& changed) {
  ++wakes_[&changed];
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
  return 0;
}

void SimContents::step(const Pipeline& pipeline) {
  pipeline.check_invariants();
  SimProcesses::current()->pause(kLaneStall);
}

Result<std::unique_ptr<plugin::LaneGpu>> SimContents::open_gpu(const plugin::LaneContents& contents) {
  const auto found = std::find_if(
      gpus.begin(), gpus.end(), [&](const auto& each) { return each.first.second == contents.pages.gpu_id; });
  return std::unique_ptr<plugin::LaneGpu>(std::make_unique<OpenGpu>(*this, found->second));
}

void set_contents(SimContents* now) {
  run = now;
}

}  // namespace sluice::sim

// CRIU's.
extern "C" int fdstore_add(int fd);
extern "C" int fdstore_add(int fd) {
  sluice::sim::run->stored_fd = sluice::sim::SimProcesses::current()->duplicate(fd);
  return 1;
}
