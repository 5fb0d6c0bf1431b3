// SPDX-License-Identifier: MIT
// The user's settings: upstream's KFD_* variables with upstream's meaning, and our SLUICE_* variables.
// docs/user/configuration.md is the list for users.
//
// Read once, in init(), before any fork: from the environment, then from files (settings.h). Files use the
// same names, because container engines do not pass environments on. A bad value gives one warning and the
// default. An unknown name in the file gives one warning; so does a near miss of our names in the
// environment. Plain value.
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
#include "images/files/key.h"
#include "kfd/matching/matching.h"
#include "pipeline/arena.h"
#include "pipeline/store/direct_io.h"

namespace sluice::settings {

// What a dump does about running kernels that a restore could not continue.
enum class LostWaves { Refuse, Warn };

// Whether a dump writes contents that several GPUs have once. Auto: where files can share extents.
enum class Dedup { Off, Auto, On };

inline constexpr const char* kConfigFile = "/etc/criu/sluice.conf";

struct Config {
  std::uint64_t staging_bytes = standard_staging_bytes(1);  // per GPU; slots = staging_bytes / chunk_bytes
  bool standard_staging =
      true;  // the user has not set it: with many GPUs each has less, standard_staging_bytes()
  std::uint64_t chunk_bytes = 4 * kMiB;  // power of two, multiple of kSumBlockBytes
  IoMode io_mode = IoMode::Auto;
  bool checksum = true;
  bool sync = true;
  bool zero_holes = true;
  bool reuse_files = false;
  Dedup dedup = Dedup::Auto;
  bool parallel = true;
  bool stats = true;
  bool trace = false;
  bool predump = true;                                // a pre-dump includes GPU contents
  std::uint64_t predump_bytes_per_second = 4 * kGiB;  // per GPU, while the job runs; 0: no limit
  std::optional<std::string> key_file;                // nothing: images have no key
  std::optional<std::string> gpu_map;                 // unparsed: kfd::GpuMap reads it where it is needed
  std::chrono::seconds fence_timeout{60};  // for one GPU copy, and for the target's work on its BOs
  std::chrono::seconds waves_timeout{1};   // a dump waits for such kernels to end; 0: it does not
  LostWaves lost_waves = LostWaves::Refuse;
  kfd::MatchRules match_rules;

  // Slots of one lane.
  std::uint32_t slots() const { return slots_in(staging_bytes, chunk_bytes); }

  // The configuration of one of `lanes` that use a GPU at the same time and share its staging memory, with
  // `all_lanes` on all GPUs. Chunks shrink before there are too few of them to keep all stages busy. A lane
  // gets at least two chunks of the smallest size.
  Config shared_by(unsigned lanes, std::size_t all_lanes = 1) const;
  // How many lanes can: with more, the staging memory would grow.
  std::size_t lanes_at_once() const;
};

// "4096", "512K", "64M", "2G" (also lower case) as bytes. Nothing for anything else or on overflow.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// A variable's value, or nothing. The real one searches the environment, then the configuration file.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// Turns settings into a Config; complaints are added to `lines`.
Config parse_config(const Lookup& lookup, LogLines& lines);

// The configured key, from a file of 64 hexadecimal digits and at most a newline. Errors: EINVAL for a
// relative path, a file that is no key, or checksums switched off; EPERM unless the file belongs to root or
// this user and others cannot read it; those of open and read.
Result<std::optional<ImageKey>> read_key(const Config& config);

// The names of all settings: those that parse_config() looks up.
std::set<std::string> setting_names();

// The setting that an unknown name most likely means: one typing error away, two for a long name; case is
// ignored. Nothing if there is none. `settings`: all names.
std::optional<std::string> meant_setting(std::string_view name, const std::set<std::string>& settings);

// Lookup over the process' environment and `file` (lines NAME=value, # comments). One warning for a file that
// is unreadable, longer than 64 KiB, owned by neither root nor this user, or writable by others. One warning
// for each unknown name. In the file, which only we use, that is any; in the environment a near miss that
// begins with SLUICE_ or KFD_. Only the first ones of each place are reported.
Lookup environment_and_file(const char* file, LogLines& lines);
// Over several files: a later file cannot change what an earlier one sets. Each file that is read is logged,
// except the last.
Lookup environment_and_files(const std::vector<std::string>& files, LogLines& lines);

}  // namespace sluice::settings
