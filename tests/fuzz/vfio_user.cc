// SPDX-License-Identifier: MIT
// Messages to the emulated card, one after another, as they come on its socket: whatever they hold, an access
// that reaches the GPU is inside its BAR, a map is inside its file, and each reply fits its request.
#include "bus/vfio_user.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "fuzz.h"
#include "models/model.h"

namespace {

using namespace sluice::card;

sluice::fuzz::Goal a_conversation("a version, a map, an interrupt and a register, one after another");

constexpr std::uint64_t kVramBytes = 16 << 20;
constexpr std::size_t kFileBytes = 64 << 10;

class CheckingDevice final : public Device {
 public:
  void read(Bar bar, std::uint64_t offset, std::span<std::byte> out) override {
    check(bar, offset, out.size());
  }
  void write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) override {
    check(bar, offset, in.size());
  }
  void reset() override {}
  bool work() override { return false; }

  bool reached = false;

 private:
  void check(Bar bar, std::uint64_t offset, std::size_t length) {
    FUZZ_CHECK(bar == Bar::kRegisters || bar == Bar::kDoorbells);
    const std::uint64_t bytes = bar == Bar::kRegisters ? kRegisterBytes : kDoorbellBytes;
    FUZZ_CHECK(length != 0 && length <= bytes && offset <= bytes - length);
    reached = true;
  }
};

// What lives as long as the process: making it is most of the work of a message.
struct World {
  Vram vram = std::move(Vram::make(kVramBytes)).value();
  std::vector<std::byte> rom = std::vector<std::byte>(8192);
  sluice::UniqueFd file{::memfd_create("guest", MFD_CLOEXEC)};
  sluice::UniqueFd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Trace trace;

  World() { FUZZ_CHECK(::ftruncate(file.get(), kFileBytes) == 0); }
};

// The lowest bits of a message's id say which descriptors come with it.
std::vector<sluice::UniqueFd> descriptors(const World& world, std::uint16_t id) {
  std::vector<sluice::UniqueFd> fds;
  if ((id & 1) != 0) fds.emplace_back(::dup(world.file.get()));
  if ((id & 2) != 0) fds.emplace_back(::dup(world.event.get()));
  return fds;
}

void check_reply(const VfioUserHeader& asked, const VfioUserReply& reply) {
  VfioUserHeader header;
  FUZZ_CHECK(reply.message.size() >= sizeof header);
  std::memcpy(&header, reply.message.data(), sizeof header);
  FUZZ_CHECK(header.bytes == reply.message.size() && header.id == asked.id &&
             header.command == asked.command);
  FUZZ_CHECK((header.flags & VfioUserHeader::kTypeMask) == VfioUserHeader::kReply);
  FUZZ_CHECK(((header.flags & VfioUserHeader::kError) != 0) == (header.error != 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  CheckingDevice device;
  PciConfig config(mi210(), kVramBytes, world.rom.size());
  DmaMaps maps;
  Peers peers("");
  Msi msi;
  VfioUser session({device, world.vram, config, maps, peers, msi, world.rom, world.trace});
  std::span<const std::uint8_t> rest(data, size);
  VfioUserHeader header;
  while (rest.size() >= sizeof header) {
    std::memcpy(&header, rest.data(), sizeof header);
    rest = rest.subspan(sizeof header);
    // The connection takes no other length, and no reply.
    if (header.bytes < sizeof header || header.bytes - sizeof header > rest.size()) break;
    header.flags &= ~VfioUserHeader::kTypeMask;
    const std::size_t body = header.bytes - sizeof header;
    VfioUserRequest request{header, std::vector<std::byte>(body), descriptors(world, header.id)};
    if (body != 0) std::memcpy(request.body.data(), rest.data(), body);
    rest = rest.subspan(body);
    const std::optional<VfioUserReply> reply = session.answer(std::move(request));
    FUZZ_CHECK(reply.has_value() == ((header.flags & VfioUserHeader::kNoReply) == 0));
    if (reply) check_reply(header, *reply);
  }
  // Every byte that can be reached is there.
  for (std::uint64_t address = 0; address < 4 * kFileBytes; address += 4096) {
    for (std::byte& each : maps.at(address, 4096)) each ^= std::byte{1};
  }
  if (device.reached && msi.armed() && !maps.at(0, 1).empty()) a_conversation.reach();
  return 0;
}
