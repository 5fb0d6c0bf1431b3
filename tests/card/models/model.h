// SPDX-License-Identifier: MIT
// What distinguishes one kind of GPU from another, as data: where its registers are, how many of its engines
// there are, and what its firmware has left in VRAM. What engines do is the same for all kinds, so no engine
// asks which one it belongs to. A new kind is a file in this folder.
//
// Values are made once and stay; any thread may read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/fault.h"
#include "registers/table.h"

namespace sluice::card {

// One compute die (XCC) with its command processor. An MI210 is one.
struct XccModel {
  std::uint32_t registers = 0;  // bytes from the first XCC's registers to this one's
  unsigned node = 0;            // in its interrupts
};

// One VM hub.
struct HubModel {
  Hub hub = Hub::kGc;
  std::string name;             // in the names of its registers: "GC."
  std::uint32_t base = 0;       // of VM_L2_PROTECTION_FAULT_CNTL; reg::hub has the others' distances from it
  std::uint32_t apertures = 0;  // from there to MC_VM_FB_OFFSET; reg::aperture has the distances from that
  unsigned node = 0;            // in its interrupts
};

struct SdmaModel {
  std::uint32_t base = 0;  // of its registers
  unsigned client = 0;     // of its interrupts (soc15_ih_clientid.h)
};

// One file that the driver loads; 0: no number of that kind is looked at.
struct FirmwareModel {
  const char* name;
  std::uint16_t header_major, ip_major, ip_minor;
  std::uint32_t version, feature_version, microcode_bytes;
};

struct Model {
  std::string_view name;  // "MI210"
  std::string_view rom_file;
  std::uint16_t device_id = 0;
  std::uint16_t subsystem_id = 0;
  std::vector<XccModel> xccs;
  std::vector<HubModel> hubs;  // by Hub's numbers
  std::vector<SdmaModel> sdma;
  std::uint32_t sdma_f32_cntl = 0;     // from an engine's base: bit 0 halts it
  std::vector<RegisterRow> sdma_rows;  // from there too: more of an engine's, which only keep what is written
  // Where XCCs are told how many of them are one GPU, and where NBIO tells (models/partitions.h); 0: nowhere.
  std::uint32_t partition_control = 0, partition_status = 0;
  std::vector<FirmwareModel> firmware;
  bool presets_scratch = false;  // as in shader::Surroundings
  RegisterTable registers;
  // What the card's own firmware has left in VRAM before a driver comes.
  void (*fill_vram)(std::span<std::byte> vram) = [](std::span<std::byte>) {};

  const HubModel& of(Hub hub) const { return hubs.at(static_cast<std::size_t>(hub)); }
};

const Model& mi210();
const Model& mi300x();

// All of them; the first is what a card is when nothing else is said.
std::span<const Model* const> all_models();
// By its name in small letters ("mi300x"); nullptr: there is none.
const Model* find_model(std::string_view name);

}  // namespace sluice::card
