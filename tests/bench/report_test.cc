// SPDX-License-Identifier: MIT
// Reports as tables and as JSON, and back.
#include "report/report.h"

#include <gtest/gtest.h>

namespace sluice::bench {
namespace {

Report example() {
  return {"dump",
          "one thing beside another",
          {{"new file", "a note", {ratio("ratio", {1, 2, 3}, {2, 4, 4}), figure("cpu", "s/GB", {0.1, 0.3})}},
           {"nothing measured", "", {}}}};
}

TEST(Figure, IsTheMedianWithItsSamples) {
  const Figure cpu = figure("cpu", "s/GB", {0.3, 0.1, 0.2});
  EXPECT_EQ(cpu.value.value, 0.2);
  EXPECT_EQ(cpu.samples, (std::vector<double>{0.3, 0.1, 0.2}));
}

TEST(Figure, OfARatioIsOfPairs) {
  const Figure share = ratio("ratio", {1, 2, 3}, {2, 4, 4});
  EXPECT_EQ(share.unit, "ratio");
  EXPECT_EQ(share.samples, (std::vector<double>{0.5, 0.5, 0.75}));
  EXPECT_EQ(share.value.value, 0.5);
}

TEST(Report, FindsCasesAndFiguresByName) {
  const Report report = example();
  ASSERT_NE(report.find("new file"), nullptr);
  EXPECT_NE(report.find("new file")->find("cpu"), nullptr);
  EXPECT_EQ(report.find("new file")->find("raw"), nullptr);
  EXPECT_EQ(report.find("old file"), nullptr);
}

TEST(Report, NumbersHaveThreeDigitsThatSaySomething) {
  EXPECT_EQ(number(1234.5), "1234");
  EXPECT_EQ(number(12.345), "12.3");
  EXPECT_EQ(number(0.9512), "0.951");
  EXPECT_EQ(number(0.01234), "0.0123");
  EXPECT_EQ(number(-12.345), "-12.3");
  EXPECT_EQ(with_unit(10, "us"), "10.0 us");
  EXPECT_EQ(with_unit(0.95, "ratio"), "0.950");
}

TEST(Report, TableHasARowForEachFigureAndTheNotes) {
  EXPECT_EQ(table_of(example()),
            "dump: one thing beside another\n"
            "  new file\n"
            "    ratio                        0.500 ratio  [0.500, 0.750] of 3\n"
            "    cpu                          0.200 s/GB   [0.100, 0.300] of 2\n"
            "    a note\n"
            "  nothing measured\n");
}

TEST(Report, JsonHasTheShapeThatIsDocumented) {
  const auto json = json_of(example());
  EXPECT_EQ(json.at("scenario"), "dump");
  EXPECT_EQ(json.at("cases").at(0).at("name"), "new file");
  const auto& share = json.at("cases").at(0).at("figures").at("ratio");
  EXPECT_EQ(share.at("unit"), "ratio");
  EXPECT_EQ(share.at("value"), 0.5);
  EXPECT_EQ(share.at("samples").size(), 3U);
  EXPECT_TRUE(json.at("cases").at(1).at("figures").empty());
}

TEST(Report, JsonIsReadBackAsItWas) {
  const auto json = json_of(example());
  const auto back = report_of(json);
  ASSERT_TRUE(back.ok()) << back.error().what;
  EXPECT_EQ(json_of(*back), json);
}

TEST(Report, OtherJsonIsRefused) {
  for (const char* text : {"{}", "[]", "null", R"({"scenario":"dump","what":"","cases":[{"name":"a"}]})",
                           R"({"scenario":1,"what":"","cases":[]})"}) {
    const auto report = report_of(nlohmann::ordered_json::parse(text));
    ASSERT_FALSE(report.ok()) << text;
    EXPECT_EQ(report.error().err, EINVAL);
  }
}

}  // namespace
}  // namespace sluice::bench
