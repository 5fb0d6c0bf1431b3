// SPDX-License-Identifier: MIT
// What the content server and the tasks have around them, for simulations of both: sim_contents.cc stands in
// for ContentsJob, LaneThread and CRIU's fdstore, so that the real server and the real channel run in virtual
// time. It knows who has written which open file's BOs.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "sim/sim_processes.h"

namespace sluice::sim {

struct SimContents {
  // By CRIU's file id, what the seed wants of the server.
  struct Plan {
    bool cannot_be_made = false;  // the job: no threads, say
    bool fails = false;           // contents that do not verify
  };
  std::map<int, Plan> plans;
  bool no_thread = false;  // for the server

  // What happened.
  std::set<int> begun;   // by the server
  std::set<int> failed;  // of these, by themselves
  int stored_fd = -1;    // in the fdstore
};

// Of the run under way.
SimContents& contents();
void set_contents(SimContents* now);

}  // namespace sluice::sim
