// SPDX-License-Identifier: MIT
#include "bus/vfio_user.h"

#include <linux/vfio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sluice::card {
namespace {

enum Command : std::uint16_t {
  kVersion = 1,
  kDmaMap = 2,
  kDmaUnmap = 3,
  kDeviceInfo = 4,
  kRegionInfo = 5,
  kIrqInfo = 7,
  kSetIrqs = 8,
  kRegionRead = 9,
  kRegionWrite = 10,
  kReset = 13,
};

// What follows the header. Those that are in linux/vfio.h have its layout, without what newer kernels add.
struct VersionBody {
  std::uint16_t major, minor;  // and JSON, with a NUL
};
struct DmaMapBody {
  std::uint32_t argsz, flags;
  std::uint64_t offset, address, bytes;
};
struct DmaUnmapBody {
  std::uint32_t argsz, flags;
  std::uint64_t address, bytes;
};
struct DeviceInfoBody {
  std::uint32_t argsz, flags, regions, irqs;
};
struct RegionInfoBody {
  std::uint32_t argsz, flags, index, capabilities;
  std::uint64_t bytes, offset;
};
struct IrqInfoBody {
  std::uint32_t argsz, flags, index, count;
};
struct SetIrqsBody {
  std::uint32_t argsz, flags, index, start, count;
};
struct RegionAccessBody {
  std::uint64_t offset;
  std::uint32_t region, count;  // and the data
};
static_assert(sizeof(DmaMapBody) == 32 && sizeof(DmaUnmapBody) == 24 && sizeof(RegionInfoBody) == 32 &&
              sizeof(SetIrqsBody) == 20 && sizeof(RegionAccessBody) == 16);

constexpr std::string_view kCapabilities =
    R"({"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096,)"
    R"("write_multiple":false}})";
static_assert(kMostFds == 8 && kMostData == 1048576 && DmaMaps::kMost == 65535);

constexpr std::uint32_t kRegions = VFIO_PCI_NUM_REGIONS;
constexpr std::uint32_t kIrqs = VFIO_PCI_NUM_IRQS;

template <class T>
std::optional<T> body_as(std::span<const std::byte> body) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (body.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, body.data(), sizeof value);
  return value;
}

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

struct Answer {
  std::vector<std::byte> body;
  int fd = -1;
};

// The answer is an errno instead of a value.
Error refused(int err, const char* why) {
  return make_error(err, why);
}

}  // namespace

// One message. Each function is one command.
class VfioUser::Handler {
 public:
  Handler(VfioUser& session, VfioUserRequest& request)
      : session_(session), card_(session.card_), body_(request.body), fds_(request.fds) {}

  Result<Answer> run(std::uint16_t command) {
    if (command != kVersion && !session_.agreed_) return refused(EINVAL, "no version was agreed on");
    switch (command) {
      case kVersion:
        return version();
      case kDmaMap:
        return dma_map();
      case kDmaUnmap:
        return dma_unmap();
      case kDeviceInfo:
        return device_info();
      case kRegionInfo:
        return region_info();
      case kIrqInfo:
        return irq_info();
      case kSetIrqs:
        return set_irqs();
      case kRegionRead:
        return region_read();
      case kRegionWrite:
        return region_write();
      case kReset:
        return reset();
      default:
        return refused(EOPNOTSUPP, "a message that this card does not know");
    }
  }

 private:
  struct Region {
    std::uint64_t bytes = 0;
    std::uint32_t flags = 0;
    int fd = -1;
  };

  Region region(std::uint32_t index) const {
    constexpr std::uint32_t kBoth = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    switch (index) {
      case VFIO_PCI_BAR0_REGION_INDEX:
        return {card_.vram.bytes().size(), kBoth | VFIO_REGION_INFO_FLAG_MMAP, card_.vram.fd()};
      case VFIO_PCI_BAR2_REGION_INDEX:
        return {kDoorbellBytes, kBoth, -1};
      case VFIO_PCI_BAR5_REGION_INDEX:
        return {kRegisterBytes, kBoth, -1};
      case VFIO_PCI_ROM_REGION_INDEX:
        return {card_.rom.size(), card_.rom.empty() ? 0U : VFIO_REGION_INFO_FLAG_READ, -1};
      case VFIO_PCI_CONFIG_REGION_INDEX:
        return {kConfigBytes, kBoth, -1};
      default:
        return {};
    }
  }

  Result<Answer> version() {
    const auto asked = body_as<VersionBody>(body_);
    if (!asked) return refused(EINVAL, "a version that is cut off");
    if (session_.agreed_) return refused(EINVAL, "a second version");
    if (asked->major != 0) return refused(EINVAL, "a version that this card does not speak");
    // What QEMU can do matters nowhere, since replies are small and have one descriptor at most. Text it must
    // be.
    if (body_.size() > sizeof *asked && body_.back() != std::byte{0}) {
      return refused(EINVAL, "capabilities without an end");
    }
    session_.agreed_ = true;
    std::vector<std::byte> reply = bytes_of(VersionBody{0, 0});
    const std::size_t at = reply.size();
    reply.resize(at + kCapabilities.size() + 1);  // and a NUL
    std::memcpy(reply.data() + at, kCapabilities.data(), kCapabilities.size());
    return Answer{std::move(reply)};
  }

