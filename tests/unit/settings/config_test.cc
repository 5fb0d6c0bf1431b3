// SPDX-License-Identifier: MIT
// What users may set, and that a bad value costs a warning and nothing else.
#include "settings/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/units.h"
#include "support/refuse_system_call.h"
#include "support/temp_dir.h"

namespace sluice::settings {
namespace {

struct Parsed {
  Config config;
  LogLines lines;
};

Parsed parse(const std::map<std::string, std::string>& settings) {
  Parsed parsed;
  parsed.config = parse_config(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = settings.find(name);
        return found == settings.end() ? std::nullopt : std::optional(found->second);
      },
      parsed.lines);
  return parsed;
}

TEST(ParseBytes, TakesNumbersWithASuffix) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("3k"), 3 * kKiB);
  EXPECT_EQ(parse_bytes("64M"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("2G"), 2 * kGiB);
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const char* text :
       {"", "M", "-1", " 1", "1 ", "1MB", "1T", "0x10", "1.5G", "18446744073709551616", "17179869184G"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Config, DefaultsAreDocumented) {
  const auto [config, lines] = parse({});
  EXPECT_EQ(config.staging_bytes, 64 * kMiB);
  EXPECT_EQ(config.chunk_bytes, 4 * kMiB);
  EXPECT_EQ(config.slots(), 16U);
  EXPECT_EQ(config.io_mode, IoMode::Auto);
  EXPECT_TRUE(config.checksum && config.sync && config.zero_holes && config.parallel);
  EXPECT_TRUE(config.stats);
  EXPECT_FALSE(config.reuse_files || config.trace);
  EXPECT_EQ(config.dedup, Dedup::Auto);
  EXPECT_EQ(config.fence_timeout, std::chrono::seconds(60));
  EXPECT_EQ(config.waves_timeout, std::chrono::seconds(1));
  EXPECT_EQ(config.lost_waves, LostWaves::Refuse);
  EXPECT_EQ(config.match_rules, kfd::MatchRules{});
  EXPECT_TRUE(lines.empty());
}

TEST(Config, TakesWhatIsSet) {
  const auto [config, lines] = parse({{"SLUICE_STAGING_SIZE", "32M"},
                                      {"SLUICE_CHUNK_SIZE", "8M"},
                                      {"SLUICE_IO_MODE", "Buffered"},
                                      {"SLUICE_CHECKSUM", "off"},
                                      {"SLUICE_SYNC", "0"},
                                      {"SLUICE_ZERO_HOLES", "NO"},
                                      {"SLUICE_REUSE", "on"},
                                      {"SLUICE_PARALLEL", "false"},
                                      {"SLUICE_FENCE_TIMEOUT", "5"},
                                      {"SLUICE_WAVES_TIMEOUT", "0"},
                                      {"SLUICE_LOST_WAVES", "Warn"},
                                      {"SLUICE_DEDUP", "OFF"},
                                      {"SLUICE_STATS", "off"},
                                      {"SLUICE_TRACE", "on"},
                                      {"KFD_NUMA_CHECK", "0"}});
  EXPECT_EQ(config.slots(), 4U);
  EXPECT_EQ(config.chunk_bytes, 8 * kMiB);
  EXPECT_EQ(config.io_mode, IoMode::Buffered);
  EXPECT_FALSE(config.checksum || config.sync || config.zero_holes || config.parallel);
  EXPECT_TRUE(config.reuse_files && config.trace);
  EXPECT_EQ(config.dedup, Dedup::Off);
  EXPECT_FALSE(config.stats);
  EXPECT_EQ(config.fence_timeout, std::chrono::seconds(5));
  EXPECT_EQ(config.waves_timeout, std::chrono::seconds(0));
  EXPECT_EQ(config.lost_waves, LostWaves::Warn);
  EXPECT_FALSE(config.match_rules.numa);
  EXPECT_TRUE(lines.empty());
}

TEST(Config, BadValuesGiveOneWarningEachAndTheDefault) {
  const std::map<std::string, std::string> bad = {
      {"SLUICE_STAGING_SIZE", "lots"},  {"SLUICE_CHUNK_SIZE", "3M"},   {"SLUICE_IO_MODE", "fast"},
      {"SLUICE_CHECKSUM", "maybe"},     {"SLUICE_SYNC", ""},           {"KFD_MAX_BUFFER_SIZE", "lots"},
      {"SLUICE_ZERO_HOLES", "2"},       {"SLUICE_FENCE_TIMEOUT", "0"}, {"KFD_FW_VER_CHECK", "perhaps"},
      {"SLUICE_WAVES_TIMEOUT", "3601"}, {"SLUICE_LOST_WAVES", "keep"}, {"SLUICE_DEDUP", "all"}};
  for (const auto& setting : bad) {
    const auto [config, lines] = parse({setting});
    ASSERT_EQ(lines.size(), 1U) << setting.first;
    EXPECT_EQ(lines[0].level, Level::Warning);
    EXPECT_NE(lines[0].text.find(setting.first), std::string::npos);
    EXPECT_EQ(config.staging_bytes, 64 * kMiB);
    EXPECT_EQ(config.chunk_bytes, 4 * kMiB);
    EXPECT_TRUE(config.checksum && config.sync && config.zero_holes);
    EXPECT_EQ(config.match_rules, kfd::MatchRules{});
  }
}

TEST(Config, UpstreamsCapIsKeptByFewerThenSmallerChunks) {
  EXPECT_EQ(parse({{"KFD_MAX_BUFFER_SIZE", "0"}}).config.staging_bytes, 64 * kMiB);
  EXPECT_EQ(parse({{"KFD_MAX_BUFFER_SIZE", "1G"}}).config.staging_bytes, 64 * kMiB);
  const Config twelve = parse({{"KFD_MAX_BUFFER_SIZE", "13M"}}).config;
  EXPECT_EQ(twelve.staging_bytes, 12 * kMiB);
  EXPECT_EQ(twelve.chunk_bytes, 4 * kMiB);
  const Config small = parse({{"KFD_MAX_BUFFER_SIZE", "4M"}}).config;
  EXPECT_EQ(small.staging_bytes, 4 * kMiB);
  EXPECT_EQ(small.chunk_bytes, 2 * kMiB);
}

// What upstream's plugin (CRIU 4.0 to criu-dev) makes of each; a cap that is none, or too large to be one,
// leaves the default.
TEST(Config, UpstreamsCapIsReadAsUpstreamReadsIt) {
  constexpr std::uint64_t kNone = 64 * kMiB;
  const std::pair<const char*, std::uint64_t> understood[] = {{"16777216", 16 * kMiB},
                                                              {"16384k", 16 * kMiB},
                                                              {"16384K", 16 * kMiB},
                                                              {"16M", 16 * kMiB},
                                                              {"1G", kNone},
                                                              {"0x1000000", 16 * kMiB},
                                                              {"0X1000000", 16 * kMiB},
                                                              {"0x10M", 16 * kMiB},
                                                              {"0100000000", 16 * kMiB},
                                                              {"020M", 16 * kMiB},
                                                              {" 16M", 16 * kMiB},
                                                              {"\t\n16M", 16 * kMiB},
                                                              {"+16M", 16 * kMiB},
                                                              {"16MB", 16 * kMiB},
                                                              {"16MiB", 16 * kMiB},
                                                              {"16384KB", 16 * kMiB},
                                                              {"16384kiB", 16 * kMiB},
                                                              {"16M of memory", 16 * kMiB},
                                                              {"16M\n", 16 * kMiB},
                                                              {"1GB", kNone},
                                                              {"0", kNone},
                                                              {"0G", kNone},
                                                              {"00", kNone},
                                                              {"-0", kNone},
                                                              {"-1", kNone},
                                                              {"-18446744073692774400", 16 * kMiB},
                                                              {"18446744073709551615", kNone},
                                                              {"18014398509481983K", kNone}};
  for (const auto& [text, staging] : understood) {
    const auto [config, lines] = parse({{"KFD_MAX_BUFFER_SIZE", text}});
    EXPECT_EQ(config.staging_bytes, staging) << text;
    EXPECT_TRUE(lines.empty()) << text;
  }
  for (const char* text : {"", " ", "G", "lots", "0x", "16T", "16 M", "16.5M", "16,", "08M", "16B", "16\n",
                           "-1K", "18446744073709551616", "18014398509481984K", "17179869184G"}) {
    const auto [config, lines] = parse({{"KFD_MAX_BUFFER_SIZE", text}});
    EXPECT_EQ(config.staging_bytes, kNone) << text;
    ASSERT_EQ(lines.size(), 1U) << text;
    EXPECT_EQ(lines[0].level, Level::Warning);
  }
}

// And the switches of the checks, in all its versions.
TEST(Config, UpstreamsSwitchesAreReadAsUpstreamReadsThem) {
  for (const char* text : {"0", "no", "No", "nO", "NO"}) {
    const auto [config, lines] = parse({{"KFD_NUMA_CHECK", text}});
    EXPECT_FALSE(config.match_rules.numa) << text;
    EXPECT_TRUE(lines.empty()) << text;
  }
  for (const char* text : {"1", "yes", "Yes", "yEs", "YES"}) {
    const auto [config, lines] = parse({{"KFD_NUMA_CHECK", text}});
    EXPECT_TRUE(config.match_rules.numa) << text;
    EXPECT_TRUE(lines.empty()) << text;
  }
  for (const char* text : {"", "00", "01", " 0", "0 ", "n", "N", "off", "false", "disable", "NO\n[31m"}) {
    const auto [config, lines] = parse({{"KFD_NUMA_CHECK", text}});
    EXPECT_TRUE(config.match_rules.numa) << text;
    ASSERT_EQ(lines.size(), 1U) << text;
    EXPECT_EQ(lines[0].text.find('\n'), std::string::npos) << "a value cannot make up a line";
  }
}

TEST(Config, LanesOfOneGpuShareItsStaging) {
  const Config config = parse({}).config;
  EXPECT_EQ(config.shared_by(1).staging_bytes, 64 * kMiB);
  EXPECT_EQ(config.shared_by(1).chunk_bytes, 4 * kMiB);
  EXPECT_EQ(config.shared_by(2).staging_bytes, 32 * kMiB);
  EXPECT_EQ(config.shared_by(2).slots(), 8U);
  EXPECT_EQ(config.shared_by(8).staging_bytes, 8 * kMiB);
  EXPECT_EQ(config.shared_by(8).slots(), 8U);
  EXPECT_EQ(config.shared_by(1000).staging_bytes, 2 * kMiB) << "the least that a lane works with";
}

TEST(Config, EachOfManyGpusHasLessStagingUnlessSomebodyHasSetIt) {
  const Config config = parse({}).config;
  EXPECT_EQ(config.shared_by(1, 2).staging_bytes, 64 * kMiB);
  EXPECT_EQ(config.shared_by(1, 3).staging_bytes, 32 * kMiB);
  EXPECT_EQ(config.shared_by(4, 8).staging_bytes, 16 * kMiB) << "four lanes on each of two GPUs";
  EXPECT_EQ(config.shared_by(2, 8).staging_bytes, 16 * kMiB) << "two lanes on each of four GPUs";
  EXPECT_EQ(parse({{"KFD_MAX_BUFFER_SIZE", "16M"}}).config.shared_by(1, 8).staging_bytes, 16 * kMiB);
  for (const char* text : {"16M", "64M", "1G"}) {
    const Config set = parse({{"SLUICE_STAGING_SIZE", text}}).config;
    EXPECT_EQ(set.shared_by(1, 8).staging_bytes, set.staging_bytes) << text;
  }
}

TEST(Config, ACapBelowTheLeastIsSaid) {
  const auto [config, lines] = parse({{"KFD_MAX_BUFFER_SIZE", "64K"}});
  EXPECT_EQ(config.staging_bytes, 2 * kMiB);
  EXPECT_EQ(config.slots(), 2U);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].text.find("KFD_MAX_BUFFER_SIZE"), std::string::npos);
}

