// SPDX-License-Identifier: MIT
// What one dump or pre-dump is made with: decided before any process is touched, and constant from then on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "images/files/files.h"
#include "images/sums.h"
#include "kfd/topology.h"
#include "plugin/dump/basis/parent.h"
#include "plugin/host/image_store.h"
#include "settings/config.h"

namespace sluice::plugin {

// What a pre-dump does in another way than a dump.
struct DumpPolicy {
  // The job runs while its contents are copied. So nothing is waited for, and what the job writes meanwhile
  // is dumped again. Its state is of a moment that is over, and no restore uses it. Files have their own
  // names, because they are no dump.
  bool job_runs = false;
  // What there is to warn of was said: this is a further share of the same pre-dump.
  bool is_again = false;
};

struct DumpBasis {
  // `where` is borrowed.
  DumpBasis(ImageStore& where, dev_t kfd, DumpPolicy how) : store(where), kfd_device(kfd), policy(how) {}

  ImageStore& store;
  dev_t kfd_device = 0;  // 0: no KFD on this machine
  DumpPolicy policy;
  settings::Config config;
  kfd::Topology topology;  // local
  DumpId dump_id{};
  SumMethod sums;     // how all its sums of contents are made
  DumpParent parent;  // empty: everything is written
  // If not 0, files of the dump can share extents with other files, in multiples of this many bytes.
  std::uint64_t clone_block_bytes = 0;
  bool shares_replicas = false;  // what several GPUs have is written once

  // `dump_id`, the store's keys, and sums of a dump without a parent. Next after `config`. Errors: those of
  // reading the key; of sums with it.
  Result<void> prepare();
  // Next: the parent, if there is one, with its sums; and what files can share. Errors: find_parent()'s.
  Result<void> look_for_parent();

  // What the dump's files may lack.
  Lacks lacks() const;
  // The name here of the metadata that a complete dump calls `in_dump`. A dump that leaves contents to other
  // files has other names for all of them, even if it finds nothing to leave.
  std::string name_of(const std::string& in_dump) const;
  // Saves a file's metadata, last: it appears only when the contents are complete.
  Result<void> save(const std::string& name, std::span<const std::uint8_t> payload) const;
  // Makes names durable, if the configuration says so.
  Result<void> sync() const;
};

}  // namespace sluice::plugin
