// SPDX-License-Identifier: MIT
// The boot files, read as amdgpu reads them: by what the kernel's headers say of the layout, not by the
// writer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "boot/firmware.h"
#include "boot/vbios.h"
#include "bus_kit.h"

namespace sluice::card::tests {
namespace {

class VbiosTest : public testing::Test {
 protected:
  unsigned u8(std::size_t at) const { return value_at<std::uint8_t>(rom_, at); }
  unsigned u16(std::size_t at) const { return value_at<std::uint16_t>(rom_, at); }
  std::uint32_t u32(std::size_t at) const { return value_at<std::uint32_t>(rom_, at); }
  std::string text(std::size_t at, std::size_t length) const {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(u8(at + i));
    return text;
  }

  // As amdgpu_atom_parse_data_header(): where the table is, if it has this revision.
  std::size_t table(unsigned index, unsigned format, unsigned content) const {
    const std::size_t header = u16(0x48);
    const std::size_t list = u16(header + 0x20);
    EXPECT_LE(4 + 2 * (index + 1), u16(list)) << "the list is too short for it";
    const std::size_t at = u16(list + 4 + 2 * index);
    EXPECT_NE(at, 0U) << index;
    EXPECT_LE(at + u16(at), rom_.size()) << index;
    EXPECT_EQ(u8(at + 2), format) << index;
    EXPECT_EQ(u8(at + 3), content) << index;
    return at;
  }

  const Bytes rom_ = make_vbios(mi210());
};

TEST_F(VbiosTest, ItIsAnOptionRomOfThisCard) {
  EXPECT_EQ(u16(0), 0xaa55U);
  EXPECT_EQ(u8(2) * 512, rom_.size());
  EXPECT_EQ(u8(3), 0xcbU) << "a return";
  const unsigned sum = std::accumulate(rom_.begin(), rom_.end(), 0U, [](unsigned all, std::byte each) {
    return (all + static_cast<unsigned>(each)) & 0xff;
  });
  EXPECT_EQ(sum, 0U);
  const std::size_t data = u16(0x18);
  EXPECT_EQ(text(data, 4), "PCIR");
  EXPECT_EQ(u32(data + 4), 0x740f1002U);
  EXPECT_EQ(u16(data + 16) * 512, rom_.size());
  EXPECT_EQ(u8(data + 21) & 0x80, 0x80U) << "there is no other image";
}

TEST_F(VbiosTest, ItIsAnAtomBios) {
  EXPECT_EQ(text(0x30, 10), " 761295520");
  EXPECT_EQ(text(u16(0x48) + 4, 4), "ATOM");
  const std::size_t commands = u16(u16(0x48) + 0x1e);
  EXPECT_TRUE(std::all_of(rom_.begin() + static_cast<std::ptrdiff_t>(commands) + 4,
                          rom_.begin() + static_cast<std::ptrdiff_t>(commands + u16(commands)),
                          [](std::byte each) { return each == std::byte{0}; }))
      << "a command that nobody wrote";
}

TEST_F(VbiosTest, TablesTellTheDriverOfThisChip) {
  EXPECT_EQ(u32(table(4, 3, 4) + 24), 0x4cU) << "BIOS scratch registers";
  EXPECT_EQ(u32(table(8, 4, 0) + 16), 10000U) << "100 MHz";

  const std::size_t gfx = table(14, 2, 7);
  const unsigned engines = u8(gfx + 6), units = u8(gfx + 8), arrays = u8(gfx + 9);
  EXPECT_EQ(engines * arrays * units, 112U) << "compute units";
  EXPECT_LE(engines * arrays, 16U) << "what amdgpu has room for";
  EXPECT_EQ(u16(gfx + 54), 64U) << "wave size";

  const std::size_t access = table(23, 1, 1);
  EXPECT_EQ(u8(access + 4), 0U) << "amdgpu walks on while this is 1";

  const std::size_t vram = table(28, 2, 6);
  EXPECT_EQ(u8(vram + 20), 1U) << "modules";
  const std::size_t module = vram + 24;
  EXPECT_EQ(u16(module + 20), 44U);
  EXPECT_LE(module + u16(module + 20), vram + u16(vram));
  EXPECT_EQ(u8(module + 23), 0x61U) << "HBM2E";
  EXPECT_EQ(u8(module + 24) << u8(module + 25), 4096U) << "bits";
}

TEST(FirmwareTest, FilesHaveHeadersThatTheDriverAccepts) {
  // Major version of the header, and what follows the common header: how many words the driver's struct
  // has.
  const std::map<std::string, std::pair<unsigned, std::size_t>> expected = {
      {"aldebaran_mec.bin", {1, 3}},
      {"aldebaran_mec2.bin", {1, 3}},
      {"aldebaran_rlc.bin", {2, 18}},
      {"aldebaran_sdma.bin", {1, 4}},
  };
  const std::vector<FirmwareFile> files = make_firmware(mi210());
  ASSERT_EQ(files.size(), expected.size());
  for (const FirmwareFile& file : files) {
    SCOPED_TRACE(file.name);
    ASSERT_EQ(expected.count(file.name), 1U);
    const auto& [major, words] = expected.at(file.name);
    EXPECT_EQ(value_at<std::uint32_t>(file.bytes, 0), file.bytes.size()) << "amdgpu_ucode_validate()";
    const auto header = value_at<std::uint32_t>(file.bytes, 4);
    EXPECT_GE(header, 32 + 4 * words);
    EXPECT_EQ(value_at<std::uint16_t>(file.bytes, 8), major);
    EXPECT_EQ(value_at<std::uint16_t>(file.bytes, 10), 0U);
    const auto bytes = value_at<std::uint32_t>(file.bytes, 20),
               offset = value_at<std::uint32_t>(file.bytes, 24);
    EXPECT_GE(offset, header);
    EXPECT_EQ(offset + bytes, file.bytes.size());
    EXPECT_NE(value_at<std::uint32_t>(file.bytes, 16), 0U) << "version";
    EXPECT_TRUE(std::all_of(file.bytes.begin() + 36, file.bytes.end(), [](std::byte each) {
      return each == std::byte{0};
    })) << "lists, or microcode";
  }
}

}  // namespace
}  // namespace sluice::card::tests