// A file that only its owner can write, whatever the umask.
std::string make_config_file(const test::TempDir& dir, const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  dir.write("sluice.conf", test::Bytes(begin, begin + text.size()));
  const std::string path = dir.path() + "/sluice.conf";
  EXPECT_EQ(chmod(path.c_str(), 0644), 0);
  return path;
}

TEST(ConfigFile, HoldsTheSameNamesAndYieldsToTheEnvironment) {
  const test::TempDir dir;
  const std::string path =
      make_config_file(dir, "# comment\n\n SLUICE_CHUNK_SIZE = 8M \r\nSLUICE_STAGING_SIZE=32M\nnonsense\n");
  ASSERT_EQ(setenv("SLUICE_STAGING_SIZE", "16M", 1), 0);
  LogLines lines;
  const Lookup lookup = environment_and_file(path.c_str(), lines);
  EXPECT_EQ(lookup("SLUICE_CHUNK_SIZE"), "8M");
  EXPECT_EQ(lookup("SLUICE_STAGING_SIZE"), "16M");
  EXPECT_EQ(lookup("SLUICE_SYNC"), std::nullopt);
  ASSERT_EQ(unsetenv("SLUICE_STAGING_SIZE"), 0);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].text.find("line 5"), std::string::npos);
}

TEST(ConfigFile, OfSeveralTheFirstThatHasANameCounts) {
  const test::TempDir own, machine;
  const std::string first = make_config_file(own, "SLUICE_GPU_MAP=0x1=0x2\nSLUICE_SYNC=off\n");
  const std::string second = make_config_file(machine, "SLUICE_SYNC=on\nSLUICE_TRACE=on\n");
  LogLines lines;
  const Lookup lookup = environment_and_files({own.path() + "/none", first, second}, lines);
  EXPECT_EQ(lookup("SLUICE_GPU_MAP"), "0x1=0x2");
  EXPECT_EQ(lookup("SLUICE_SYNC"), "off");
  EXPECT_EQ(lookup("SLUICE_TRACE"), "on");
  ASSERT_EQ(lines.size(), 1U);  // that there is one beside that of the machine
  EXPECT_EQ(lines[0].level, Level::Info);
  EXPECT_NE(lines[0].text.find(first), std::string::npos);
}

