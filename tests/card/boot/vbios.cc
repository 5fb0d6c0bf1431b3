// SPDX-License-Identifier: MIT
#include "boot/vbios.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "bus/pci_config.h"
#include "models/model.h"

namespace sluice::card {
namespace {

// Where things are in the image. The first group is the driver's to find, the rest is free to choose.
constexpr std::size_t kPciDataPointer = 0x18;
constexpr std::size_t kAtomMagic = 0x30;
constexpr std::size_t kRomHeaderPointer = 0x48;
constexpr std::size_t kDate = 0x50;
constexpr std::size_t kName = 0x80;  // printed, since byte 0x2f says that there are no strings

constexpr std::size_t kPciData = 0x200;
constexpr std::size_t kRomHeader = 0x240;
constexpr std::size_t kCommandList = 0x300;
constexpr std::size_t kDataList = 0x400;
constexpr std::size_t kFirmwareInfo = 0x600;
constexpr std::size_t kSmuInfo = 0x700;
constexpr std::size_t kGfxInfo = 0x800;
constexpr std::size_t kIndirectAccess = 0x900;
constexpr std::size_t kVramInfo = 0xa00;  // 728 bytes

constexpr std::size_t kCommands = 80;
constexpr std::size_t kDataTables = 35;
constexpr std::size_t kListHeader = 4;

class Image {
 public:
  explicit Image(std::size_t bytes) : bytes_(bytes) {}

  void put8(std::size_t at, unsigned value) { bytes_.at(at) = static_cast<std::byte>(value); }
  void put16(std::size_t at, unsigned value) {
    put8(at, value & 0xff);
    put8(at + 1, value >> 8);
  }
  void put32(std::size_t at, std::uint32_t value) {
    put16(at, value & 0xffff);
    put16(at + 2, value >> 16);
  }
  void put(std::size_t at, std::string_view text) {
    for (const char each : text) put8(at++, static_cast<std::uint8_t>(each));
  }

  // What every table and list begins with.
  void table(std::size_t at, unsigned bytes, unsigned format, unsigned content) {
    put16(at, bytes);
    put8(at + 2, format);
    put8(at + 3, content);
  }
  void data_table(unsigned index, std::size_t at, unsigned bytes, unsigned format, unsigned content) {
    put16(kDataList + kListHeader + std::size_t{2} * index, static_cast<unsigned>(at));
    table(at, bytes, format, content);
  }

  // SeaBIOS takes no ROM whose bytes do not add up to nothing.
  std::vector<std::byte> finish() && {
    unsigned sum = 0;
    for (const std::byte each : bytes_) sum += static_cast<std::uint8_t>(each);
    bytes_.back() = static_cast<std::byte>(-sum);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

void put_headers(const Model& model, Image& image) {
  constexpr unsigned kUnits = kVbiosBytes / 512;
  image.put16(0, 0xaa55);
  image.put8(2, kUnits);
  image.put8(3, 0xcb);  // a far return, for a BIOS that runs option ROMs
  image.put16(kPciDataPointer, kPciData);
  image.put(kAtomMagic, " 761295520");
  image.put16(kRomHeaderPointer, kRomHeader);
  image.put(kDate, "01/01/26 00:00");
  image.put(kName, "SLUICE-" + std::string(model.name));

  image.put(kPciData, "PCIR");
  image.put16(kPciData + 4, kVendorId);
  image.put16(kPciData + 6, model.device_id);
  image.put16(kPciData + 10, 0x18);    // bytes of this structure
  image.put16(kPciData + 14, 0x0380);  // class
  image.put16(kPciData + 16, kUnits);
  image.put8(kPciData + 21, 0x80);  // the last image

  image.table(kRomHeader, 0x28, 2, 2);
  image.put(kRomHeader + 4, "ATOM");
  image.put16(kRomHeader + 0x1e, kCommandList);
  image.put16(kRomHeader + 0x20, kDataList);
  image.table(kCommandList, kListHeader + 2 * kCommands, 1, 1);  // all of them absent
  image.table(kDataList, kListHeader + 2 * kDataTables, 2, 1);
}

void put_tables(Image& image) {
  // Clocks are in units of 10 kHz.
  image.data_table(4, kFirmwareInfo, 144, 3, 4);
  image.put32(kFirmwareInfo + 4, 0x01000000);  // version
  image.put32(kFirmwareInfo + 8, 100000);      // of the engine
  image.put32(kFirmwareInfo + 12, 160000);     // of memory
  image.put32(kFirmwareInfo + 24, 0x4c);       // dword of the first BIOS scratch register

  image.data_table(8, kSmuInfo, 164, 4, 0);
  image.put32(kSmuInfo + 16, 10000);  // reference

  constexpr unsigned kUnits = 14;  // compute units of each of 8 engines, which have one array each
  image.data_table(14, kGfxInfo, 112, 2, 7);
  image.put8(kGfxInfo + 4, 9);  // versions of graphics that this is about
  image.put8(kGfxInfo + 5, 9);
  image.put8(kGfxInfo + 6, 8);
  image.put8(kGfxInfo + 8, kUnits);
  image.put8(kGfxInfo + 9, 1);
  image.put8(kGfxInfo + 10, 4);       // render backends of an engine
  image.put8(kGfxInfo + 11, 16);      // texture channel caches
  image.put32(kGfxInfo + 40, 10000);  // reference clock of the timer
  image.put8(kGfxInfo + 44, kUnits);
  image.put8(kGfxInfo + 45, 4);      // active backends
  image.put16(kGfxInfo + 48, 256);   // general registers
  image.put16(kGfxInfo + 50, 1792);  // depth of the primitive buffer
  image.put16(kGfxInfo + 54, 64);    // lanes of a wave
  image.put16(kGfxInfo + 56, 8);     // waves of a SIMD
  image.put16(kGfxInfo + 58, 64);    // LDS, KiB
  image.put8(kGfxInfo + 60, 32);     // geometry threads, and their table
  image.put8(kGfxInfo + 61, 32);
  image.put8(kGfxInfo + 63, 32);  // scratch slots of a compute unit
  image.put8(kGfxInfo + 73, 8 * kUnits);

  // The parser walks over it: it must be there, and its zeros are the end.
  image.data_table(23, kIndirectAccess, 20, 1, 1);

  constexpr std::size_t kModule = kVramInfo + 24;
  constexpr unsigned kModuleBytes = 44;
  image.data_table(28, kVramInfo, 24 + 16 * kModuleBytes, 2, 6);
  image.put8(kVramInfo + 20, 1);  // modules
  image.put16(kModule + 20, kModuleBytes);
  image.put8(kModule + 23, 0x61);  // HBM2E
  image.put8(kModule + 24, 32);    // channels
  image.put8(kModule + 25, 7);     // of 2^7 bits each
}

}  // namespace

std::vector<std::byte> make_vbios(const Model& model) {
  Image image(kVbiosBytes);
  put_headers(model, image);
  put_tables(image);
  return std::move(image).finish();
}

}  // namespace sluice::card
