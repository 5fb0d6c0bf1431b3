// SPDX-License-Identifier: MIT
#include "plugin/restore/gpus/tree_match.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

namespace sluice::plugin {

namespace {

// Enough for a search that is given up and for a ledger lock that is never released.
constexpr auto kTreePatience = std::chrono::seconds(20);

}  // namespace

Result<std::unique_ptr<TreeMatch>> TreeMatch::make() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return make_error(errno, "memory in which tasks agree on GPUs");
  return std::unique_ptr<TreeMatch>(new TreeMatch(new (memory) Shared{}));
}

TreeMatch::~TreeMatch() {
  (void)::munmap(shared_, sizeof(Shared));
}

void TreeMatch::lock_into(std::optional<FutexLocked>& locked) {
  locked.emplace(shared_->lock, kTreePatience);
}

std::vector<kfd::MappedGpu> TreeMatch::agreed() const {
  const std::size_t count = std::min<std::size_t>(shared_->count, kMost);
  return {shared_->pairs.begin(), shared_->pairs.begin() + static_cast<std::ptrdiff_t>(count)};
}

void TreeMatch::agree(const kfd::MappedGpu& pair) {
  const std::uint32_t count = shared_->count;
  if (count >= kMost) return;  // unreached: too large
  shared_->pairs.at(count) = pair;
  shared_->count = count + 1;
}

}  // namespace sluice::plugin