TEST(Config, AMapIsKeptAsItWasWrittenAndAnEmptyOneIsNone) {
  LogLines lines;
  const auto map = [&](const char* value) {
    return parse_config(
               [&](const char* name) -> std::optional<std::string> {
                 return std::string_view(name) == "SLUICE_GPU_MAP" ? std::optional<std::string>(value)
                                                                   : std::nullopt;
               },
               lines)
        .gpu_map;
  };
  EXPECT_EQ(map("any thing"), "any thing");
  EXPECT_EQ(map(""), std::nullopt);
  EXPECT_TRUE(lines.empty());
}

TEST(ConfigFile, ANameThatIsNoSettingIsSaid) {
  const test::TempDir dir;
  const std::string path =
      make_config_file(dir, "SLUICE_SYNC=off\nSLUICE_CHEKSUM=off\nsluice_sync=on\nKFD_NUMA_CHECK=0\n");
  LogLines lines;
  const Lookup lookup = environment_and_file(path.c_str(), lines);
  EXPECT_EQ(lookup("SLUICE_SYNC"), "off");
  EXPECT_EQ(lookup("KFD_NUMA_CHECK"), "0");
  EXPECT_EQ(lookup("SLUICE_CHEKSUM"), std::nullopt);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].text.find("line 2: there is no setting SLUICE_CHEKSUM"), std::string::npos);
  EXPECT_NE(lines[1].text.find("line 3: there is no setting sluice_sync"), std::string::npos);
}

