// SPDX-License-Identifier: MIT
#include "machine.h"

#include <fcntl.h>
#include <linux/kfd_ioctl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "base/unique_fd.h"
#include "guest_subject.h"
#include "hidden_gpus.h"
#include "kernel_log.h"
#include "settings.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

// Where the guest keeps the driver and what it needs, with a file `order` that lists them.
const fs::path kModules = "/usr/lib/stock-modules";
constexpr const char* kModule = "amdgpu.ko";
const fs::path kDriver = "/sys/bus/pci/drivers/amdgpu";
// The IP blocks of an MI210 that compute needs, without the firmware of its security processor; no resets,
// and a busy host is no hang. The processor writes all page tables (3): with some by SDMA, Linux 7.2 on a
// busy machine clears the KFD's after it has filled them (docs/internals/vm-drivers.md).
constexpr const char* kParameters =
    "fw_load_type=0 ip_block_mask=0x1f gpu_recovery=0 lockup_timeout=60000 vm_update_mode=3";
const fs::path kNodes = "/sys/class/kfd/kfd/topology/nodes";
const fs::path kProcesses = "/sys/class/kfd/kfd/proc";

void load_driver() {
  // Cards are bound one by one, as scenarios want them.
  write_file("/sys/bus/pci/drivers_autoprobe", "0");
  std::ifstream order(kModules / "order");
  if (!order) throw std::runtime_error((kModules / "order").string() + ": not in this guest");
  for (std::string name; std::getline(order, name);) {
    const UniqueFd file(::open((kModules / name).c_str(), O_RDONLY | O_CLOEXEC));
    KernelLog log;
    const long result =
        file ? ::syscall(SYS_finit_module, file.get(), name == kModule ? kParameters : "", 0) : -1;
    if (result == 0 || errno == EEXIST) continue;
    std::string why = name + " does not load: " + std::strerror(errno);
    for (const std::string& line : log.complaints()) why += "\n  " + line;
    throw std::runtime_error(why);
  }
}

// Of a given driver, which no version of Linux describes. Asked in a process of its own: one that has opened
// /dev/kfd is a process of the KFD until it ends. REQUIRES: a machine is loaded.
unsigned kfd_minor() {
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd kfd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
    kfd_ioctl_get_version_args version{};
    const bool asked = kfd && ::ioctl(kfd.get(), AMDKFD_IOC_GET_VERSION, &version) == 0;
    ::_exit(asked ? static_cast<int>(version.minor_version) : 0);
  }
  const std::optional<int> status = child < 0 ? std::nullopt : wait_for(child);
  if (!status || *status <= 0) throw std::runtime_error("/dev/kfd does not say its version");
  return static_cast<unsigned>(*status);
}

// Likewise. A file without BOs has an empty list.
bool answers_with_handles() {
  constexpr unsigned long kListHandles = 0xC0106459;  // DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES
  for (const fs::directory_entry& node : fs::directory_iterator("/dev/dri")) {
    const UniqueFd file(::open(node.path().c_str(), O_RDWR | O_CLOEXEC));
    std::uint64_t none[2] = {};
    if (file && ::ioctl(file.get(), kListHandles, none) == 0) return true;
  }
  return false;
}

std::uint64_t property(const fs::path& node, const std::string& wanted) {
  std::istringstream lines(read_file(node / "properties"));
  std::string key;
  for (std::uint64_t value = 0; lines >> key >> value;) {
    if (key == wanted) return value;
  }
  return 0;
}

std::uint64_t number_of(const fs::path& file) {
  return std::strtoull(read_file(file).c_str(), nullptr, 10);
}

