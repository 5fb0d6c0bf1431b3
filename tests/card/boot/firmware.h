// SPDX-License-Identifier: MIT
// Firmware files with the headers that amdgpu checks (amdgpu_ucode.h), and zeros where the microcode would
// be: the card needs none, because its engines are programs. The driver asks for these with
// fw_load_type=0 and ip_block_mask=0x1f, and does not come up where one is missing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::card {

struct Model;

struct FirmwareFile {
  std::string name;  // below amdgpu/
  std::vector<std::byte> bytes;
};

std::vector<FirmwareFile> make_firmware(const Model& model);

}  // namespace sluice::card
