// SPDX-License-Identifier: MIT
// The card's BIOS, written from the descriptions of ATOM tables in the Linux kernel (amdgpu_bios.c, atom.c,
// amdgpu_atomfirmware.c, include/atomfirmware.h): the five data tables that amdgpu reads of this chip, and no
// command, since a card that is posted already (BIOS scratch register 7) has none run.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice::card {

struct Model;

constexpr std::size_t kVbiosBytes = 8192;  // a power of two: it is the ROM's size, too

std::vector<std::byte> make_vbios(const Model& model);

}  // namespace sluice::card