std::size_t entries_of(const fs::path& folder) {
  std::error_code none;
  const fs::directory_iterator entries(folder, none);
  return none ? 0 : static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// Of all render nodes, used or not.
std::set<unsigned> all_minors() {
  constexpr std::string_view kRender = "renderD";
  std::set<unsigned> minors;
  for (const fs::directory_entry& node : fs::directory_iterator("/sys/class/drm")) {
    const std::string name = node.path().filename();
    if (name.starts_with(kRender))
      minors.insert(static_cast<unsigned>(std::strtoul(name.c_str() + kRender.size(), nullptr, 10)));
  }
  return minors;
}

// Of the GPUs that these cards are, or of the first die of each. REQUIRES: all GPUs are shown.
std::set<unsigned> minors_of(const std::vector<Card>& cards, bool first_dies) {
  std::set<unsigned> minors;
  for (const fs::directory_entry& node : fs::directory_iterator(kNodes)) {
    // Bus, device, and a function that is a die's number.
    const std::uint64_t place = property(node.path(), "location_id");
    if (first_dies && (place & 7) != 0) continue;
    char slot[16];
    (void)std::snprintf(slot, sizeof slot, ":%02x:%02x.", static_cast<unsigned>(place >> 8 & 0xff),
                        static_cast<unsigned>(place >> 3 & 0x1f));
    if (std::any_of(cards.begin(), cards.end(),
                    [&](const Card& card) { return card.address().find(slot) != std::string::npos; }))
      minors.insert(static_cast<unsigned>(property(node.path(), "drm_render_minor")));
  }
  return minors;
}

// Those of `all` that the machine has, in the order of their minors.
std::vector<Card> chosen(const std::vector<Card>& all, const Gpus& wanted) {
  std::uint64_t usual = 0;
  for (const Card& card : all) usual = std::max(usual, card.vram_bytes());
  std::vector<Card> fit;
  for (const Card& card : all) {
    if ((card.vram_bytes() < usual) == wanted.small && card.vram_bytes() >= std::uint64_t{wanted.vram_mib}
                                                                                << 20)
      fit.push_back(card);
  }
  const std::size_t first = std::size_t{wanted.machine} * wanted.number;
  if (fit.size() < first + wanted.number)
    throw std::runtime_error("this guest has " + std::to_string(fit.size()) + " cards of that size");
  return {fit.begin() + static_cast<std::ptrdiff_t>(first),
          fit.begin() + static_cast<std::ptrdiff_t>(first + wanted.number)};
}

}  // namespace

Machine::~Machine() {
  try {
    end_meddling();
  } catch (const std::exception&) {
    // The next scenario finds the card as it is.
  }
}

void Machine::load(const Gpus& wanted) {
  if (!fs::exists(kDriver)) load_driver();
  const std::vector<Card> all = Card::all();
  const std::vector<Card> cards = chosen(all, wanted);
  // Cards are bound once, in the order of the bus, and never unbound. A card that goes leaves /dev/kfd locked
  // until the driver is unloaded: amdgpu_device_ip_fini_early calls amdgpu_amdkfd_suspend, which counts
  // kfd_locked up, and nothing counts it down (Linux 6.1, 6.12 and 7.2). And 6.1 dies of resetting an MI210
  // that has no SMU.
  for (const Card& card : all) {
    if (!card.bound()) card.bind();
  }
  const bool divided =
      wanted.each == Gpus::Each::Dies || (wanted.each == Gpus::Each::Usual && Card::have_dies());
  const std::set<unsigned> nodes = all_minors();
  show_gpus(nodes, nodes);
  for (const Card& card : all) {
    const bool taken = std::any_of(cards.begin(), cards.end(),
                                   [&](const Card& other) { return other.address() == card.address(); });
    card.divide(taken && divided);
  }
  show_gpus(nodes, minors_of(cards, divided && wanted.each == Gpus::Each::Usual));
  cards_ = cards;
  operations_.emplace();
}

void Machine::unload() {
  end_meddling();
  cards_.clear();
}

void Machine::end_meddling() {
  if (!meddled_) return;
  for (const Card& card : cards_) {
    card.tell("sdma hold off");
    card.tell("sdma rate 0");
    card.tell("shaders go");
  }
  meddled_ = false;
}

std::vector<std::uint32_t> Machine::gpu_ids() const {
  std::map<std::uint64_t, std::uint32_t> by_minor;
  for (const fs::directory_entry& node : fs::directory_iterator(kNodes)) {
    if (const auto id = static_cast<std::uint32_t>(number_of(node.path() / "gpu_id")); id != 0)
      by_minor[property(node.path(), "drm_render_minor")] = id;
  }
  std::vector<std::uint32_t> ids;
  ids.reserve(by_minor.size());
  for (const auto& [minor, id] : by_minor) ids.push_back(id);
  return ids;
}

std::uint64_t Machine::vram_bytes() const {
  for (const fs::directory_entry& node : fs::directory_iterator(kNodes)) {
    if (number_of(node.path() / "gpu_id") != 0) return property(node.path() / "mem_banks/0", "size_in_bytes");
  }
  return 0;
}

std::uint64_t Machine::free_vram(unsigned gpu) const {
  return cards_.at(gpu).number("mem_info_vram_total") - cards_.at(gpu).number("mem_info_vram_used");
}

