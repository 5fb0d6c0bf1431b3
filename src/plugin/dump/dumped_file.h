// SPDX-License-Identifier: MIT
// An open file of the tree, of /dev/kfd or of a render node, on its way into the images: it is begun, its
// contents flow beside whatever the host does, the host says which file it is, and it gets its names.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/dump/dump_contents.h"

namespace sluice::plugin {

class DumpedFile {
 public:
  virtual ~DumpedFile() = default;
  DumpedFile(const DumpedFile&) = delete;
  DumpedFile& operator=(const DumpedFile&) = delete;

  // A descriptor of ours of it.
  virtual int fd() const = 0;
  const std::vector<pid_t>& holders() const { return holders_; }  // processes whose descriptor it is
  const std::string& name() const { return name_; }               // for messages

  // What it has stands still and is listed from now on. Once.
  virtual Result<void> begin() = 0;
  // From begin() on; null where it has none of its own.
  virtual DumpContents* contents() = 0;
  // When it is settled which BOs others make: contents(), which there are, of the rest are waiting then.
  // Idempotent.
  virtual Result<void> take_contents() = 0;

  // CRIU's, once it has asked for the file.
  std::optional<int> id() const { return id_; }
  void set_id(int id) { id_ = id; }
  virtual std::string image_name() const = 0;  // needs id(), as all below do

  // Joins the contents and writes all but the metadata. Once; further calls do nothing.
  Result<void> finish() { return std::exchange(finished_, true) ? Result<void>() : finish_contents(); }
  bool finished() const { return finished_; }
  // After finish(): the metadata.
  virtual Result<void> write() = 0;

  // Says that CRIU has not asked for it.
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
