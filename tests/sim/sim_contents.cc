// SPDX-License-Identifier: MIT
#include "sim/sim_contents.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/units.h"
#include "pipeline/lane_thread.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/file_store.h"
#include "plugin/contents/contents.h"
#include "plugin/host/criu_host.h"
#include "sim/sim_reactor.h"
#include "sim/sim_stages.h"
#include "support/seeds.h"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kMostSlots = 4;

SimContents* run = nullptr;

std::string pages_name(int id, std::uint32_t gpu_id) {
  return "pages-" + std::to_string(id) + "-" + std::to_string(gpu_id);
}

Faults faults_of(const SimGpu& gpu, test::Rng& rng) {
  Faults faults;
  faults.short_percent = rng.percent(50) ? 0 : 30;
  faults.stall_percent = rng.percent(50) ? 0 : 20;
  if (gpu.trouble == SimGpu::Trouble::Disk) faults.fail_op = gpu.at, faults.fail_errno = EIO;
  if (gpu.trouble == SimGpu::Trouble::Ring) faults.break_wait = gpu.at;
  return faults;
}

}  // namespace

SimGpu::SimGpu(test::BoList was, test::Rng own, Trouble what, std::uint64_t where)
    : image(std::move(was)), rng(own), trouble(what), at(where) {
  for (const test::Bytes& bo : image) bos.emplace_back(bo.size(), kGarbage);
  const test::Bytes file = test::serial_file(image);
  at = trouble == Trouble::Corrupt ? at % file.size() : at;
  const std::uint64_t most_chunks = rng.between(2, 24);
  sums = test::serial_sums(file, std::max<std::uint64_t>(4 * kKiB, std::bit_ceil(file.size() / most_chunks)));
}

