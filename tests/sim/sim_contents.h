// SPDX-License-Identifier: MIT
// What the content server and the tasks have around them, for simulations of all of it: sim_contents.cc
// stands in for what is around lanes in ContentsJob (rings, GPUs, staging), for LaneThread and CRIU's
// fdstore. Lanes are threads of the simulation and real inside: loop, checksum stage, file stage and the
// share of the disk, over a reactor and a copy engine in virtual time. It knows who has written which BOs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "pipeline/checksum/checksum.h"
#include "sim/sim_processes.h"
#include "support/serial_writer.h"
#include "support/temp_dir.h"

namespace sluice::sim {

inline constexpr std::byte kGarbage{0x5a};  // in BOs that nobody has filled

// The contents of one GPU of an open file.
struct SimGpu {
  // What becomes of them.
  enum class Trouble : std::uint8_t { None, Corrupt, Disk, Gpu, Ring };

  // `image`: the BOs as they were. `at`: the byte of the pages file, or the operation, that goes wrong.
  SimGpu(test::BoList image, test::Rng rng, Trouble trouble, std::uint64_t at);

  test::BoList image;
  test::BoList bos;  // the task's
  SumTable sums;     // a block is a chunk
  test::Rng rng;
  Trouble trouble;
  std::uint64_t at;
};

struct SimContents {
  // What the seed wants. By CRIU's file id, and gpu_id.
  std::map<std::pair<int, std::uint32_t>, SimGpu> gpus;
  std::set<int> cannot_be_made;  // jobs: no threads, say
  bool no_thread = false;        // for the server

  // Pages files of all.
  void write_images(const test::TempDir& directory) const;
  // Whether a file's BOs are as they were; whether nobody has written to them.
  bool whole(int id) const;
  bool untouched(int id) const;
  // The task does it itself.
  void restore_itself(int id);

  // What happened.
  std::set<int> begun;           // by the server
  std::map<int, int> failed;     // of these, by themselves: the errno
  int stored_fd = -1;            // in the fdstore
  std::uint64_t at_once = 0;     // lanes under way
  std::uint64_t most_lanes = 0;  // at once
  std::uint64_t stopped = 0;     // lanes, for another's sake
};

// Of the run under way.
SimContents& contents();
void set_contents(SimContents* now);

}  // namespace sluice::sim
