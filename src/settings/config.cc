// SPDX-License-Identifier: MIT
#include "settings/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/printable.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "kfd/matching/gpu_map.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::settings {

namespace {

constexpr std::uint64_t kLargestStaging = 64 * kGiB;
constexpr std::uint64_t kLargestChunk = 64 * kMiB;
constexpr std::uint64_t kLargestRate = 1024 * kGiB;  // bytes a second
constexpr std::uint32_t kEnoughSlots = 8;            // of a lane whose share the user has not chosen
constexpr std::size_t kLongestFile = 64 * kKiB;
constexpr std::uint64_t kLongestTimeout = 3600;  // seconds
constexpr std::size_t kMostComplaints =
    16;  // from one place; a file that is no settings file has thousands of lines

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

void complain(LogLines& lines, const char* name, const std::string& value, const std::string& expected) {
  lines.push_back(
      {Level::Warning, formatted("{}={} is not understood (expected {}); the default is used [SL-S03]", name,
                                 printable(value), expected)});
}

// `number` in K, M or G (also lower case) as bytes. Nothing for another letter or on overflow.
std::optional<std::uint64_t> in_units(std::uint64_t number, char letter) {
  std::uint64_t unit = 0;
  switch (std::toupper(static_cast<unsigned char>(letter))) {
    case 'K':
      unit = kKiB;
      break;
    case 'M':
      unit = kMiB;
      break;
    case 'G':
      unit = kGiB;
      break;
    default:
      return std::nullopt;
  }
  if (number > UINT64_MAX / unit) return std::nullopt;
  return number * unit;
}

bool parse_switch(const Lookup& lookup, const char* name, bool otherwise, LogLines& lines) {
  const auto value = lookup(name);
  if (!value) return otherwise;
  const std::string word = lower(*value);
  if (word == "1" || word == "yes" || word == "on" || word == "true") return true;
  if (word == "0" || word == "no" || word == "off" || word == "false") return false;
  complain(lines, name, *value, "1/yes/on/true or 0/no/off/false");
  return otherwise;
}

std::uint64_t parse_size(const Lookup& lookup, const char* name, std::uint64_t otherwise, std::uint64_t least,
                         std::uint64_t most, LogLines& lines) {
  const auto value = lookup(name);
  if (!value) return otherwise;
  const auto bytes = parse_bytes(*value);
  if (!bytes || *bytes < least || *bytes > most) {
    complain(lines, name, *value, formatted("bytes, with K, M or G, from {} to {}", least, most));
    return otherwise;
  }
  return *bytes;
}

// As upstream's plugin reads it (getenv_size_t(), CRIU 4.0 to criu-dev; 3.x has no such variable): a number
// as strtoul() reads it in base 0. That allows leading spaces, a sign, octal after 0, hexadecimal after 0x.
// Then comes nothing, or k, K, M or G and anything after it. Our additions: m and g.
std::optional<std::uint64_t> parse_upstream_bytes(const std::string& text) {
  errno = 0;
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text.c_str(), &end, 0);
  if (errno != 0 || end == text.c_str()) return std::nullopt;
  return *end == '\0' ? std::optional(number) : in_units(number, *end);
}

// Upstream's limit on its copy buffer. 0: no limit.
std::uint64_t parse_cap(const Lookup& lookup, LogLines& lines) {
  constexpr const char* kName = "KFD_MAX_BUFFER_SIZE";
  const auto value = lookup(kName);
  if (!value) return 0;
  const auto bytes = parse_upstream_bytes(*value);
  if (!bytes) complain(lines, kName, *value, "bytes, decimal or as 0x10, with K, M or G, less than 2^64");
  return bytes.value_or(0);
}

// One of `words`, of which the first is the default. `wanted`: all of them, for a warning.
template <class Choice>
Choice parse_choice(const Lookup& lookup, const char* name,
                    std::initializer_list<std::pair<std::string_view, Choice>> words, const char* wanted,
                    LogLines& lines) {
  const Choice standard = words.begin()->second;
  const auto value = lookup(name);
  if (!value) return standard;
  const std::string given = lower(*value);
  for (const auto& [word, choice] : words)
    if (given == word) return choice;
  complain(lines, name, *value, wanted);
  return standard;
}