TEST(ConfigFile, TheNameThatMayBeMeantIsSaid) {
  const test::TempDir dir;
  const std::string path = make_config_file(dir, "SLUICE_CHEKSUM=off\nFAST=yes\nKFD_\x1b[2JNUMA_CHECK=0\n");
  LogLines lines;
  (void)environment_and_file(path.c_str(), lines);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].text, path +
                               " line 1: there is no setting SLUICE_CHEKSUM; it is ignored, did you mean "
                               "SLUICE_CHECKSUM? [SL-S04]");
  EXPECT_EQ(lines[1].text, path + " line 2: there is no setting FAST; it is ignored [SL-S04]");
  EXPECT_EQ(lines[2].text, path + " line 3: there is no setting KFD_?[2JNUMA_CHECK; it is ignored [SL-S04]");
}

TEST(ConfigFile, OnlyTheFirstOfManyFaultsAreSaid) {
  const test::TempDir dir;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 2 == 0 ? "nonsense\n" : "NONSENSE=1\n";
  const std::string path = make_config_file(dir, text);
  LogLines lines;
  (void)environment_and_file(path.c_str(), lines);
  ASSERT_EQ(lines.size(), 17U);
  EXPECT_EQ(lines.back().text, path + " has 984 more faults like these; is it a file of settings? [SL-S05]");
}