void SimContents::write_images(const test::TempDir& directory) const {
  for (const auto& [key, gpu] : gpus) {
    test::Bytes file = test::serial_file(gpu.image);
    if (gpu.trouble == SimGpu::Trouble::Corrupt) file[gpu.at] ^= std::byte{0x40};
    directory.write(pages_name(key.first, key.second), file);
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

void SimContents::restore_itself(int id) {
  for (auto& [key, gpu] : gpus) {
    if (key.first == id) gpu.bos = gpu.image;
  }
}

SimContents& contents() {
  return *run;
}
void set_contents(SimContents* now) {
  run = now;
}

}  // namespace sluice::sim

namespace sluice {

using sim::SimGpu;
using sim::SimProcesses;

struct LaneThread::Outcome {
  int thread = -1;
  Result<void> result;
};

Result<LaneThread> LaneThread::start(const std::string&, std::function<Result<void>()> body) {
  if (sim::contents().no_thread) return make_error(EAGAIN, "make a thread");
  auto outcome = std::make_unique<Outcome>();
  SimProcesses& processes = *SimProcesses::current();
  outcome->thread = processes.spawn(processes.process(),
                                    [body = std::move(body), out = outcome.get()] { out->result = body(); });
  return LaneThread(OwnThread(), std::move(outcome));
}

LaneThread::LaneThread(OwnThread thread, std::unique_ptr<Outcome> outcome)
    : thread_(std::move(thread)), outcome_(std::move(outcome)) {}
LaneThread::LaneThread(LaneThread&&) noexcept = default;
LaneThread::~LaneThread() {
  SimProcesses& processes = *SimProcesses::current();
  if (outcome_) processes.wait_in_destructor([&] { return processes.ended(outcome_->thread); });
}

Result<void> LaneThread::join(Ring /*ring*/) {
  SimProcesses& processes = *SimProcesses::current();
  processes.wait_until([&] { return processes.ended(outcome_->thread); });
  return std::move(std::exchange(outcome_, nullptr)->result);
}

namespace plugin {

int fdstore_add(int fd) {
  sim::contents().stored_fd = SimProcesses::current()->duplicate(fd);
  return 1;
}

std::int64_t monotonic_ns() {
  return static_cast<std::int64_t>(SimProcesses::current()->now_ns());
}

struct ContentsJob::Lane {
  explicit Lane(std::uint32_t its_gpu_id) : gpu_id(its_gpu_id) {}
  std::uint32_t gpu_id;
  std::optional<LaneThread> thread;
};

ContentsJob::ContentsJob(Direction direction, int image_dir, int id, const Config& config,
                         const DumpId& dump_id, SharedByJobs& shared)
    : direction_(direction),
      image_dir_(image_dir),
      id_(id),
      config_(config),
      dump_id_(dump_id),
      shared_(shared) {}

ContentsJob::~ContentsJob() {
  cancel();
  lanes_.clear();
}

Result<std::unique_ptr<ContentsJob>> ContentsJob::restore(int image_dir, int id,
                                                          std::vector<GpuContents> gpus, const Config& config,
                                                          const DumpId& dump_id, SharedByJobs& shared) {
  SimProcesses::current()->pause();
  std::unique_ptr<ContentsJob> job(
      new ContentsJob(Direction::Restore, image_dir, id, config, dump_id, shared));
  SLUICE_TRY(job->start(std::move(gpus)));
  return job;
}

Result<void> ContentsJob::start(std::vector<GpuContents> gpus) {
  for (const GpuContents& gpu : gpus) {
    lanes_.push_back(std::make_unique<Lane>(gpu.gpu_id));
    Lane& lane = *lanes_.back();
    SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("lane", [this, &lane] { return run_lane(lane); }));
    lane.thread.emplace(std::move(thread));
  }
  if (sim::contents().cannot_be_made.contains(id_)) return make_error(EAGAIN, "make a lane's thread");
  return {};
}

void ContentsJob::begin() {
  const Lock lock(mutex_);
  begun_ = true;
  if (!sim::contents().begun.insert(id_).second) test::fail("the contents of a file began twice");
}

void ContentsJob::cancel() {
  cancelled_ = true;
}

Result<void> ContentsJob::run_lane(Lane& lane) {
  SimProcesses::current()->wait_until([this] { return begun_ || cancelled_; });
  if (!begun_) return Error{ECANCELED, "cancelled"};
  sim::SimContents& all = sim::contents();
  all.most_lanes = std::max(all.most_lanes, ++all.at_once);
  const Result<void> carried = carry(lane);
  --all.at_once;
  if (carried) return {};
  if (carried.error().err == ECANCELED) {
    ++all.stopped;
  } else {
    all.failed.emplace(id_, carried.error().err);
  }
  const Lock lock(mutex_);
  if (!failed_) first_error_ = carried.error();
  failed_ = cancelled_ = true;
  return {};
}

Result<void> ContentsJob::carry(Lane& lane) {
  SimGpu& gpu = sim::contents().gpus.at({id_, lane.gpu_id});
  test::Rng rng(gpu.rng.next());
  SLUICE_TRY_ASSIGN(const ImageLayout layout,
                    ImageLayout::make(test::sizes_of(gpu.bos), gpu.sums.block_bytes));
  std::vector<Slot> slots(rng.between(1, sim::kMostSlots));
  std::vector<test::Bytes> staging(slots.size(), test::Bytes(gpu.sums.block_bytes));
  for (std::uint32_t i = 0; i < slots.size(); ++i) slots[i].index = i, slots[i].buffer = staging[i];
  sim::SimReactor reactor(test::Rng(rng.next()), rng.between(1, 1000), sim::faults_of(gpu, rng));
  sim::SimCopyOptions options{.depth = 2, .latency_ns_max = rng.between(1, 1000)};
  if (gpu.trouble == SimGpu::Trouble::Gpu) options.fail_op = gpu.at;
  if (gpu.trouble == SimGpu::Trouble::Corrupt) options.bad_chunk = gpu.at / gpu.sums.block_bytes;
  sim::SimCopy copy(Direction::Restore, layout, reactor, gpu.bos, test::Rng(rng.next()), options);
  ChecksumStage checksum(Direction::Restore, layout, reactor, {&gpu.sums, 1}, ChecksumOptions{}, nullptr);
  FileOptions file_options;
  file_options.io_mode = IoMode::Buffered;
  file_options.share = &shared_.disk;
  file_options.most_on_disk = most_on_disk(static_cast<std::uint32_t>(slots.size()));
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<FileSource> source,
      FileSource::open(image_dir_, sim::pages_name(id_, lane.gpu_id), layout, reactor, file_options));
  std::array<Stage*, 3> route{source.get(), &checksum, &copy};
  Pipeline pipeline(layout, slots, route, reactor);
  reactor.on_step = [&pipeline] {
    pipeline.check_invariants();
    SimProcesses::current()->pause();
  };
  const auto stats = pipeline.run(nullptr, [this] { return cancelled_.load(); });
  if (!reactor.broke() && reactor.in_flight() != 0) test::fail("a lane has left something in flight");
  if (!stats) return stats.error();
  return {};
}

Result<void> ContentsJob::wait(const std::function<void(const std::string&)>&) {
  if (!begun_) test::fail("the server waits for contents that it has not begun");
  for (const auto& lane : lanes_) {
    (void)lane->thread->join();
    lane->thread.reset();
  }
  const Lock lock(mutex_);
  if (failed_) return first_error_;
  return {};
}

LogLines ContentsJob::take_log_lines() {
  return {};
}

}  // namespace plugin
}  // namespace sluice
