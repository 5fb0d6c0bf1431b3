// SPDX-License-Identifier: MIT
// What the user may set: upstream's KFD_* variables with their meaning and ours, SLUICE_*.
// docs/configuration.md is the list for users.
//
// Read once, in init(), before any fork: from the environment, and below it from files (settings.h; the same
// names, because container engines do not pass environments on). A bad value gives one warning and the
// default; a name in the file that is no setting, or one in the environment that is nearly one of ours, one
// warning. Plain value.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "images/key.h"
#include "kfd/matching.h"
#include "pipeline/arena.h"
#include "pipeline/store/file_store.h"

namespace sluice::plugin {

inline constexpr const char* kConfigFile = "/etc/criu/sluice.conf";

struct Config {
  std::uint64_t staging_bytes = 64 * kMiB;  // per GPU; slots = staging_bytes / chunk_bytes
  std::uint64_t chunk_bytes = 4 * kMiB;     // power of two, multiple of kSumBlockBytes
  IoMode io_mode = IoMode::Auto;
  bool checksum = true;
  bool sync = true;
  bool zero_holes = true;
  bool reuse_files = false;
  bool parallel = true;
  bool stats = true;
  bool trace = false;
  std::optional<std::string> key_file;     // nothing: images have no key
  std::optional<std::string> gpu_map;      // as it was written: kfd::GpuMap reads it where it is needed
  std::chrono::seconds fence_timeout{60};  // for one GPU copy, and for work of the target's on its BOs
  kfd::MatchRules match_rules;

  // Slots of one lane.
  std::uint32_t slots() const { return slots_in(staging_bytes, chunk_bytes); }

  // The same for one of `lanes` that use a GPU at the same time and share its staging memory. Chunks shrink
  // before there are too few of them to keep all stages busy; two of the smallest are the least that a lane
  // works with.
  Config shared_by(unsigned lanes) const;
  // How many can: beyond these the staging memory would grow.
  std::size_t lanes_at_once() const;
};

// "4096", "512K", "64M", "2G" (also lower case) as bytes. Nothing for anything else or what overflows.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// A variable's value, or nothing. The real one looks into the environment, then into the configuration file.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// Turns settings into a Config; complaints go to `lines`.
Config parse_config(const Lookup& lookup, LogLines& lines);

// The key that the configuration asks for, out of a file of 64 hexadecimal digits and at most a newline.
// Errors: EINVAL for a path that is not absolute, a file that is no key, and where checksums are switched
// off; EPERM for a file that is not root's or this user's, or that others may read; those of open and read.
Result<std::optional<ImageKey>> read_key(const Config& config);

// The names of all settings: what parse_config() looks up.
std::set<std::string> setting_names();

// The setting that a name which is none was most likely meant to be: a slip of the keyboard away, of a long
// name two; upper and lower case are one. Nothing where there is none. `settings`: all names.
std::optional<std::string> meant_setting(std::string_view name, const std::set<std::string>& settings);

// Lookup over the process' environment and `file` (lines NAME=value, # comments). A file that is
// unreadable, longer than 64 KiB, another user's but not root's, or that others can write, is a warning. So
// is a name that is no setting: any in the file, which is for nobody else; in the environment one that begins
// with SLUICE_ or KFD_ and is nearly one of ours. Of each place only the first ones are told.
Lookup environment_and_file(const char* file, LogLines& lines);
// Over several files: what an earlier one has a later one cannot change. Each that is read is told, but for
// the last.
Lookup environment_and_files(const std::vector<std::string>& files, LogLines& lines);

}  // namespace sluice::plugin
