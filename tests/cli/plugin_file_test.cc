// SPDX-License-Identifier: MIT
// What plugins' files say of themselves: ours, CRIU's as built here, and damaged ones.
#include "cli/check/plugin_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/temp_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;

TEST(PluginFile, OursIsNamedAndHasTheFirstVersion) {
  const PluginFile plugin = read_plugin_file(SLUICE_PLUGIN);
  EXPECT_TRUE(plugin.is_amdgpu);
  EXPECT_FALSE(plugin.sluice_version.empty());
  EXPECT_EQ(plugin.implementation_version, 1U);
}

TEST(PluginFile, AnothersSaysWhichVersionItHas) {
  const PluginFile released = read_plugin_file(OTHER_AMDGPU);
  EXPECT_TRUE(released.is_amdgpu);
  EXPECT_EQ(released.sluice_version, "");
  EXPECT_EQ(released.implementation_version, 1U);
  const PluginFile unset = read_plugin_file(OTHER_AMDGPU_0), higher = read_plugin_file(OTHER_AMDGPU_7);
  EXPECT_TRUE(unset.is_amdgpu && higher.is_amdgpu);
  EXPECT_EQ(unset.implementation_version, 1U);
  EXPECT_EQ(higher.implementation_version, 7U);
}

TEST(PluginFile, WhatIsNoPluginSaysNothing) {
  for (const char* path : {NO_PLUGIN, "/", "/dev/null", "/nonexistent"}) {
    const PluginFile plugin = read_plugin_file(path);
    EXPECT_FALSE(plugin.is_amdgpu) << path;
    EXPECT_EQ(plugin.implementation_version, 1U) << path;
  }
  EXPECT_EQ(read_plugin_file(NO_PLUGIN).sluice_version, "9.9");
}

// Cut short, or with any of its bytes changed: at worst another version is read. What is needed may be
// intact.
TEST(PluginFile, ADamagedOneIsReadToItsEndAtMost) {
  const test::TempDir directory;
  const fs::path path = fs::path(directory.path()) / "plugin.so";
  std::ifstream whole_file(OTHER_AMDGPU_7, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(whole_file), {}};
  const auto read = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return read_plugin_file(path);
  };
  ASSERT_EQ(read(whole).implementation_version, 7U);
  for (std::size_t length = 0; length < whole.size(); length += 41)
    EXPECT_THAT(read(whole.substr(0, length)).implementation_version, AnyOf(1U, 7U)) << length;
  for (std::size_t at = 0; at < whole.size(); at += 61) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    (void)read(damaged);
  }
}

}  // namespace
}  // namespace sluice::cli
