// SPDX-License-Identifier: MIT
// How the tasks of a tree find shared memory. Its maker puts the dma-buf into CRIU's fdstore and the
// fdstore's number into this table, which all tasks inherit; importers wait for that. No task waits before it
// has made all its own memory, so none waits for ever. When one fails, the host kills all; when the host is
// dead, waiters give up.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/unique_fd.h"
#include "plugin/restore/basis/lifeline.h"

namespace sluice::plugin {

class SharedTable {
 public:
  // In the main process, before any task is forked. For the numbers 1 to `most`. Errors: ENOMEM, E2BIG
  // (more than kMostSharedBos).
  static Result<std::unique_ptr<SharedTable>> make(std::uint32_t most);
  ~SharedTable();
  SharedTable(const SharedTable&) = delete;
  SharedTable& operator=(const SharedTable&) = delete;

  // Task: the memory of that number is this dma-buf's, borrowed. Errors: ERANGE, EIO (the fdstore).
  Result<void> publish(std::uint32_t number, int dmabuf);
  // Task: waits until it is published. Errors: ERANGE, EIO; as Lifeline::check().
  Result<UniqueFd> take(std::uint32_t number, const Lifeline& main);

 private:
  // 0: not made yet; else the fdstore's number plus one.
  using Entry = std::atomic<std::uint32_t>;
  SharedTable(Entry* entries, std::uint32_t most) : entries_(entries), most_(most) {}
  Result<Entry*> entry(std::uint32_t number) const;

  Entry* entries_;
  std::uint32_t most_;
};

}  // namespace sluice::plugin