// Sets a variable for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { EXPECT_EQ(setenv(name, value, 1), 0); }
  ~Variable() { (void)unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

LogLines complaints_of_the_environment() {
  LogLines lines;
  (void)environment_and_file("/none", lines);
  return lines;
}

TEST(Environment, AMisspeltSettingIsSaidWithTheOneThatMayBeMeant) {
  EXPECT_TRUE(complaints_of_the_environment().empty());
  const Variable misspelt("SLUICE_STAGING_SISE", "1G");
  const LogLines lines = complaints_of_the_environment();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].level, Level::Warning);
  EXPECT_EQ(lines[0].text,
            "environment: there is no setting SLUICE_STAGING_SISE; it is ignored, did you mean "
            "SLUICE_STAGING_SIZE? [SL-S04]");
}

// Upstream's names are as much ours.
TEST(Environment, AMisspeltNameOfUpstreamsIsSaidToo) {
  const std::pair<const char*, const char*> slips[] = {{"KFD_NUMA_CHEK", "KFD_NUMA_CHECK"},
                                                       {"KFD_VRAM_SIZE_CHEKC", "KFD_VRAM_SIZE_CHECK"},
                                                       {"KFD_CACHE_COUNT_CHECK", "KFD_CACHES_COUNT_CHECK"},
                                                       {"KFD_MAX_BUFER_SIZE", "KFD_MAX_BUFFER_SIZE"},
                                                       {"kfd_fw_ver_check", "KFD_FW_VER_CHECK"},
                                                       {"KFD_SDMA_FW_VERCHECK", "KFD_SDMA_FW_VER_CHECK"}};
  for (const auto& [name, meant] : slips) {
    const Variable misspelt(name, "0");
    const LogLines lines = complaints_of_the_environment();
    ASSERT_EQ(lines.size(), 1U) << name;
    EXPECT_NE(lines[0].text.find(std::string("did you mean ") + meant + "?"), std::string::npos)
        << lines[0].text;
  }
  for (const char* name : {"KFD_VRAM_CHECK", "KFD_FW_VERSION_CHECK"}) {
    const Variable no_check_of_ours(name, "0");
    const LogLines lines = complaints_of_the_environment();
    ASSERT_EQ(lines.size(), 1U) << name;
    EXPECT_NE(lines[0].text.find(std::string("there is no setting ") + name), std::string::npos);
  }
}

// Settings, and names of others: those of our own tests, benches and scripts among them.
TEST(Environment, NothingElseIsSaid) {
  for (const char* name : {"SLUICE_SYNC",
                           "KFD_NUMA_CHECK",
                           "KFD_MAX_BUFFER_SIZE",
                           "KFD_SOMEBODY_ELSES",
                           "HSA_NUMA_CHECK",
                           "SLUICE_",
                           "SLUICE_HOME",
                           "SLUICE_SEED",
                           "SLUICE_SEEDS",
                           "SLUICE_CYCLES",
                           "SLUICE_CUTS",
                           "SLUICE_CLEAN_GB",
                           "SLUICE_CHANGES",
                           "SLUICE_FAULT_SHARE",
                           "SLUICE_FAULT_SEED",
                           "SLUICE_FAULT_POINT",
                           "SLUICE_DAMAGE_SEED",
                           "SLUICE_DAMAGE_SEEDS",
                           "SLUICE_CORRUPTION_SEEDS",
                           "SLUICE_CORRUPTION_CLEAN",
                           "SLUICE_BENCH",
                           "SLUICE_TEST_PLUGIN_DIR",
                           "SLUICE_PLUGIN",
                           "SLUICE_VM_DIR",
                           "SLUICE_VM_OUT",
                           "SLUICE_VM_SUITE",
                           "SLUICE_VM_IMAGES",
                           "SLUICE_VM_OTHER",
                           "SLUICE_VM_PROGRAMS",
                           "SLUICE_VM_FOREIGN",
                           "SLUICE_VM_PLUGIN"}) {
    const Variable variable(name, "on");
    EXPECT_TRUE(complaints_of_the_environment().empty()) << name;
  }
}