Usage Machine::usage() const {
  Usage usage;
  usage.numbers = {{"KFD processes", entries_of(kProcesses)},
                   {"references to the driver", number_of("/sys/module/amdgpu/refcnt")}};
  // Both together: where VRAM was short, the driver leaves memory of its own in GTT.
  for (const Card& card : cards_)
    usage.numbers["bytes of VRAM and GTT of " + card.address()] =
        card.number("mem_info_vram_used") + card.number("mem_info_gtt_used");
  return usage;
}

std::optional<ProcessSeen> Machine::process(pid_t pid) const {
  const fs::path folder = kProcesses / std::to_string(pid);
  if (!fs::exists(folder)) return std::nullopt;
  ProcessSeen seen;
  constexpr std::string_view kVram = "vram_";
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kVram)) continue;
    const auto id = static_cast<std::uint32_t>(std::strtoul(name.c_str() + kVram.size(), nullptr, 10));
    seen.gpu_ids.insert(id);
    seen.vram[id] = number_of(entry.path());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "queues", none)) {
    const auto number = [&](const char* file) {
      return static_cast<std::uint32_t>(number_of(entry.path() / file));
    };
    seen.queues.push_back({static_cast<std::uint32_t>(std::atoi(entry.path().filename().c_str())),
                           number("gpuid"), number("type"), number("size")});
  }
  std::sort(seen.queues.begin(), seen.queues.end());
  return seen;
}

std::uint64_t Machine::criu_calls(std::uint32_t op) const {
  return operations_->count(op);
}

// Numbers of jobs of all SDMA rings together, of a line of the GPU's fence_info.
static std::uint64_t sdma_jobs(const Card& card, const char* line_format) {
  std::istringstream lines(read_file(card.debug_folder() / "amdgpu_fence_info"));
  std::uint64_t sum = 0;
  bool sdma = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("--- ring ")) sdma = line.find("(sdma") != std::string::npos;
    unsigned number = 0;
    if (sdma && std::sscanf(line.c_str(), line_format, &number) == 1) sum += number;
  }
  return sum;
}

std::uint64_t Machine::copies_begun(unsigned gpu) const {
  return sdma_jobs(cards_.at(gpu), "Last emitted %x");
}

bool Machine::holds_a_copy(unsigned gpu) const {
  return sdma_jobs(cards_.at(gpu), "Last signaled fence %x") < copies_begun(gpu);
}

void Machine::set_engine_rate(unsigned gpu, std::uint64_t bytes_per_s) {
  cards_.at(gpu).tell("sdma rate " + std::to_string(bytes_per_s));
  meddled_ = true;
}

void Machine::hold_copies(unsigned gpu) {
  // Not the fences: those of page tables would be held, too.
  cards_.at(gpu).tell("sdma hold on");
  meddled_ = true;
}

void Machine::let_copies_end() {
  for (const Card& card : cards_) card.tell("sdma hold off");
}

void Machine::hold_kernels(std::uint64_t instructions) {
  for (const Card& card : cards_) card.tell("shaders hold " + std::to_string(instructions));
  meddled_ = true;
}

void Machine::let_kernels_go() {
  for (const Card& card : cards_) card.tell("shaders go");
}

std::uint64_t Machine::counted(const std::string& counter) const {
  std::uint64_t sum = 0;
  for (const Card& card : cards_)
    sum += static_cast<std::uint64_t>(number_in(card.tell("counters"), counter));
  return sum;
}

bool driver_is_given() {
  return fs::exists(kModules / "given");
}

// KFD 1.12 is of Linux 6.3 (kfd_ioctl.h).
bool kfd_exports() {
  if (driver_is_given()) return kfd_minor() >= 12;
  return kernel_version() >= KernelVersion{6, 3};
}

// GEM_OP and the like came with Linux 6.18 (amdgpu_gem.c).
bool kernel_lists_handles() {
  if (driver_is_given()) return answers_with_handles();
  return kernel_version() >= KernelVersion{6, 18};
}

// Debian's kernels have CONFIG_HSA_AMD_SVM where they have CONFIG_DEVICE_PRIVATE: of ours the youngest. A
// given driver needs the latter, too.
bool kernel_has_svm() {
  return kernel_version() >= KernelVersion{7, 0};
}

// Room for 16 GPUs, since Linux 6.5 for 64 (kfd_priv.h, kfd_criu_bo_priv_data).
std::uint32_t bo_record_bytes() {
  return kernel_version() >= KernelVersion{6, 5} ? 272 : 80;
}

}  // namespace sluice::vm_test
