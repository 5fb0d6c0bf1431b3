// SPDX-License-Identifier: MIT
// A record of what programs do to the plugin's files in one directory (disk_recorder.cc).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "crash_model.h"
#include "disk_record.h"
#include "lookalike/harness.h"

namespace sluice::plugin_test {

using lookalike::program_directory;

// The environment of hosts that are recorded while it lives.
class Recording {
 public:
  Recording(const std::filesystem::path& directory, std::filesystem::path file) : file_(std::move(file)) {
    set("LD_PRELOAD", (program_directory() / "libdisk-recorder.so").string());
    set(kRecordDirectory, std::filesystem::canonical(directory).string());
    set(kRecordFile, file_.string());
  }
  ~Recording() {
    for (const char* const name : {"LD_PRELOAD", kRecordDirectory, kRecordFile}) (void)::unsetenv(name);
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::vector<DiskEvent> events() const { return read_disk_record(file_); }

 private:
  static void set(const char* name, const std::string& value) { (void)::setenv(name, value.c_str(), 1); }

  std::filesystem::path file_;
};

}  // namespace sluice::plugin_test