  Result<Answer> dma_map() {
    const auto asked = body_as<DmaMapBody>(body_);
    if (!asked || asked->argsz < sizeof *asked) return refused(EINVAL, "a DMA map that is cut off");
    if (fds_.size() > 1) return refused(EINVAL, "a DMA map with several files");
    constexpr std::uint32_t kKnown = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
    if ((asked->flags & ~kKnown) != 0 || asked->flags == 0) return refused(EINVAL, "flags of a DMA map");
    const DmaMaps::Range range{asked->address, asked->bytes};
    const UniqueFd peer = fds_.empty() ? card_.peers.find(range) : UniqueFd();
    const UniqueFd& file = fds_.empty() ? peer : fds_[0];
    if (card_.trace.on()) {
      card_.trace.line("dma map " + hex(asked->address) + " bytes " + hex(asked->bytes) + " flags " +
                       hex(asked->flags) +
                       (peer   ? " of a card"
                        : file ? " file at " + hex(asked->offset)
                               : " without a file"));
    }
    SLUICE_TRY(card_.maps.add(range, file, asked->offset, (asked->flags & VFIO_DMA_MAP_FLAG_WRITE) != 0));
    return Answer{};
  }

  Result<Answer> dma_unmap() {
    auto asked = body_as<DmaUnmapBody>(body_);
    if (!asked || asked->argsz < sizeof *asked) return refused(EINVAL, "a DMA unmap that is cut off");
    if (!fds_.empty()) return refused(EINVAL, "a DMA unmap with a file");
    if (card_.trace.on()) {
      card_.trace.line("dma unmap " + hex(asked->address) + " bytes " + hex(asked->bytes) + " flags " +
                       hex(asked->flags));
    }
    if (asked->flags == VFIO_DMA_UNMAP_FLAG_ALL) {
      if (asked->address != 0 || asked->bytes != 0) return refused(EINVAL, "an unmap of all, with a range");
      card_.maps.clear();
    } else if (asked->flags != 0) {
      return refused(EINVAL, "flags of a DMA unmap");
    } else {
      SLUICE_TRY_ASSIGN(asked->bytes, card_.maps.remove({asked->address, asked->bytes}));
    }
    return Answer{bytes_of(*asked)};
  }

  Result<Answer> device_info() {
    const auto asked = body_as<DeviceInfoBody>(body_);
    if (!asked || asked->argsz < sizeof *asked) return refused(EINVAL, "a device info that is cut off");
    return Answer{bytes_of(DeviceInfoBody{sizeof(DeviceInfoBody),
                                          VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI, kRegions, kIrqs})};
  }

  Result<Answer> region_info() {
    const auto asked = body_as<RegionInfoBody>(body_);
    if (!asked || asked->argsz < sizeof *asked) return refused(EINVAL, "a region info that is cut off");
    if (asked->index >= kRegions) return refused(EINVAL, "a region that no PCI device has");
    const Region found = region(asked->index);
    return Answer{
        bytes_of(RegionInfoBody{sizeof(RegionInfoBody), found.flags, asked->index, 0, found.bytes, 0}),
        found.fd};
  }

  Result<Answer> irq_info() {
    const auto asked = body_as<IrqInfoBody>(body_);
    if (!asked || asked->argsz < sizeof *asked) return refused(EINVAL, "an interrupt info that is cut off");
    if (asked->index >= kIrqs) return refused(EINVAL, "an interrupt that no PCI device has");
    const bool msi = asked->index == VFIO_PCI_MSI_IRQ_INDEX;
    return Answer{bytes_of(
        IrqInfoBody{sizeof(IrqInfoBody), msi ? VFIO_IRQ_INFO_EVENTFD : 0U, asked->index, msi ? 1U : 0U})};
  }

