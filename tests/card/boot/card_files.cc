// SPDX-License-Identifier: MIT
// Writes what a guest needs beside the card:
//
//   amdgpu-card-files DIR
//
// DIR/vbios.rom and DIR/vbios-mi300x.rom, for a QEMU that shall not take the ROM from the card (romfile=),
// and DIR/firmware/amdgpu/*.bin, which belong into the guest's /lib/firmware/amdgpu: those of all models.
// Files that are there are replaced. Exit status 0, 1 with a message, 2 for a wrong usage.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "boot/firmware.h"
#include "boot/vbios.h"
#include "models/model.h"

namespace {

bool write_file(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out.fail()) return true;
  std::fprintf(stderr, "amdgpu-card-files: cannot write %s\n", path.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: amdgpu-card-files DIR\n");
    return 2;
  }
  const std::filesystem::path directory(argv[1]);
  const std::filesystem::path firmware = directory / "firmware/amdgpu";
  std::error_code error;
  std::filesystem::create_directories(firmware, error);
  if (error) {
    std::fprintf(stderr, "amdgpu-card-files: cannot make %s: %s\n", firmware.c_str(),
                 error.message().c_str());
    return 1;
  }
  for (const sluice::card::Model* model : sluice::card::all_models()) {
    if (!write_file(directory / model->rom_file, sluice::card::make_vbios(*model))) return 1;
    for (const sluice::card::FirmwareFile& file : sluice::card::make_firmware(*model)) {
      if (!write_file(firmware / file.name, file.bytes)) return 1;
    }
  }
  return 0;
}
