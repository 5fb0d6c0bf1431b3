// SPDX-License-Identifier: MIT
// A test's own directory, removed with everything in it. Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "support/serial_writer.h"

namespace sluice::test {

class TempDir {
 public:
  // Below `parent`; empty: below $TMPDIR or /tmp. Ends the process if it cannot be made: no test could go on.
  explicit TempDir(const std::string& parent = "");
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

  std::vector<std::string> names() const;  // sorted
  Bytes read(const std::string& name) const;
  void write(const std::string& name, const Bytes& bytes) const;
  bool exists(const std::string& name) const;

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace sluice::test