  Result<Answer> set_irqs() {
    const auto asked = body_as<SetIrqsBody>(body_);
    if (!asked || asked->argsz < sizeof *asked) return refused(EINVAL, "interrupts that are cut off");
    if (asked->index >= kIrqs) return refused(EINVAL, "an interrupt that no PCI device has");
    const std::uint32_t data = asked->flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
    const std::uint32_t action = asked->flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
    if ((asked->flags & ~(data | action)) != 0 || action != VFIO_IRQ_SET_ACTION_TRIGGER) {
      return refused(EINVAL, "flags of interrupts");  // there is no mask
    }
    const std::uint32_t vectors = asked->index == VFIO_PCI_MSI_IRQ_INDEX ? 1 : 0;
    if (asked->start > vectors || asked->count > vectors - asked->start) {
      return refused(EINVAL, "more interrupts than there are");
    }
    if (data == VFIO_IRQ_SET_DATA_NONE && fds_.empty()) {
      if (vectors == 0) return Answer{};
      if (asked->count == 0) {
        card_.msi.set_trigger(UniqueFd());
      } else {
        card_.msi.raise();
      }
      return Answer{};
    }
    if (data != VFIO_IRQ_SET_DATA_EVENTFD || asked->count == 0 || fds_.size() > asked->count) {
      return refused(EINVAL, "data of interrupts");
    }
    card_.msi.set_trigger(fds_.empty() ? UniqueFd() : std::move(fds_[0]));
    return Answer{};
  }

  // Of a read or write: inside the region, and not too long.
  Result<RegionAccessBody> access(std::uint32_t needs) const {
    const auto asked = body_as<RegionAccessBody>(body_);
    if (!asked) return refused(EINVAL, "a region access that is cut off");
    if (asked->region >= kRegions) return refused(EINVAL, "a region that no PCI device has");
    const Region found = region(asked->region);
    if ((found.flags & needs) == 0) return refused(EINVAL, "a region that cannot be accessed so");
    if (asked->count == 0 || asked->count > kMostData || asked->offset >= found.bytes ||
        asked->count > found.bytes - asked->offset) {
      return refused(EINVAL, "an access that is not inside its region");
    }
    return *asked;
  }

  Result<Answer> region_read() {
    SLUICE_TRY_ASSIGN(const RegionAccessBody asked, access(VFIO_REGION_INFO_FLAG_READ));
    std::vector<std::byte> reply = bytes_of(asked);
    const std::size_t at = reply.size();
    reply.resize(at + asked.count);
    const std::span<std::byte> out = std::span(reply).subspan(at);
    switch (asked.region) {
      case VFIO_PCI_BAR0_REGION_INDEX:
        std::memcpy(out.data(), card_.vram.bytes().data() + asked.offset, out.size());
        break;
      case VFIO_PCI_ROM_REGION_INDEX:
        std::memcpy(out.data(), card_.rom.data() + asked.offset, out.size());
        break;
      case VFIO_PCI_CONFIG_REGION_INDEX:
        card_.config.read(asked.offset, out);
        break;
      default:
        card_.device.read(static_cast<Bar>(asked.region), asked.offset, out);
    }
    return Answer{std::move(reply)};
  }

  Result<Answer> region_write() {
    SLUICE_TRY_ASSIGN(const RegionAccessBody asked, access(VFIO_REGION_INFO_FLAG_WRITE));
    if (body_.size() != sizeof asked + asked.count) return refused(EINVAL, "a write without all of its data");
    const std::span<const std::byte> in = std::span(body_).subspan(sizeof asked);
    switch (asked.region) {
      case VFIO_PCI_BAR0_REGION_INDEX:
        std::memcpy(card_.vram.bytes().data() + asked.offset, in.data(), in.size());
        break;
      case VFIO_PCI_CONFIG_REGION_INDEX:
        card_.config.write(asked.offset, in);
        place();
        break;
      default:
        card_.device.write(static_cast<Bar>(asked.region), asked.offset, in);
    }
    return Answer{bytes_of(asked)};
  }

  Result<Answer> reset() {
    card_.trace.line("reset");
    card_.config.reset();
    place();
    card_.device.reset();
    return Answer{};
  }

  // Tells other cards where the guest has put VRAM.
  void place() {
    if (card_.config.memory_enabled()) {
      card_.peers.place({card_.config.address(Bar::kVram), card_.vram.bytes().size()}, card_.vram.fd());
    } else {
      card_.peers.withdraw();
    }
  }

  VfioUser& session_;
  Card& card_;
  std::vector<std::byte>& body_;
  std::vector<UniqueFd>& fds_;
};

std::optional<VfioUserReply> VfioUser::answer(VfioUserRequest request) {
  Result<Answer> answer = Handler(*this, request).run(request.header.command);
  VfioUserHeader header{request.header.id, request.header.command, sizeof header, VfioUserHeader::kReply, 0};
  VfioUserReply reply;
  if (answer) {
    header.bytes += static_cast<std::uint32_t>(answer->body.size());
    reply.fd = answer->fd;
  } else {
    header.flags |= VfioUserHeader::kError;
    header.error = static_cast<std::uint32_t>(answer.error().err);
    if (card_.trace.on()) {
      card_.trace.line("message " + std::to_string(header.command) + " refused: " + answer.error().what);
    }
  }
  if ((request.header.flags & VfioUserHeader::kNoReply) != 0) return std::nullopt;
  reply.message = bytes_of(header);
  if (answer) reply.message.insert(reply.message.end(), answer->body.begin(), answer->body.end());
  return reply;
}

}  // namespace sluice::card
