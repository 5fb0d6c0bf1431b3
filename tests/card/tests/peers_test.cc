// SPDX-License-Identifier: MIT
// Two cards of one machine: one reaches the other's VRAM at the place that the guest has given to it.
#include "bus/peers.h"

#include <gtest/gtest.h>
#include <linux/pci_regs.h>

#include "bus_kit.h"
#include "support/temp_dir.h"

namespace sluice::card::tests {
namespace {

constexpr std::uint64_t kPlace = 0xff80000000;

class PeersTest : public testing::Test {
 protected:
  static int say(TestCard& card, std::uint16_t command, const Bytes& body) {
    const auto reply = card.session.answer({{1, command, 0, 0, 0}, body, {}});
    return static_cast<int>(value_at<std::uint32_t>(reply->message, 12));
  }
  void SetUp() override {
    for (TestCard* card : {&first_, &second_}) ASSERT_EQ(say(*card, kVersion, version_body()), 0);
  }
  void put_first_at(std::uint64_t place, std::uint16_t command = PCI_COMMAND_MEMORY) {
    ASSERT_EQ(say(first_, kRegionWrite, write_body<std::uint16_t>(PCI_COMMAND, 7, 0)), 0);
    ASSERT_EQ(say(first_, kRegionWrite, write_body<std::uint64_t>(PCI_BASE_ADDRESS_0, 7, place)), 0);
    ASSERT_EQ(say(first_, kRegionWrite, write_body<std::uint16_t>(PCI_COMMAND, 7, command)), 0);
  }
  bool second_reaches(std::uint64_t place, std::uint64_t bytes = kTestVram) {
    EXPECT_EQ(say(second_, kDmaMap, dma_map_body(place, bytes)), 0);
    const bool reached = !second_.maps.at(place, bytes).empty();
    return reached;
  }

  const test::TempDir directory_;
  TestCard first_{directory_.path()};
  TestCard second_{directory_.path()};
};

TEST_F(PeersTest, MapWithoutAFileIsTheVramOfTheCardThatIsThere) {
  put_first_at(kPlace);
  ASSERT_TRUE(second_reaches(kPlace));
  second_.maps.at(kPlace + 0x1234, 1)[0] = std::byte{0x77};
  EXPECT_EQ(first_.vram.bytes()[0x1234], std::byte{0x77});
  EXPECT_EQ(second_.vram.bytes()[0x1234], std::byte{0});
}

TEST_F(PeersTest, CardThatIsNotThereIsNotReached) {
  put_first_at(kPlace, 0);
  EXPECT_FALSE(second_reaches(kPlace)) << "its memory is not enabled";
  put_first_at(kPlace * 2);
  EXPECT_FALSE(second_reaches(kPlace / 2)) << "another place";
  EXPECT_FALSE(second_reaches(kPlace * 2, kTestVram / 2)) << "another size";
}

TEST_F(PeersTest, LinkGoesWhereTheCardGoes) {
  put_first_at(kPlace);
  put_first_at(kPlace / 2);
  EXPECT_EQ(directory_.names(), std::vector<std::string>{"vram-0x7fc0000000-0x1000000"});
  ASSERT_EQ(say(first_, kReset, {}), 0);
  EXPECT_TRUE(directory_.names().empty());
  put_first_at(kPlace);
  first_.peers.withdraw();
  EXPECT_TRUE(directory_.names().empty());
}

TEST_F(PeersTest, LinkOfACardThatWasKilledIsNobody) {
  ASSERT_EQ(::symlink("/proc/4194305/fd/3", (directory_.path() + "/vram-0xff80000000-0x1000000").c_str()), 0);
  EXPECT_FALSE(second_reaches(kPlace));
  put_first_at(kPlace);
  ASSERT_EQ(say(second_, kDmaUnmap, dma_unmap_body(kPlace, kTestVram)), 0);
  EXPECT_TRUE(second_reaches(kPlace)) << "a card takes its place";
}

}  // namespace
}  // namespace sluice::card::tests
