// SPDX-License-Identifier: MIT
// Reads files for all lanes of a process that need the same bytes: GPUs of a data-parallel job have the same
// contents. The disk reads a block once, and each lane copies it into its own slots.
//
// The reader's thread waits for nothing but the disk, so no lane waits for another: a lane that lags, fails
// or has not begun delays nobody. A lane that lags by more than all blocks has the disk read again. What does
// not come here, a lane reads itself: because all blocks are in use, or a read failed or came short. So
// errors and their messages are always those of the lane's own read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/image_file.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "pipeline/arena.h"
#include "pipeline/lane_thread.h"
#include "pipeline/lane_world.h"
#include "pipeline/reactor/reactor.h"

namespace sluice {

// Any thread, except as said.
class SharedReader {
 public:
  struct File {
    UniqueFd fd;
    FileIdentity identity;
  };

 private:
  enum class State : std::uint8_t { Free, Asked, Reading, There, Failed };
  struct Block {
    std::span<std::byte> buffer;
    State state = State::Free;
    const File* file = nullptr;
    std::uint64_t begin = 0;   // in the file
    std::size_t bytes = 0;     // that the file has from there
    unsigned pieces = 0;       // that use it
    std::uint64_t used = 0;    // when a piece was last made; larger is later
    std::vector<int> watched;  // eventfds
    Op op;
  };

 public:
  // A block in use, which therefore stays. Thread-bound.
  class Piece {
   public:
    Piece() = default;
    Piece(Piece&& other) noexcept { *this = std::move(other); }
    Piece& operator=(Piece&& other) noexcept {
      std::swap(reader_, other.reader_);
      std::swap(block_, other.block_);
      std::swap(event_, other.event_);
      return *this;
    }
    ~Piece() {
      if (block_ != nullptr) reader_->give_back(*block_, event_);
    }
    explicit operator bool() const { return block_ != nullptr; }

    // Whether it waits for the disk. Then `event` is written once it does not any more. The eventfd is
    // borrowed for as long as the piece; always the same.
    bool waits(int event) { return reader_->waits(*block_, event_ = event); }
    // Copies the file's bytes from `offset` on, up to the block's end, and returns how many. 0: they cannot
    // be had here. REQUIRES: it does not wait, and `offset` is in the block.
    std::size_t copy(std::uint64_t offset, std::span<std::byte> into) const;

   private:
    friend class SharedReader;
    Piece(SharedReader& reader, Block& block) : reader_(&reader), block_(&block) {}
    SharedReader* reader_ = nullptr;
    Block* block_ = nullptr;
    int event_ = -1;
  };

  // Starts the thread. `world` is borrowed. `block_bytes`: the lanes' chunk_bytes. `bytes`: of all blocks.
  // Errors: those of StagingArena::make and LaneWorld::start_thread; EMFILE.
  static Result<std::unique_ptr<SharedReader>> start(LaneWorld& world, std::uint64_t block_bytes,
                                                     std::uint64_t bytes);
  // Waits until the disk reads nothing more. REQUIRES: no piece is left.
  ~SharedReader();

  // The file that is open at `fd`, the same for all descriptors of it. It is read with the first one's flags.
  // Lives as long as the reader. Null: no descriptor is left.
  const File* add(int fd);

  // The block with the byte at `offset` of the file; asks the disk for it if it is not there. Nothing: none
  // can be had now.
  Piece get(const File& file, std::uint64_t offset);

 private:
  SharedReader(LaneWorld& world, StagingArena arena, std::uint64_t block_bytes, UniqueFd wake);
  bool waits(Block& block, int event);
  void give_back(Block& block, int event);
  Block* block_for(const File& file, std::uint64_t begin) SLUICE_REQUIRES(mutex_);
  static bool is_due(const Block& block) {
    return block.state == State::Asked || block.state == State::Reading;
  }
  static void end(Block& block, State state);
  Result<void> serve();
  Result<void> read_all(Reactor& reactor);
  bool read_asked(Reactor& reactor);

  LaneWorld& world_;
  StagingArena arena_;
  const std::uint64_t block_bytes_;
  const UniqueFd wake_;  // an eventfd: blocks are asked for, or the end has come
  Mutex mutex_;
  std::list<File> files_ SLUICE_GUARDED_BY(mutex_);
  std::vector<Block> blocks_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t uses_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool ends_ SLUICE_GUARDED_BY(mutex_) = false;
  // The thread's. Ops of a ring that broke outlive it.
  Op waking_;
  std::vector<Block*> beginning_;
  std::optional<LaneThread> thread_;  // last: ends before everything that it uses
};

// The reader of a process' lanes: made for the first that asks, ended by the last that lets go of it.
class SharedReaders {
 public:
  // Memory for blocks, in bytes, where `lanes` have `staging_bytes` each. Lanes keep step (fair_share.h), so
  // half of what they have is enough for several files at once.
  static constexpr std::uint64_t kMostBytes = 256 * kMiB;
  static constexpr std::uint64_t bytes_for(std::size_t lanes, std::uint64_t staging_bytes) {
    return std::min(lanes * staging_bytes / 2, kMostBytes);
  }

  // As SharedReader::start(). Null: none can be made, so that lanes read for themselves.
  std::shared_ptr<SharedReader> get(LaneWorld& world, std::uint64_t block_bytes, std::uint64_t bytes);

 private:
  Mutex mutex_;
  std::weak_ptr<SharedReader> reader_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
