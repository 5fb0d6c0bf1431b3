// SPDX-License-Identifier: MIT
// A program of gfx90a that may be anything: a budget ends it, it reaches no memory but its own, and the card
// lives on.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "shader/machine.h"

namespace {

using namespace sluice::card;

sluice::fuzz::Goal an_end("a program, to its end");
sluice::fuzz::Goal a_store("a program that writes memory");

constexpr std::uint64_t kBase = 0x10000;
constexpr std::uint64_t kBudget = 2000;

// One range of memory, which is the program, too.
class Range final : public shader::Outside {
 public:
  explicit Range(std::span<const std::uint8_t> program) : bytes_(0x4000) {
    std::memcpy(bytes_.data(), program.data(), std::min(program.size(), bytes_.size()));
  }
  std::span<std::byte> at(std::uint64_t address, std::size_t length, Access access) override {
    if (address < kBase || address >= kBase + bytes_.size()) return {};
    if (access == Access::kWrite) a_store.reach();
    const std::size_t in_page = 0x1000 - address % 0x1000;
    return std::span(bytes_).subspan(address - kBase, std::min(length, in_page));
  }
  std::uint64_t clock() override { return 1; }
  void interrupt(std::uint32_t) override {}

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Range memory({data, size});
  shader::Machine machine(memory, {.tba = kBase + 0x100});
  shader::Group group;
  group.lds.resize(512);
  for (unsigned i = 0; i < 2; ++i) {
    auto wave = std::make_unique<shader::Wave>();
    wave->pc = kBase;
    wave->exec(i == 0 ? ~0ULL : 0xffff);
    wave->pair(4, kBase + 0x1000);
    for (unsigned lane = 0; lane < shader::kLanes; ++lane) wave->vector[0][lane] = lane * 4;
    group.waves.push_back(std::move(wave));
  }
  std::uint64_t budget = kBudget;
  if (machine.run(group, budget) == shader::Machine::Result::kDone) an_end.reach();
  if (budget > kBudget || machine.executed() > kBudget) std::abort();
  return 0;
}
