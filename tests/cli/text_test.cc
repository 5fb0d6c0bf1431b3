// SPDX-License-Identifier: MIT
// What people read, as pure functions: sizes, rates, durations, tables, the line of progress.
#include "cli/text.h"

#include <gtest/gtest.h>

#include "cli/progress.h"

namespace sluice::cli {
namespace {

constexpr std::uint64_t kGB = 1'000'000'000;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(Text, BytesHaveThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(bytes_text(kGiB * 45 / 2), "22.5 GiB");
  EXPECT_EQ(bytes_text(192 * kGiB), "192 GiB");
  EXPECT_EQ(bytes_text(UINT64_MAX), "16.0 EiB");
}

TEST(Text, RatesAndDurationsHaveTheUnitThatFits) {
  EXPECT_EQ(rate_text(231 * kGB / 10, 10), "2.31 GB/s");
  EXPECT_EQ(rate_text(kGB, 10), "0.10 GB/s");
  EXPECT_EQ(rate_text(kGB, 100), "10.0 MB/s");
  EXPECT_EQ(rate_text(kGB, 0), "");
  EXPECT_EQ(duration_text(0.2), "0 s");
  EXPECT_EQ(duration_text(119), "119 s");
  EXPECT_EQ(duration_text(780), "13 min");
  EXPECT_EQ(duration_text(9000), "2.5 h");
}

TEST(Text, TablesAreAsWideAsTheirCells) {
  Table table({"name", ">bytes"});
  EXPECT_TRUE(table.empty());
  table.add({"a", "1000000"});
  table.add({"longer", ""});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.text(),
            "  name      bytes\n"
            "  a       1000000\n"
            "  longer\n");
}

TEST(Text, ALongLineIsBrokenAtBlanks) {
  EXPECT_EQ(broken_line("short"), "short\n");
  const std::string word(60, 'w');
  EXPECT_EQ(broken_line(word + " " + word + " and " + word),
            word + "\n    " + word + " and\n    " + word + "\n");
  const std::string hundred = word + " " + std::string(39, 'x');
  EXPECT_EQ(broken_line(hundred), hundred + "\n");
  EXPECT_EQ(broken_line(hundred + "x"), word + "\n    " + std::string(40, 'x') + "\n");
  const std::string path(150, 'p');
  EXPECT_EQ(broken_line("see " + path + " now"), "see " + path + "\n    now\n");
}

TEST(Progress, TellsShareRateAndTimeLeft) {
  EXPECT_EQ(progress_text(3 * kGiB, 12 * kGiB, 4, 80),
            "[#######                       ]  25 % of 12.0 GiB, 0.81 GB/s, 12 s left");
}

TEST(Progress, WhatIsNotKnownYetIsLeftOut) {
  const std::string empty_bar = "[" + std::string(30, ' ') + "] ";
  EXPECT_EQ(progress_text(0, kGiB, 0, 80), empty_bar + "  0 % of 1.00 GiB");
  EXPECT_EQ(progress_text(0, kGiB, 5, 80), empty_bar + "  0 % of 1.00 GiB");
  EXPECT_EQ(progress_text(4096, kGiB, 0, 80), empty_bar + "  0 % of 1.00 GiB");
  EXPECT_EQ(progress_text(0, 0, 5, 80), "") << "nothing to do";
}

// Not before it is done.
TEST(Progress, HundredPercentIsTheEnd) {
  EXPECT_EQ(progress_text(kGiB, kGiB, 2, 80), "[" + std::string(30, '#') + "] 100 % of 1.00 GiB, 0.54 GB/s");
  EXPECT_EQ(progress_text(2 * kGiB, kGiB, 2, 80).substr(0, 38), "[" + std::string(30, '#') + "] 100 %");
  const std::string almost = progress_text(kGiB - 1, kGiB, 2, 80);
  EXPECT_EQ(almost.substr(0, 38), "[" + std::string(29, '#') + " ]  99 %");
}

TEST(Progress, ANarrowTerminalLosesTheBarThenTheEnd) {
  const auto at = [](std::size_t columns) { return progress_text(3 * kGiB, 12 * kGiB, 4, columns); };
  EXPECT_EQ(at(60), "[####              ]  25 % of 12.0 GiB, 0.81 GB/s, 12 s left");
  EXPECT_EQ(at(51), " 25 % of 12.0 GiB, 0.81 GB/s, 12 s left");
  EXPECT_EQ(at(30), " 25 % of 12.0 GiB, 0.81 GB/s");
  EXPECT_EQ(at(20), " 25 % of 12.0 GiB");
  EXPECT_EQ(at(5), " 25 %");
  EXPECT_EQ(at(4), "");
  for (std::size_t columns = 0; columns < 100; ++columns) EXPECT_LE(at(columns).size(), columns);
}

}  // namespace
}  // namespace sluice::cli
