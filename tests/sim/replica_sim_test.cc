// SPDX-License-Identifier: MIT
// The real jobs of a dump whose lanes have contents alike, in the world of sim_contents.cc, and of the
// restore from what it has left: one seed is one run (support/seeds.h). Two to eight lanes of up to four
// processes; as the plan has them, each follows those before it. Their contents are equal, differ in half or
// here and there, lie elsewhere in the file, or have other BOs next to them. Places for lanes, slots and the
// copy engine are scarce. A lane lags, has no place until another ends, does not open its GPU, fails in a
// copy, a write, a clone, by its ring, or when all is written; a job is cancelled, or destroyed, or the dump
// is stopped.
//
// What others have is left out, or its extents are shared: FICLONERANGE copies then, and refuses as file
// systems do (support/clone_emulator.h).
//
// Checked in every run: nobody waits forever; a lane that waits for another holds two slots at most, and has
// nothing else to do; a lane without leaders never waits for one; a serial reader finds the bytes of each
// lane whose job succeeds, and each unit of a run in a complete lane's own part of a file, of a lane before
// it; a job fails for a reason of its own, or of a leader that is not complete, which it names. In the
// restore: a lane without trouble has every byte, however late the others are, or whatever they fail of.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "images/chain/chain.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "kfd/uapi.h"
#include "pipeline/store/file_writer.h"
#include "plugin/contents/contents_job.h"
#include "plugin/dump/plan/replicas.h"
#include "plugin/host/image_store.h"
#include "sim/sim_contents.h"
#include "support/clone_emulator.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::sim {
namespace {

using plugin::ContentsJob;
using test::BoList;
using test::Bytes;
using test::Rng;

constexpr int kMain = 0;
constexpr int kFirstId = 10;                // CRIU's, of the first process
constexpr std::uint64_t kBlock = 4 * kKiB;  // of the file system
constexpr std::uint64_t kLeastLagNs = 20'000'000;

// ---- what the seed wants

// A data-parallel job's memory on each GPU, as far as it is alike.
BoList some_model(Rng& rng) {
  BoList model(rng.between(1, 3));
  for (Bytes& bo : model) {
    bo.resize(rng.percent(70) ? kBlock * rng.between(64, 400) : rng.between(1, 600'000));
    rng.fill(bo);
  }
  if (rng.percent(80)) rng.fill(model.emplace_back(kMiB + kBlock * rng.between(0, 300)));
  return model;
}

void change(Rng& rng, Bytes& bo, std::uint64_t most) {
  const std::uint64_t begin = rng.between(0, bo.size() - 1);
  rng.fill(std::span(bo).subspan(begin, std::min(bo.size() - begin, most)));
}

BoList some_copy(Rng& rng, BoList bos) {
  if (rng.percent(50)) return bos;
  const auto other = [&rng] {
    Bytes bo(rng.percent(50) ? kBlock * rng.between(1, 40) : rng.between(1, 100'000));
    rng.fill(bo);
    return bo;
  };
  switch (rng.between(0, 5)) {
    case 0:
      for (Bytes& bo : bos) rng.fill(std::span(bo).subspan(bo.size() / 2));
      break;
    case 1:
      for (Bytes& bo : bos) change(rng, bo, 150'000);
      break;
    case 2:  // the rest lies further in the file
      bos.insert(bos.begin(), other());
      break;
    case 3:  // fewer chunks
      bos.erase(bos.begin() + static_cast<long>(rng.between(0, bos.size() - 1)));
      break;
    case 4:  // more
      rng.fill(bos.emplace_back(kMiB + kBlock));
      break;
    default:
      for (Bytes& bo : bos) std::fill_n(bo.begin(), bo.size() / 2, std::byte{0});
  }
  if (bos.empty()) bos.push_back(other());
  return bos;
}

// What somebody does meanwhile.
enum class Act : std::uint8_t { Nothing, Cancel, Destroy, Stop };

struct Case {
  explicit Case(std::uint64_t seed);
  std::vector<std::vector<plugin::LaneContents>> lanes() const;

  Rng rng;
  SimProcesses::Chances chances;
  settings::Config config;
  bool leaves_out = false;
  bool same_gpus = false;   // of all processes: lanes wait for places
  bool one_by_one = false;  // a job starts when the one before it has ended
  bool gives_up = false;    // at the first job that fails
  Act act = Act::Nothing;
  std::size_t whose = 0;  // the job's that is cancelled or destroyed
  std::uint64_t act_after_ns = 0;
  std::uint64_t gap_ns_max = 0;   // between two jobs' starts
  unsigned refused_permille = 0;  // of clones
  std::uint64_t failing_clone = UINT64_MAX;
  std::vector<KfdImage> processes;
  SimContents contents;
};

SimGpu gpu_of(Rng& rng, BoList bos, unsigned trouble_percent) {
  constexpr SimGpu::Trouble kTroubles[] = {SimGpu::Trouble::Disk, SimGpu::Trouble::Gpu, SimGpu::Trouble::Ring,
                                           SimGpu::Trouble::Opening, SimGpu::Trouble::End};
  const bool any = rng.percent(trouble_percent);
  SimGpu gpu(std::move(bos), kSumBlockBytes, Rng(rng.next()),
             any ? kTroubles[rng.between(0, 4)] : SimGpu::Trouble::None, rng.between(0, 12));
  if (rng.percent(15)) gpu.lag_ns = rng.between(kLeastLagNs, 3 * kLeastLagNs);
  return gpu;
}

Case::Case(std::uint64_t seed) : rng(seed) {
  config.standard_staging = false;
  config.chunk_bytes = rng.percent(80) ? kMiB : 2 * kMiB;
  config.staging_bytes = rng.between(2, 5) * kMiB;
  leaves_out = rng.percent(50);
  same_gpus = rng.percent(40);
  one_by_one = rng.percent(25);
  gives_up = rng.percent(40);
  const unsigned trouble_percent = rng.percent(50) ? 0 : 25;
  const BoList model = some_model(rng);
  const std::uint64_t all = rng.between(2, 8);
  const std::uint64_t of_process = (all + 3) / rng.between(1, 4);
  for (std::uint32_t lane = 0; lane < all; ++lane) {
    if (lane % of_process == 0) {
      KfdImage& image = processes.emplace_back();
      image.pid = lane + 1;
      image.dump_id = kDump;
      image.has_sums = true;
      image.id = static_cast<std::uint32_t>(kFirstId) + static_cast<std::uint32_t>(processes.size());
      image.topology.nodes.push_back({.node_id = 0, .cpu_cores_count = 1});
    }
    KfdImage& image = processes.back();
    const std::uint32_t gpu_id = lane + 1;
    image.topology.nodes.push_back(
        {.node_id = gpu_id, .gpu_id = gpu_id, .drm_render_minor = 128 + lane, .gfx_target_version = 90010});
    BoList bos = some_copy(rng, model);
    for (std::uint64_t address = 0x100000000; const Bytes& bo : bos) {
      image.bos.push_back(
          {{.addr = address, .bytes = bo.size(), .gpu_id = gpu_id, .alloc_flags = kfd::kAllocVram}});
      address += 0x1000000;
    }
    const int id = static_cast<int>(*image.id);
    contents.gpus.emplace(std::pair(id, gpu_id), gpu_of(rng, std::move(bos), trouble_percent));
    contents.restore_itself(id);
    if (trouble_percent > 0 && rng.percent(4)) contents.no_threads.insert(rng.between(0, 2 * all));
  }
  if (trouble_percent > 0 && rng.percent(40)) {
    act = static_cast<Act>(rng.between(1, 3));
    whose = rng.between(0, processes.size() - 1);
    act_after_ns = rng.between(0, rng.percent(70) ? 100'000 : 200'000'000);
  }
  if (rng.percent(40)) refused_permille = static_cast<unsigned>(rng.between(1, 1000));
  if (trouble_percent > 0 && rng.percent(10)) failing_clone = rng.between(0, 4);
  if (rng.percent(30)) contents.workers = static_cast<unsigned>(rng.between(1, 2));
  chances.pause_ns_max = rng.percent(20) ? 1 : rng.between(2, 5000);
  contents.wakes_late = rng.percent(50);
  if (rng.percent(60)) gap_ns_max = rng.percent(80) ? rng.between(1, 60) * chances.pause_ns_max : 500'000'000;
}

// By process, as a plan has them before it looks for leaders.
std::vector<std::vector<plugin::LaneContents>> Case::lanes() const {
  std::vector<std::vector<plugin::LaneContents>> all;
  std::map<std::uint32_t, unsigned> sharers;
  for (const KfdImage& image : processes) {
    std::vector<plugin::LaneContents>& lanes = all.emplace_back();
    for (PagesSet& set : pages_of(image)) {
      plugin::LaneContents& lane = lanes.emplace_back();
      lane.dmabufs.resize(set.bos.size());
      lane.render_minor = 128 + (same_gpus ? static_cast<std::uint32_t>(lanes.size()) : set.gpu_id);
      lane.pages = std::move(set);
      ++sharers[lane.render_minor];
    }
  }
  for (auto& lanes : all)
    for (plugin::LaneContents& lane : lanes) lane.sharers = sharers[lane.render_minor];
  return all;
}

// ---- a dump

std::string working_name(std::uint32_t gpu_id) {
  return "lane" + std::to_string(gpu_id);
}

struct Dumped {
  std::vector<std::optional<Result<void>>> jobs;  // nothing: not waited for
  std::vector<bool> committed;
  bool gone = false;                             // the files of a job are: it was destroyed, or never began
  std::vector<std::set<std::uint32_t>> leaders;  // by number of the lane: the numbers of those it may follow
  bool acted = false;
  bool clone_failed = false;
  bool no_thread = false;  // for a lane, or for its clones
  std::uint64_t replica_bytes = 0;
  std::vector<std::set<std::string>> replica_files;  // by job
  std::map<std::string, Bytes> files;
};

class Dump {
 public:
  Dump(SimProcesses& processes, Case& one, const test::TempDir& images, Dumped& outcome)
      : processes_(processes),
        one_(one),
        images_(images),
        outcome_(outcome),
        store_(plugin::ImageStore::of_directory([&images] { return images.fd(); })),
        shared_(vram_, *store_, one.contents),
        jobs_(one.processes.size()) {
    shared_.sums.clone_block_bytes = one.leaves_out ? 0 : kBlock;
    one.contents.clone = [this, rng = Rng(one.rng.next())](int from_fd, std::uint64_t from,
                                                           std::uint64_t bytes, int to_fd,
                                                           std::uint64_t to) mutable {
      processes_.pause();
      if (clones_++ == one_.failing_clone) {
        outcome_.clone_failed = true;
        return EIO;
      }
      if (rng.between(0, 999) < one_.refused_permille) return EOPNOTSUPP;
      return emulator_(from_fd, from, bytes, to_fd, to);
    };
  }

  void run() {
    plan();
    outcome_.jobs.resize(jobs_.size());
    outcome_.committed.resize(jobs_.size());
    outcome_.replica_files.resize(jobs_.size());
    for (std::size_t i = 0; i < jobs_.size() && !one_.one_by_one; ++i) start(i);
    const int actor = processes_.spawn(kMain, [this] { act(); });
    bool failed = false;
    for (std::size_t i = 0; i < jobs_.size() && !(failed && one_.gives_up); ++i) {
      if (one_.one_by_one) start(i);
      if (one_.act == Act::Destroy && one_.whose == i) {
        processes_.pause_for(one_.act_after_ns);
        jobs_[i].reset();
      }
      if (!jobs_[i]) {
        outcome_.gone = true;
        continue;
      }
      outcome_.jobs[i] = jobs_[i]->wait(nullptr);
      failed = failed || !outcome_.jobs[i]->ok();
      name_files(i);
    }
    processes_.wait_until([&] { return processes_.ended(actor); });
    for (const std::string& name : images_.names()) outcome_.files.emplace(name, images_.read(name));
    for (auto& job : jobs_) job.reset();
  }

 private:
  void plan() {
    lanes_ = one_.lanes();
    plugin::plan_replicas(lanes_);
    std::map<std::uint32_t, std::size_t> followers;
    for (const auto& lanes : lanes_) {
      for (const plugin::LaneContents& lane : lanes) {
        std::set<std::uint32_t>& leaders = outcome_.leaders.emplace_back();
        for (const plugin::PlannedLeader& leader : lane.leaders) {
          leaders.insert(leader.lane);
          ++followers[leader.lane];
        }
      }
    }
    for (const auto& [lane, count] : followers) shared_.replicas.expect(lane, count);
    shared_.lanes = outcome_.leaders.size();
  }
  void start(std::size_t i) {
    processes_.pause_for(gaps_.between(0, one_.gap_ns_max));
    std::vector<plugin::LaneFiles> files;
    for (const plugin::LaneContents& lane : lanes_[i])
      files.push_back({{working_name(lane.pages.gpu_id)}, static_cast<unsigned>(i)});
    auto job = ContentsJob::dump(std::move(lanes_[i]), std::move(files), one_.config, kDump, shared_);
    if (job) {
      jobs_[i] = std::move(job).value();
    } else {
      outcome_.jobs[i] = std::move(job).error();
    }
  }
  void act() {
    if (one_.act != Act::Cancel && one_.act != Act::Stop) return;
    processes_.pause_for(one_.act_after_ns);
    outcome_.acted = true;
    if (one_.act == Act::Stop) shared_.stopped = true;
    if (one_.act == Act::Cancel && jobs_[one_.whose]) jobs_[one_.whose]->cancel();
  }
  // A file of a job that has failed is found, too, if anybody names it.
  void name_files(std::size_t i) {
    const int id = static_cast<int>(*one_.processes[i].id);
    if (outcome_.jobs[i]->ok()) {
      outcome_.committed[i] = jobs_[i]->commit(id).ok();
      for (std::string& name : jobs_[i]->replica_files()) outcome_.replica_files[i].insert(std::move(name));
      for (const plugin::GpuOutcome& gpu : jobs_[i]->outcomes()) outcome_.replica_bytes += gpu.replica_bytes;
      return;
    }
    for (const PagesSet& set : pages_of(one_.processes[i])) {
      const std::string name = working_name(set.gpu_id);
      shared_.replicas.name(name, temporary_name_of(name));
    }
  }

  SimProcesses& processes_;
  Case& one_;
  const test::TempDir& images_;
  Dumped& outcome_;
  plugin::VramWatch vram_;
  const std::unique_ptr<plugin::ImageStore> store_;
  plugin::SharedByJobs shared_;
  std::vector<std::vector<plugin::LaneContents>> lanes_;  // by job, until it starts
  std::vector<std::unique_ptr<ContentsJob>> jobs_;
  Rng gaps_{one_.rng.next()};
  test::CloneEmulator emulator_{kBlock};
  std::uint64_t clones_ = 0;
};

// ---- what is left of it

// One lane, as a serial reader sees it.
struct LaneSeen {
  std::uint32_t number = 0;
  std::size_t job = 0;
  const SimGpu* gpu = nullptr;
  PagesSet set;
  std::string file;                // its name now; empty: none
  std::optional<Sidecar> sidecar;  // of a job that was committed
  std::vector<bool> elsewhere;     // by byte of the file: it is in a run; empty: nobody can tell
};

// Which bytes of a file are in its runs.
std::vector<bool> bytes_of_runs(const PagesSet& set, const Sidecar& sidecar) {
  const ImageLayout layout = std::move(set.layout(kSumBlockBytes)).value();
  std::vector<bool> bytes(layout.file_bytes());
  if (sidecar.replicas.empty()) return bytes;
  for (const KnownRun& run : sidecar.replicas.front().runs) {
    each_unit(layout, UnitIndex(layout, kSumBlockBytes), 0, [&](const SumRange& range) {
      if (range.index < run.first_unit || range.index >= run.first_unit + run.units) return;
      std::fill(bytes.begin() + static_cast<long>(range.begin), bytes.begin() + static_cast<long>(range.end),
                true);
    });
  }
  return bytes;
}

std::vector<LaneSeen> lanes_seen(const Case& one, const Dumped& dumped, const test::TempDir& images) {
  std::vector<LaneSeen> seen;
  for (std::size_t job = 0; job < one.processes.size(); ++job) {
    const int id = static_cast<int>(*one.processes[job].id);
    for (PagesSet& set : pages_of(one.processes[job])) {
      LaneSeen lane{static_cast<std::uint32_t>(seen.size()),
                    job,
                    &one.contents.gpus.find(std::pair(id, set.gpu_id))->second,
                    set,
                    "",
                    {},
                    {}};
      lane.file = temporary_name_of(working_name(set.gpu_id));
      if (dumped.committed[job]) {
        const std::string name = set.sums_name(id);
        auto sidecar = unpack_sidecar(read_image(images.fd(), name).value(), name, {});
        if (!sidecar) test::fail(sidecar.error().what.c_str());
        lane.file = sidecar->pages_files.front();
        lane.elsewhere = bytes_of_runs(set, *sidecar);
        lane.sidecar = std::move(sidecar).value();
      }
      seen.push_back(std::move(lane));
    }
  }
  return seen;
}

bool any_in(const std::vector<bool>& bytes, std::uint64_t begin, std::uint64_t length) {
  const auto first = bytes.begin() + static_cast<long>(begin);
  return std::find(first, first + static_cast<long>(length), true) != first + static_cast<long>(length);
}

// Resolves each run in one step, and compares everything.
void check_bytes(const LaneSeen& lane, const std::vector<LaneSeen>& all, const Dumped& dumped) {
  const Bytes expected = test::serial_file(lane.gpu->image);
  Bytes bytes = dumped.files.at(lane.file);
  ASSERT_EQ(bytes.size(), expected.size());
  ASSERT_EQ(lane.sidecar->tables.front().sums, lane.gpu->sums.sums);
  if (!lane.sidecar->replicas_left_out) {
    ASSERT_TRUE(bytes == expected);
  }
  if (lane.sidecar->replicas.empty()) return;
  const KnownRuns& runs = lane.sidecar->replicas.front();
  const ImageLayout layout = std::move(lane.set.layout(kSumBlockBytes)).value();
  for (const KnownRun& run : runs.runs) {
    const std::string& name = runs.files[run.file];
    const auto other =
        std::find_if(all.begin(), all.end(), [&](const LaneSeen& each) { return each.file == name; });
    ASSERT_NE(other, all.end()) << name << " is no lane's file";
    ASSERT_LT(other->number, lane.number) << "a run leads to a lane that is not before it";
    ASSERT_TRUE(other->gpu->complete) << name << " is named, and not complete";
    const Bytes& theirs = dumped.files.at(name);
    std::uint64_t at = run.offset;
    each_unit(layout, UnitIndex(layout, kSumBlockBytes), 0, [&](const SumRange& range) {
      if (range.index < run.first_unit || range.index >= run.first_unit + run.units) return;
      const std::uint64_t length = range.end - range.begin;
      ASSERT_LE(at + length, theirs.size());
      if (!other->elsewhere.empty()) {
        ASSERT_FALSE(any_in(other->elsewhere, at, length)) << "a run leads to a run";
      }
      std::copy_n(theirs.begin() + static_cast<long>(at), length,
                  bytes.begin() + static_cast<long>(range.begin));
      at += length;
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
  ASSERT_TRUE(bytes == expected);
}

// Whether the job has a reason to fail so.
bool may_fail(const Case& one, const Dumped& dumped, const std::vector<LaneSeen>& lanes, std::size_t job) {
  const Error& error = dumped.jobs[job]->error();
  const bool stopped = dumped.acted && (one.act == Act::Stop || one.whose == job);
  if (error.err == ECANCELED && stopped) return true;
  if (error.err == EAGAIN && !one.contents.no_threads.empty()) return true;
  if (error.err == EIO && dumped.clone_failed) return true;
  return std::any_of(lanes.begin(), lanes.end(), [&](const LaneSeen& lane) {
    if (lane.job == job) return lane.gpu->fault_fired && (error.err == EIO || error.err == EREMOTEIO);
    const std::string words = working_name(lane.set.gpu_id) + ", whose contents this GPU shares";
    const bool followed = std::any_of(lanes.begin(), lanes.end(), [&](const LaneSeen& own) {
      return own.job == job && dumped.leaders[own.number].contains(lane.number);
    });
    return error.err == ECANCELED && error.what.starts_with(words) && followed && !lane.gpu->complete;
  });
}

struct Totals {
  std::uint64_t read_once = 0, runs = 0, whole = 0, jobs_failed = 0, by_a_leader = 0, complete = 0, waits = 0,
                replica_bytes = 0, late_restores = 0, failed_restores = 0, steps = 0;
};

void check_dump(const Case& one, const Dumped& dumped, const test::TempDir& images, Totals& totals) {
  const std::vector<LaneSeen> lanes = lanes_seen(one, dumped, images);
  for (std::size_t job = 0; job < dumped.jobs.size(); ++job) {
    if (!dumped.jobs[job] || dumped.jobs[job]->ok()) continue;
    const Error& error = dumped.jobs[job]->error();
    ASSERT_TRUE(may_fail(one, dumped, lanes, job))
        << "job " << job << " fails without a reason: " << error.what;
    ++totals.jobs_failed;
    totals.by_a_leader += error.what.find("[SL-C92]") != std::string::npos ? 1U : 0U;
  }
  for (const LaneSeen& lane : lanes) {
    SCOPED_TRACE("lane " + std::to_string(lane.number));
    totals.waits += lane.gpu->waits;
    if (dumped.leaders[lane.number].empty()) {
      ASSERT_EQ(lane.gpu->waits, 0U) << "it follows nobody";
    }
    if (!dumped.jobs[lane.job] || !dumped.jobs[lane.job]->ok()) continue;
    ASSERT_FALSE(lane.gpu->fault_fired) << "its job succeeds";
    ASSERT_TRUE(lane.gpu->complete);
    // SL-D100: it needs a file that nobody can name.
    ASSERT_TRUE(dumped.committed[lane.job] || (one.leaves_out && dumped.gone));
    if (!dumped.committed[lane.job]) continue;
    ASSERT_NO_FATAL_FAILURE(check_bytes(lane, lanes, dumped));
    ++totals.complete;
  }
  totals.replica_bytes += dumped.replica_bytes;
}

// ---- a restore of it

struct Restored {
  std::vector<std::optional<Result<void>>> jobs;
  std::vector<std::uint64_t> ended_ns;
};

// The jobs' lanes, whose GPUs have other trouble now.
void renew(Case& one) {
  const unsigned trouble_percent = one.rng.percent(50) ? 0 : 20;
  std::map<std::pair<int, std::uint32_t>, SimGpu> gpus;
  for (auto& [key, gpu] : one.contents.gpus)
    gpus.emplace(key, gpu_of(one.rng, std::move(gpu.image), trouble_percent));
  one.contents.gpus = std::move(gpus);
  one.contents.no_threads.clear();
}

void write_metadata(const Case& one, const Dumped& dumped, const test::TempDir& images) {
  for (std::size_t job = 0; job < one.processes.size(); ++job) {
    KfdImage image = one.processes[job];
    image.replica_files.assign(dumped.replica_files[job].begin(), dumped.replica_files[job].end());
    const std::string name = kfd_image_name(static_cast<int>(*image.id));
    ASSERT_TRUE(write_image(images.fd(), one.leaves_out ? partial_name(name, Lacks::Replicas) : name,
                            pack_kfd_image(image, {}), false)
                    .ok());
  }
}

void restore(SimProcesses& processes, Case& one, const Dumped& dumped, const test::TempDir& images,
             Restored& outcome) {
  plugin::VramWatch vram;
  const auto store = plugin::ImageStore::of_directory([&images] { return images.fd(); });
  plugin::SharedByJobs shared(vram, *store, one.contents);
  auto chain = Chain::open(images.fd(), {.parent = {}, .replicas = one.leaves_out}, {});
  if (!chain) test::fail(chain.error().what.c_str());
  shared.parents.chain = chain.value().get();
  for (const auto& files : dumped.replica_files) shared.read_by_several.insert(files.begin(), files.end());
  // As in CRIU's main process; a task that restores itself has none.
  one.contents.reader_rng = Rng(one.rng.next());
  if (one.rng.percent(70)) shared.readers = std::make_unique<SharedReaders>();
  std::vector<std::vector<plugin::LaneContents>> lanes = one.lanes();
  shared.lanes = one.contents.gpus.size();
  std::vector<std::unique_ptr<ContentsJob>> jobs;
  std::vector<int> waiters;
  outcome.jobs.resize(lanes.size());
  outcome.ended_ns.resize(lanes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    auto job = ContentsJob::restore(static_cast<int>(*one.processes[i].id), std::move(lanes[i]), one.config,
                                    kDump, shared);
    if (!job) test::fail(job.error().what.c_str());
    jobs.push_back(std::move(job).value());
    jobs.back()->begin();
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    waiters.push_back(processes.spawn(kMain, [&, i] {
      outcome.jobs[i] = jobs[i]->wait(nullptr);
      outcome.ended_ns[i] = processes.now_ns();
    }));
  }
  for (const int waiter : waiters) processes.wait_until([&] { return processes.ended(waiter); });
}

void check_restore(const Case& one, const Restored& restored, Totals& totals) {
  bool any_lags = false;
  for (const auto& [key, gpu] : one.contents.gpus) any_lags = any_lags || gpu.lag_ns > 0;
  for (std::size_t job = 0; job < one.processes.size(); ++job) {
    const int id = static_cast<int>(*one.processes[job].id);
    bool any_fault = false, lags = false;
    for (const auto& [key, gpu] : one.contents.gpus) {
      if (key.first != id) continue;
      any_fault = any_fault || gpu.fault_fired;
      lags = lags || gpu.lag_ns > 0;
    }
    const Result<void>& result = *restored.jobs[job];
    ASSERT_EQ(result.ok(), !any_fault) << (result.ok() ? "nothing" : result.error().what);
    totals.failed_restores += any_fault ? 1U : 0U;
    if (any_fault) continue;
    ASSERT_TRUE(one.contents.whole(id)) << "job " << job;
    // Where they share no GPU, and so no place.
    if (lags || one.same_gpus || !any_lags) continue;
    ASSERT_LT(restored.ended_ns[job], kLeastLagNs) << "a lane that lags delays others";
    ++totals.late_restores;
  }
}

// ---- runs

void clear(const test::TempDir& images) {
  for (const std::string& name : images.names()) ASSERT_EQ(::unlinkat(images.fd(), name.c_str(), 0), 0);
}

void run_seed(const test::TempDir& images, std::uint64_t seed, Totals& totals) {
  Case one(seed);
  set_contents(&one.contents);
  Dumped dumped;
  {
    SimProcesses processes(Rng(one.rng.next()), one.chances);
    processes.spawn(kMain, [&] { Dump(processes, one, images, dumped).run(); });
    processes.run();
    totals.steps += processes.steps();
  }
  ++totals.runs;
  ASSERT_NO_FATAL_FAILURE(check_dump(one, dumped, images, totals));
  const bool whole =
      std::all_of(dumped.jobs.begin(), dumped.jobs.end(), [](const auto& job) { return job && job->ok(); });
  if (whole) {
    ++totals.whole;
    ASSERT_NO_FATAL_FAILURE(write_metadata(one, dumped, images));
    renew(one);
    Restored restored;
    SimProcesses processes(Rng(one.rng.next()), one.chances);
    processes.spawn(kMain, [&] { restore(processes, one, dumped, images, restored); });
    processes.run();
    totals.steps += processes.steps();
    ASSERT_NO_FATAL_FAILURE(check_restore(one, restored, totals));
    totals.read_once += one.contents.read_once;
  }
  ASSERT_NO_FATAL_FAILURE(clear(images));
}

TEST(Simulation, LanesWithContentsAlike) {
  const test::TempDir images(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "");
  Totals totals;
  const test::Seeds seeds = test::seeds_of_test(test::usual(80, 20));
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    test::announce_seed(seed);
    run_seed(images, seed, totals);
    if (HasFatalFailure()) return;
  }
  std::printf(
      "shown: lanes with contents alike: %llu seeds, %llu steps; %llu dumps complete, %llu lanes complete "
      "with "
      "%llu MiB from others, %llu waits; %llu jobs failed, %llu of them with a leader; %llu restores failed, "
      "%llu were on time although others lagged, %llu reads for several lanes\n",
      static_cast<unsigned long long>(totals.runs), static_cast<unsigned long long>(totals.steps),
      static_cast<unsigned long long>(totals.whole), static_cast<unsigned long long>(totals.complete),
      static_cast<unsigned long long>(totals.replica_bytes / kMiB),
      static_cast<unsigned long long>(totals.waits), static_cast<unsigned long long>(totals.jobs_failed),
      static_cast<unsigned long long>(totals.by_a_leader),
      static_cast<unsigned long long>(totals.failed_restores),
      static_cast<unsigned long long>(totals.late_restores),
      static_cast<unsigned long long>(totals.read_once));
  EXPECT_EQ(totals.runs, seeds.count);
  if (!seeds.replay && seeds.count >= 50) {
    EXPECT_GT(totals.whole, seeds.count / 3);
    EXPECT_GT(totals.replica_bytes, seeds.count * kMiB);
    EXPECT_GT(totals.waits, seeds.count);
    EXPECT_GT(totals.jobs_failed, seeds.count / 10);
    EXPECT_GT(totals.by_a_leader, seeds.count / 100);
    EXPECT_GT(totals.failed_restores, seeds.count / 20);
    EXPECT_GT(totals.late_restores, seeds.count / 50);
    EXPECT_GT(totals.read_once, seeds.count / 2);
  }
}

}  // namespace
}  // namespace sluice::sim