TEST(MeantSetting, IsASlipOrTwoAway) {
  const std::set<std::string> names = setting_names();
  const auto meant = [&](const char* name) { return meant_setting(name, names); };
  EXPECT_EQ(meant("SLUICE_SNYC"), "SLUICE_SYNC") << "swapped";
  EXPECT_EQ(meant("SLUICE_SYN"), "SLUICE_SYNC") << "missing";
  EXPECT_EQ(meant("SLUICE_SYNCH"), "SLUICE_SYNC") << "too many";
  EXPECT_EQ(meant("SLUICE_STATZ"), "SLUICE_STATS") << "wrong";
  EXPECT_EQ(meant("sluice_sync"), "SLUICE_SYNC") << "case";
  EXPECT_EQ(meant("SLUCE_SYNC"), "SLUICE_SYNC") << "in the prefix";
  EXPECT_EQ(meant("SLUICE_CHECKSUMMS"), "SLUICE_CHECKSUM") << "two in a long name";
  EXPECT_EQ(meant("SLUICE_SIGN"), std::nullopt) << "two in a short one";
  EXPECT_EQ(meant("SLUICE_CHEQQQUM"), std::nullopt);
  EXPECT_EQ(meant("KFD_NUM_CHECK"), "KFD_NUMA_CHECK");
  EXPECT_EQ(meant(""), std::nullopt);
  EXPECT_EQ(meant(std::string(1000, 'S').c_str()), std::nullopt);
}

TEST(ConfigFile, MissingIsFineOverlongIsIgnored) {
  const test::TempDir dir;
  LogLines lines;
  (void)environment_and_file((dir.path() + "/none").c_str(), lines);
  EXPECT_TRUE(lines.empty());
  const std::string path = make_config_file(dir, std::string(65 * kKiB, '#'));
  (void)environment_and_file(path.c_str(), lines);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].text.find("longer than 64 KiB"), std::string::npos);
}

TEST(ConfigFile, OneThatSomebodyElseCanWriteIsIgnored) {
  const test::TempDir dir;
  const std::string path = make_config_file(dir, "SLUICE_CHECKSUM=off\n");
  const auto is_read = [&] {
    LogLines lines;
    const bool found = environment_and_file(path.c_str(), lines)("SLUICE_CHECKSUM").has_value();
    EXPECT_EQ(lines.size(), found ? 0U : 1U);
    return found;
  };
  EXPECT_TRUE(is_read());
  for (const mode_t mode : {0664U, 0646U}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_FALSE(is_read()) << mode;
  }
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(is_read());
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_FALSE(is_read());
}

// Nobody notices otherwise that nothing asks for a key.
TEST(Environment, WhatBeginsLikeTheSettingOfTheKeyIsToldHoweverItEnds) {
  for (const char* name : {"SLUICE_KEY", "SLUICE_KEY_PATH", "SLUICE_KEYFILE"}) {
    ASSERT_EQ(setenv(name, "/etc/criu/key", 1), 0);
    LogLines lines;
    (void)environment_and_file("/none", lines);
    EXPECT_EQ(unsetenv(name), 0);
    ASSERT_EQ(lines.size(), 1U) << name;
    EXPECT_NE(lines[0].text.find(std::string("there is no setting ") + name), std::string::npos);
  }
}

class KeyFile : public ::testing::Test {
 protected:
  void write(const std::string& text) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), 0400), 0);
  }
  Result<std::optional<ImageKey>> read(std::map<std::string, std::string> more = {}) const {
    more.emplace("SLUICE_KEY_FILE", path_);
    return read_key(parse(more).config);
  }
  int error() const {
    const auto key = read();
    return key ? 0 : key.error().err;
  }

  test::TempDir dir_;
  std::string path_ = dir_.path() + "/key";
};