std::chrono::seconds parse_seconds(const Lookup& lookup, const char* name, std::chrono::seconds otherwise,
                                   std::uint64_t least, LogLines& lines) {
  const auto value = lookup(name);
  if (!value) return otherwise;
  std::uint64_t seconds = 0;
  const char* const end = value->data() + value->size();
  const auto parsed = std::from_chars(value->data(), end, seconds);
  if (parsed.ec != std::errc() || parsed.ptr != end || seconds < least || seconds > kLongestTimeout) {
    complain(lines, name, *value, formatted("seconds, from {} to {}", least, kLongestTimeout));
    return otherwise;
  }
  return std::chrono::seconds(seconds);
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

// How many letters are missing, extra, wrong, or swapped with their neighbour. Case is ignored.
std::size_t slips_between(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return std::toupper(static_cast<unsigned char>(x)) == std::toupper(static_cast<unsigned char>(y));
  };
  std::vector<std::size_t> before, last, row(b.size() + 1);  // rows of the table: a's first letters, b's
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string no_such_setting(const std::string& name, const std::optional<std::string>& meant) {
  return formatted(": there is no setting {}; it is ignored{} [SL-S04]", printable(name),
                   meant ? formatted(", did you mean {}?", *meant) : "");
}

void complain_of_all(LogLines& lines, const std::string& place, const std::vector<std::string>& faults) {
  for (std::size_t i = 0; i < std::min(faults.size(), kMostComplaints); ++i)
    lines.push_back({Level::Warning, place + faults[i]});
  if (faults.size() > kMostComplaints) {
    lines.push_back(
        {Level::Warning, formatted("{} has {} more faults like these; is it a file of settings? [SL-S05]",
                                   place, faults.size() - kMostComplaints)});
  }
}

// Whether a name begins so that others would hardly choose it by chance.
bool is_of_our_kind(std::string_view name) {
  const std::string letters = lower(name.substr(0, std::string_view("SLUICE_").size()));
  return letters.starts_with("sluice_") || letters.starts_with("kfd_");
}

// Other programs have variables there, too, so only near misses of our names are reported.
void look_for_slips(char** environment, LogLines& lines) {
  const std::set<std::string> known = setting_names();
  std::vector<std::string> faults;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable(*environment);
    const std::string name(variable.substr(0, variable.find('=')));
    if (!is_of_our_kind(name) || known.contains(name)) continue;
    const auto meant = meant_setting(name, known);
    // Without the key that the user asked for, any images would be restored. Upstream has no such check.
    const bool ours =
        name.starts_with("SLUICE_KEY") || (name.starts_with("KFD_") && name.ends_with("_CHECK"));
    if (meant || ours) faults.push_back(no_such_setting(name, meant));
  }
  complain_of_all(lines, "environment", faults);
}

std::map<std::string, std::string> parse_file(std::string_view text, const char* file, LogLines& lines) {
  std::map<std::string, std::string> settings;
  const std::set<std::string> known = setting_names();
  std::vector<std::string> faults;
  const auto complain_of_line = [&](unsigned number, const std::string& fault) {
    faults.push_back(formatted(" line {}{}", number, fault));
  };
  for (unsigned number = 1; !text.empty(); ++number) {
    const std::size_t newline = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, newline));
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    const std::string name(trimmed(line.substr(0, equals)));
    if (equals == std::string_view::npos || name.empty()) {
      complain_of_line(number, " is not NAME=value and is ignored [SL-S06]");
    } else if (!known.contains(name)) {
      complain_of_line(number, no_such_setting(name, meant_setting(name, known)));
    } else {
      settings[name] = trimmed(line.substr(equals + 1));
    }
  }
  complain_of_all(lines, file, faults);
  return settings;
}

// What others may do to a file of ours. Who writes the settings decides what root's dumps check and how much
// memory they take. Who reads the key can forge images.
enum class Others { MayRead, MayNothing };

bool is_trusted(const struct stat& status, Others others) {
  const mode_t forbidden = others == Others::MayRead ? S_IWGRP | S_IWOTH : S_IRWXG | S_IRWXO;
  return S_ISREG(status.st_mode) && (status.st_uid == 0 || status.st_uid == ::geteuid()) &&
         (status.st_mode & forbidden) == 0;
}

// The whole file, unless it is too long or others can change it.
Result<std::string> read_file(const std::string& file, Others others) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return make_error(errno, "open " + file);
  if (!is_trusted(status, others)) {
    return Error{
        EPERM,
        file + (others == Others::MayRead
                    ? " is not a file that only root or this user can write; chown it, and chmod 644 [SL-S07]"
                    : " is not a file that only root or this user can read; chown it, and chmod 600 "
                      "[SL-S08]")};
  }
  std::string text(kLongestFile + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = TEMP_FAILURE_RETRY(::read(fd.get(), text.data() + have, text.size() - have));
    if (got < 0) return make_error(errno, "read " + file);
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  if (have > kLongestFile)
    return Error{EINVAL, file + " is longer than 64 KiB, so it is no file of settings or key [SL-S09]"};
  text.resize(have);
  return text;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (suffix.size() > 1) return std::nullopt;
  return suffix.empty() ? std::optional(number) : in_units(number, suffix.front());
}

