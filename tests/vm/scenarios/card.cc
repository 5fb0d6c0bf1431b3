// SPDX-License-Identifier: MIT
#include "card.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "card/control/mailbox_page.h"
#include "process.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;
using namespace card::mailbox;  // NOLINT(google-build-using-namespace): the layout of one page

constexpr const char* kBus = "/sys/bus/pci/devices";
constexpr const char* kAmdgpu = "/sys/bus/pci/drivers/amdgpu";
constexpr const char* kVendor = "0x1002\n";
const std::map<std::string, Card::Model> kModels = {{"0x740f\n", Card::Model::Mi210},
                                                    {"0x74a1\n", Card::Model::Mi300x}};

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

// sysfs takes a text as a whole, and answers with errno.
void tell_driver(const fs::path& file, const std::string& text) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || ::write(fd.get(), text.data(), text.size()) < 0) fail(file.string() + " of " + text);
}

// The page of registers that no driver uses.
class MailboxPage {
 public:
  explicit MailboxPage(const fs::path& registers) {
    const UniqueFd fd(::open(registers.c_str(), O_RDWR | O_SYNC | O_CLOEXEC));
    if (!fd) fail(registers);
    void* const at = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), kPage);
    if (at == MAP_FAILED) fail("mmap of " + registers.string());
    words_ = static_cast<volatile std::uint32_t*>(at);
    if (words_[kMagicAt / 4] != kMagic) {
      (void)::munmap(at, kPageBytes);
      throw std::runtime_error(registers.string() + ": this card has no mailbox");
    }
  }
  ~MailboxPage() { (void)::munmap(const_cast<std::uint32_t*>(words_), kPageBytes); }
  MailboxPage(const MailboxPage&) = delete;
  MailboxPage& operator=(const MailboxPage&) = delete;

  // Whole words, as a device's registers want them.
  std::string ask(const std::string& command) {
    if (command.size() > kTextBytes) throw std::runtime_error("a command that is too long");
    for (std::size_t at = 0; at < command.size(); at += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, command.data() + at, std::min<std::size_t>(4, command.size() - at));
      words_[(kTextAt + at) / 4] = word;
    }
    words_[kLengthAt / 4] = static_cast<std::uint32_t>(command.size());
    std::string answer(std::min<std::size_t>(words_[kLengthAt / 4], kTextBytes), '\0');
    for (std::size_t at = 0; at < answer.size(); at += 4) {
      const std::uint32_t word = words_[(kTextAt + at) / 4];
      std::memcpy(answer.data() + at, &word, std::min<std::size_t>(4, answer.size() - at));
    }
    return answer;
  }

 private:
  volatile std::uint32_t* words_;
};

}  // namespace

Card::Card(fs::path folder, Model model)
    : folder_(std::move(folder)), address_(folder_.filename()), model_(model) {
  // The first line is BAR 0, which is the VRAM: first and last byte, flags.
  unsigned long long first = 0, last = 0;
  if (std::sscanf(read_file(folder_ / "resource").c_str(), "%llx %llx", &first, &last) == 2 && last > first)
    vram_bytes_ = last - first + 1;
}

std::vector<Card> Card::all() {
  std::vector<Card> cards;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(kBus, none)) {
    const auto model = kModels.find(read_file(entry.path() / "device"));
    if (read_file(entry.path() / "vendor") == kVendor && model != kModels.end())
      cards.push_back(Card(entry.path(), model->second));
  }
  std::sort(cards.begin(), cards.end(), [](const Card& a, const Card& b) {
    return std::pair(b.vram_bytes(), a.address()) < std::pair(a.vram_bytes(), b.address());
  });
  return cards;
}

bool Card::bound() const {
  return fs::exists(folder_ / "driver");
}

void Card::bind() const {
  tell_driver(fs::path(kAmdgpu) / "bind", address_);
}

void Card::divide(bool into_dies) const {
  const fs::path mode = folder_ / "current_compute_partition";
  const std::string wanted = into_dies ? "CPX" : "SPX";
  if ((into_dies || fs::exists(mode)) && read_file(mode) != wanted + "\n") tell_driver(mode, wanted);
}

std::filesystem::path Card::debug_folder() const {
  constexpr std::string_view kCard = "card";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "drm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kCard)) return "/sys/kernel/debug/dri/" + name.substr(kCard.size());
  }
  throw std::runtime_error(address_ + ": no driver is bound");
}

std::string Card::tell(const std::string& command) const {
  std::string answer = MailboxPage(folder_ / "resource5").ask(command);
  if (!answer.starts_with("ok")) throw std::runtime_error(address_ + ", " + command + ": " + answer);
  return answer;
}

std::uint64_t Card::number(const std::string& file) const {
  return std::strtoull(read_file(folder_ / file).c_str(), nullptr, 10);
}

}  // namespace sluice::vm_test
