// SPDX-License-Identifier: MIT
#include "plugin/restore/basis/shared_table.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "base/format.h"
#include "images/metadata.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

constexpr const char* kCriuTells = "; see CRIU's lines before this one [SL-R39]";
constexpr timespec kLookAtMain{1, 0};  // how often a waiting task checks whether main lives

}  // namespace

Result<std::unique_ptr<SharedTable>> SharedTable::make(std::uint32_t most) {
  static_assert(Entry::is_always_lock_free && sizeof(Entry) == sizeof(std::uint32_t), "a futex");
  if (most > kMostSharedBos)
    return make_error(E2BIG, formatted("make a table of {} BOs that files share", most));
  void* memory =
      ::mmap(nullptr, most * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return make_error(errno, "memory for the table of shared BOs");
  return std::unique_ptr<SharedTable>(new SharedTable(static_cast<Entry*>(memory), most));  // zero is empty
}

SharedTable::~SharedTable() {
  (void)::munmap(entries_, most_ * sizeof(Entry));
}

Result<SharedTable::Entry*> SharedTable::entry(std::uint32_t number) const {
  if (number >= 1 && number <= most_) return &entries_[number - 1];
  // unreached: a guard
  return make_error(ERANGE, formatted("find shared BO {} in the table", number));
}

Result<void> SharedTable::publish(std::uint32_t number, int dmabuf) {
  SLUICE_TRY_ASSIGN(Entry* const entry, this->entry(number));
  const int id = fdstore_add(dmabuf);
  if (id < 0) return with_remedy(make_error(EIO, "CRIU's fdstore did not take a shared BO"), kCriuTells);
  entry->store(static_cast<std::uint32_t>(id) + 1);
  (void)::syscall(SYS_futex, entry, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return {};
}

Result<UniqueFd> SharedTable::take(std::uint32_t number, const Lifeline& main) {
  SLUICE_TRY_ASSIGN(Entry* const entry, this->entry(number));
  std::uint32_t value = 0;
  while ((value = entry->load()) == 0) {
    SLUICE_TRY(main.check());
    (void)::syscall(SYS_futex, entry, FUTEX_WAIT, 0, &kLookAtMain, nullptr, 0);
  }
  UniqueFd dmabuf(fdstore_get(static_cast<int>(value - 1)));
  if (!dmabuf) return with_remedy(make_error(EIO, "CRIU's fdstore has lost a shared BO"), kCriuTells);
  return dmabuf;
}

}  // namespace sluice::plugin