Config Config::shared_by(unsigned lanes, std::size_t all_lanes) const {
  Config part = *this;
  const std::size_t gpus = all_lanes / std::max(lanes, 1U);
  if (standard_staging) part.staging_bytes = std::min(staging_bytes, standard_staging_bytes(gpus));
  part.staging_bytes /= std::max(lanes, 1U);
  const std::uint64_t enough = lanes > 1 ? kEnoughSlots : kFewestSlots;
  while (part.staging_bytes / part.chunk_bytes < enough && part.chunk_bytes > kSumBlockBytes)
    part.chunk_bytes /= 2;
  part.staging_bytes =
      std::max(part.staging_bytes - part.staging_bytes % part.chunk_bytes, kFewestSlots * part.chunk_bytes);
  return part;
}

std::size_t Config::lanes_at_once() const {
  return std::max<std::size_t>(staging_bytes / (kFewestSlots * kSumBlockBytes), 1);
}

Config parse_config(const Lookup& lookup, LogLines& lines) {
  Config config;
  const Config standard;
  config.chunk_bytes =
      parse_size(lookup, "SLUICE_CHUNK_SIZE", standard.chunk_bytes, kSumBlockBytes, kLargestChunk, lines);
  if (!std::has_single_bit(config.chunk_bytes)) {
    complain(lines, "SLUICE_CHUNK_SIZE", std::to_string(config.chunk_bytes), "a power of two");
    config.chunk_bytes = standard.chunk_bytes;
  }
  config.staging_bytes = parse_size(lookup, "SLUICE_STAGING_SIZE", standard.staging_bytes,
                                    kFewestSlots * kSumBlockBytes, kLargestStaging, lines);
  config.standard_staging = config.staging_bytes == standard.staging_bytes && !lookup("SLUICE_STAGING_SIZE");
  const std::uint64_t cap = parse_cap(lookup, lines);
  if (cap != 0) config.staging_bytes = std::min(config.staging_bytes, cap);
  const Config wanted = config;
  config = config.shared_by(1);
  if (config.staging_bytes > wanted.staging_bytes) {
    lines.push_back(
        {Level::Warning, formatted("KFD_MAX_BUFFER_SIZE={} is less than the pipeline needs; {} bytes per GPU "
                                   "are used [SL-S10]",
                                   cap, config.staging_bytes)});
  }
  config.io_mode = parse_choice<IoMode>(
      lookup, "SLUICE_IO_MODE",
      {{"auto", IoMode::Auto}, {"direct", IoMode::Direct}, {"buffered", IoMode::Buffered}},
      "auto, direct or buffered", lines);
  config.checksum = parse_switch(lookup, "SLUICE_CHECKSUM", standard.checksum, lines);
  config.sync = parse_switch(lookup, "SLUICE_SYNC", standard.sync, lines);
  config.zero_holes = parse_switch(lookup, "SLUICE_ZERO_HOLES", standard.zero_holes, lines);
  config.reuse_files = parse_switch(lookup, "SLUICE_REUSE", standard.reuse_files, lines);
  config.dedup = parse_choice<Dedup>(lookup, "SLUICE_DEDUP",
                                     {{"auto", Dedup::Auto}, {"on", Dedup::On}, {"off", Dedup::Off}},
                                     "auto, on or off", lines);
  config.parallel = parse_switch(lookup, "SLUICE_PARALLEL", standard.parallel, lines);
  config.stats = parse_switch(lookup, "SLUICE_STATS", standard.stats, lines);
  config.trace = parse_switch(lookup, "SLUICE_TRACE", standard.trace, lines);
  config.predump = parse_switch(lookup, "SLUICE_PREDUMP", standard.predump, lines);
  config.predump_bytes_per_second =
      parse_size(lookup, "SLUICE_PREDUMP_RATE", standard.predump_bytes_per_second, 0, kLargestRate, lines);
  config.key_file = lookup("SLUICE_KEY_FILE");
  if (config.key_file == "none") config.key_file.reset();
  config.gpu_map = lookup(kfd::kGpuMapSetting);
  if (config.gpu_map == "") config.gpu_map.reset();
  config.fence_timeout = parse_seconds(lookup, "SLUICE_FENCE_TIMEOUT", standard.fence_timeout, 1, lines);
  config.waves_timeout = parse_seconds(lookup, "SLUICE_WAVES_TIMEOUT", standard.waves_timeout, 0, lines);
  config.lost_waves = parse_choice<LostWaves>(lookup, "SLUICE_LOST_WAVES",
                                              {{"refuse", LostWaves::Refuse}, {"warn", LostWaves::Warn}},
                                              "refuse or warn", lines);
  // Outlives parse_match_rules(), which refers to it.
  std::map<std::string, std::optional<std::string>> values;
  kfd::ParsedMatchRules match = kfd::parse_match_rules([&](const char* name) -> const char* {
    const auto& value = values.try_emplace(name, lookup(name)).first->second;
    return value ? value->c_str() : nullptr;
  });
  config.match_rules = match.rules;
  for (std::string& warning : match.warnings) lines.push_back({Level::Warning, std::move(warning)});
  return config;
}

