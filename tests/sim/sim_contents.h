// SPDX-License-Identifier: MIT
// What contents have around them in simulations of the content server, its tasks and a dump's jobs: threads,
// waits and time of SimProcesses, reactors and GPUs in virtual time. Handed to the plugin's own code, which
// is all there: server, jobs, lanes, stages. CRIU's fdstore is here, too. It knows who has written which BOs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "pipeline/checksum/checksum.h"
#include "pipeline/extents/extent_cloner.h"
#include "plugin/contents/contents_job.h"
#include "plugin/contents/contents_world.h"
#include "sim/sim_processes.h"
#include "support/serial_writer.h"
#include "support/temp_dir.h"

namespace sluice::sim {

inline constexpr std::byte kGarbage{0x5a};  // in BOs that nobody has filled
inline constexpr DumpId kDump{0xd1};

// The contents of one GPU of an open file.
struct SimGpu {
  // What becomes of them. Opening: the GPU does not open. End: it has lost its VRAM when all is carried.
  enum class Trouble : std::uint8_t { None, Corrupt, Disk, Gpu, Ring, Opening, End };

  // `image`: the BOs as they were. `block_bytes`: of a sum. `at`: the byte of the pages file, or the
  // operation, that goes wrong.
  SimGpu(test::BoList image, std::uint64_t block_bytes, test::Rng rng, Trouble trouble, std::uint64_t at);

  test::BoList image;
  test::BoList bos;  // the task's
  SumTable sums;
  std::string leader;  // the pages file of another that has the same contents; or empty
  test::Rng rng;
  Trouble trouble;
  std::uint64_t at;
  std::uint64_t lag_ns = 0;  // between any two steps of its lane, in addition to the seed's pauses

  // What happened.
  bool opened = false;       // by a lane: the file's contents have begun
  bool fault_fired = false;  // the disk's, the ring's or the GPU's
  bool failed = false;       // a lane has, of this or of other things
  bool filled = false;       // a lane has come to its end
  bool complete = false;     // and its files have all that they are to have
  std::uint64_t waits = 0;   // for another lane, with nothing else to do
};

// One run's.
struct SimContents final : public plugin::ContentsWorld {
  // What the seed wants. By CRIU's file id, and gpu_id, which is no other file's.
  std::map<std::pair<int, std::uint32_t>, SimGpu> gpus;
  // Pages files that several lanes read; then there is a SharedReader.
  std::set<std::string> shared;
  test::Rng reader_rng{0};
  std::set<std::uint64_t> no_threads;  // which of those that are asked for cannot be made; 0: the server's
  bool wakes_late = false;             // who is woken takes its time, so that others may come first
  unsigned workers = 0;                // of each lane
  CloneCall clone;                     // what FICLONERANGE does there

  // Pages files and sums of all.
  void write_images(const test::TempDir& directory) const;
  // Whether a file's BOs are as they were; whether nobody has written to them.
  bool whole(int id) const;
  bool untouched(int id) const;
  // Whether its contents have begun.
  bool begun(int id) const;
  // The task does it itself.
  void restore_itself(int id);

  // What happened.
  int stored_fd = -1;            // in the fdstore
  std::uint64_t at_once = 0;     // lanes under way
  std::uint64_t most_lanes = 0;  // at once
  std::uint64_t stopped = 0;     // lanes, for another's sake
  std::uint64_t read_once = 0;   // transfers of SharedReaders

  std::uint64_t now_ns() override;
  void wait(Lock& lock, std::condition_variable& changed, std::uint64_t end_ns) override;
  void wake(std::condition_variable& changed) override;
  void wake_one(std::condition_variable& changed) override;
  Result<LaneThread> start_thread(const std::string& name, std::function<Result<void>()> body) override;
  Result<std::unique_ptr<Reactor>> make_reactor(unsigned entries, std::span<std::byte> arena,
                                                std::string& note) override;
  unsigned spare_workers(std::size_t lanes) override;
  void step(const Pipeline& pipeline) override;
  Result<std::unique_ptr<plugin::LaneGpu>> open_gpu(const plugin::LaneContents& contents) override;

 private:
  std::uint64_t threads_asked_for_ = 0;
  std::map<const std::condition_variable*, std::uint64_t> wakes_;
};

// Of the run under way.
void set_contents(SimContents* now);
SimContents& contents();

}  // namespace sluice::sim
