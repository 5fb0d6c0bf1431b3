// SPDX-License-Identifier: MIT
#include "boot/firmware.h"

#include <cstdint>
#include <cstring>

#include "models/model.h"

namespace sluice::card {
namespace {

// struct common_firmware_header, and the first word after it in the headers of all three kinds. What follows
// there (jump tables, lists of registers) is zero: there is none.
struct Header {
  std::uint32_t file_bytes;
  std::uint32_t header_bytes;
  std::uint16_t header_major, header_minor;  // tell the kind of what follows
  std::uint16_t ip_major, ip_minor;
  std::uint32_t version;
  std::uint32_t microcode_bytes, microcode_offset;
  std::uint32_t crc;  // nobody looks at it
  std::uint32_t feature_version;
};
static_assert(sizeof(Header) == 36);

constexpr std::uint32_t kHeaderBytes = 256;  // as those of real files, and more than any kind needs

}  // namespace

std::vector<FirmwareFile> make_firmware(const Model& model) {
  std::vector<FirmwareFile> files;
  for (const FirmwareModel& kind : model.firmware) {
    Header header{};
    header.file_bytes = kHeaderBytes + kind.microcode_bytes;
    header.header_bytes = kHeaderBytes;
    header.header_major = kind.header_major;
    header.ip_major = kind.ip_major;
    header.ip_minor = kind.ip_minor;
    header.version = kind.version;
    header.microcode_bytes = kind.microcode_bytes;
    header.microcode_offset = kHeaderBytes;
    header.feature_version = kind.feature_version;
    std::vector<std::byte> bytes(header.file_bytes);
    std::memcpy(bytes.data(), &header, sizeof header);
    files.push_back({kind.name, std::move(bytes)});
  }
  return files;
}

}  // namespace sluice::card