TEST_F(KeyFile, SixtyFourDigitsAreAKey) {
  const std::string digits = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
  for (const char* end : {"", "\n"}) {
    (void)unlink(path_.c_str());
    write(digits + end);
    const auto key = read();
    ASSERT_TRUE(key.ok()) << key.error().what;
    ASSERT_TRUE(key->has_value());
    for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ((**key)[i], i);
  }
}

TEST_F(KeyFile, NothingElseIs) {
  const std::string digits(64, 'a');
  for (const std::string& text : {std::string(), digits.substr(1), digits + 'a', digits + "\n\n",
                                  digits.substr(1) + 'g', digits.substr(1) + ' ', "-" + digits.substr(1),
                                  "0x" + digits.substr(2), std::string(64, '\0'), std::string(100000, 'a')}) {
    (void)unlink(path_.c_str());
    write(text);
    EXPECT_FALSE(read().ok()) << text.substr(0, 70);
  }
}

TEST_F(KeyFile, OneThatSomebodyElseCanReadIsRefused) {
  write(std::string(64, 'a'));
  EXPECT_EQ(error(), 0);
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U, 0601U}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(error(), EPERM) << mode;
  }
}

TEST_F(KeyFile, OneThatMayNotBeReadIsToldWithWhatHelps) {
  write(std::string(64, 'a'));
  std::thread([this] {
    ASSERT_TRUE(test::refuse_system_call(SYS_openat, EACCES));
    const auto key = read();
    EXPECT_EQ(key.error().err, EACCES);
    EXPECT_TRUE(has_id(key.error().what));
    EXPECT_TRUE(key.error().what.ends_with("; let criu's user read it [SL-S13]")) << key.error().what;
  }).join();
}

TEST_F(KeyFile, OneThatIsNotThereIsAnError) {
  EXPECT_EQ(error(), ENOENT);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(error(), EPERM);  // and is not waited for
}

TEST_F(KeyFile, ASettingThatNamesNoneIsAnErrorUnlessItSaysSo) {
  EXPECT_EQ(read_key(parse({}).config).value(), std::nullopt);
  EXPECT_EQ(read_key(parse({{"SLUICE_KEY_FILE", "none"}}).config).value(), std::nullopt);
  EXPECT_EQ(read_key(parse({{"SLUICE_KEY_FILE", ""}}).config).error().err, EINVAL);
  EXPECT_EQ(read_key(parse({{"SLUICE_KEY_FILE", "key"}}).config).error().err, EINVAL);
}

TEST_F(KeyFile, ChecksumsThatAreSwitchedOffContradictIt) {
  write(std::string(64, 'a'));
  EXPECT_EQ(read({{"SLUICE_CHECKSUM", "off"}}).error().err, EINVAL);
}

TEST(ConfigFile, AFifoIsNotWaitedFor) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/sluice.conf";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  LogLines lines;
  (void)environment_and_file(path.c_str(), lines);
  EXPECT_EQ(lines.size(), 1U);
}

std::set<std::string> settings_named_in(const std::string& text) {
  std::set<std::string> named;
  for (const std::string prefix : {"SLUICE_", "KFD_"}) {
    for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
      std::string name = text.substr(at, text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", at) - at);
      name.erase(name.find_last_not_of('_') + 1);
      if (name.size() > prefix.size()) named.insert(name);
    }
  }
  return named;
}

// What users read names every setting, and none that there is not.
TEST(SettingNames, AreThoseOfTheDocsAndOfTheManual) {
  const std::set<std::string> names = setting_names();
  EXPECT_TRUE(names.contains("SLUICE_SYNC") && names.contains("KFD_NUMA_CHECK"));
  for (const char* page : {"docs/user/configuration.md", "man/sluice.conf.5"}) {
    std::ifstream file(std::string(SOURCE_ROOT "/") + page);
    ASSERT_TRUE(file) << page;
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(settings_named_in(text), names) << page;
  }
}

}  // namespace
}  // namespace sluice::settings
