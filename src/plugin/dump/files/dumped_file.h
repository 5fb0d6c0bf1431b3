// SPDX-License-Identifier: MIT
// An open file of the tree, of /dev/kfd or of a render node, on its way into the images. It is begun, its
// contents flow while the host does other work, the host names the file, and the images get their names.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/dump/contents/dump_contents.h"

namespace sluice::plugin {

class DumpedFile {
 public:
  virtual ~DumpedFile() = default;
  DumpedFile(const DumpedFile&) = delete;
  DumpedFile& operator=(const DumpedFile&) = delete;

  // Our own descriptor of it.
  virtual int fd() const = 0;
  const std::vector<pid_t>& holders() const { return holders_; }  // processes that have it open
  const std::string& name() const { return name_; }               // for messages

  // Stops and lists what belongs to the file. Once.
  virtual Result<void> begin() = 0;
  // From begin() on; null if it has none of its own.
  virtual DumpContents* contents() = 0;
  // Called when it is decided which BOs are shared, and who creates them.
  virtual void take_shares() = 0;
  // After that: contents() of what it creates itself are waiting. Idempotent.
  virtual Result<void> take_contents() = 0;

  // CRIU's id, once it has asked for the file.
  std::optional<int> id() const { return id_; }
  void set_id(int id) { id_ = id; }
  virtual std::string image_name() const = 0;  // needs id(), as all below do

  // Joins the contents and writes everything but the metadata. Once; further calls do nothing.
  Result<void> finish() { return std::exchange(finished_, true) ? Result<void>() : finish_contents(); }
  bool finished() const { return finished_; }
  // After finish(): the metadata.
  virtual Result<void> write() = 0;

  // Warns that CRIU has not asked for it.
  virtual void warn_of_loss() const = 0;

 protected:
  DumpedFile(std::vector<pid_t> holders, DumpRun& run) : holders_(std::move(holders)), run_(run) {}
  virtual Result<void> finish_contents() = 0;

  std::vector<pid_t> holders_;
  DumpRun& run_;
  std::string name_;

 private:
  std::optional<int> id_;
  bool finished_ = false;
};

}  // namespace sluice::plugin