Result<std::optional<ImageKey>> read_key(const Config& config) {
  if (!config.key_file) return std::optional<ImageKey>();
  const std::string setting = "SLUICE_KEY_FILE=" + printable(*config.key_file);
  if (!config.key_file->starts_with('/'))
    return Error{EINVAL, setting + " is not an absolute path; name the key's file from / on [SL-S11]"};
  if (!config.checksum) {
    return Error{EINVAL,
                 setting + " needs checksums, but SLUICE_CHECKSUM is off; leave out one of the two [SL-S12]"};
  }
  auto text = read_file(*config.key_file, Others::MayNothing);
  if (!text) {
    const bool closed = text.error().err == EACCES;
    return with_remedy(explain("SLUICE_KEY_FILE", text.error()),
                       closed ? "; let criu's user read it [SL-S13]" : "");
  }
  std::string_view digits = *text;
  if (digits.ends_with('\n')) digits.remove_suffix(1);
  ImageKey key;
  bool good = digits.size() == 2 * key.size();
  for (std::size_t i = 0; good && i < key.size(); ++i) {
    const char* const begin = digits.data() + 2 * i;
    const auto parsed = std::from_chars(begin, begin + 2, key[i], 16);
    good = parsed.ec == std::errc() && parsed.ptr == begin + 2;
  }
  if (!good) {
    return Error{
        EINVAL,
        setting + " does not hold 64 hexadecimal digits; make a key with openssl rand -hex 32 [SL-S14]"};
  }
  return std::optional(key);
}

std::set<std::string> setting_names() {
  std::set<std::string> names;
  LogLines none;
  (void)parse_config(
      [&](const char* name) -> std::optional<std::string> {
        names.emplace(name);
        return std::nullopt;
      },
      none);
  return names;
}

std::optional<std::string> meant_setting(std::string_view name, const std::set<std::string>& settings) {
  constexpr std::size_t kMostSlips = 2;
  constexpr std::size_t kLettersPerSlip =
      4;  // after the prefix: a short near miss may be another program's name
  std::optional<std::string> nearest;
  std::size_t fewest = SIZE_MAX;
  for (const std::string& setting : settings) {
    const std::size_t letters = setting.size() - setting.find('_') - 1;
    const std::size_t most = std::min(kMostSlips, letters / kLettersPerSlip);
    if (name.size() > setting.size() + most || setting.size() > name.size() + most) continue;
    const std::size_t slips = slips_between(name, setting);
    if (slips > most || slips >= fewest) continue;
    nearest = setting;
    fewest = slips;
  }
  return nearest;
}

Lookup environment_and_file(const char* file, LogLines& lines) {
  return environment_and_files({file}, lines);
}

Lookup environment_and_files(const std::vector<std::string>& files, LogLines& lines) {
  look_for_slips(environ, lines);
  std::map<std::string, std::string> settings;
  for (const std::string& file : files) {
    auto text = read_file(file, Others::MayRead);
    if (text) {
      if (file != files.back()) lines.push_back({Level::Info, "settings are read from " + printable(file)});
      settings.merge(parse_file(*text, file.c_str(), lines));  // keeps the values it already has
    } else if (text.error().err != ENOENT) {
      lines.push_back(
          {Level::Warning, formatted("a file of settings is ignored: {} [SL-S15]", text.error().what)});
    }
  }
  return [settings = std::move(settings)](const char* name) -> std::optional<std::string> {
    if (const char* value = std::getenv(name)) return value;
    if (const auto found = settings.find(name); found != settings.end()) return found->second;
    return std::nullopt;
  };
}

}  // namespace sluice::settings
