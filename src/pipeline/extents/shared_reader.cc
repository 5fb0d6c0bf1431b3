// SPDX-License-Identifier: MIT
#include "pipeline/extents/shared_reader.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/caught.h"

namespace sluice {

Result<std::unique_ptr<SharedReader>> SharedReader::start(LaneWorld& world, std::uint64_t block_bytes,
                                                          std::uint64_t bytes) {
  SLUICE_TRY_ASSIGN(StagingArena arena, StagingArena::make(align_up(block_bytes, kBufferAlignment),
                                                           slots_in(bytes, block_bytes), -1));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return make_error(errno, "eventfd of a reader");
  std::unique_ptr<SharedReader> reader(
      new SharedReader(world, std::move(arena), block_bytes, std::move(wake)));
  SLUICE_TRY_ASSIGN(LaneThread thread,
                    world.start_thread("sluice-reads", [its = reader.get()] { return its->serve(); }));
  reader->thread_.emplace(std::move(thread));
  return reader;
}

SharedReader::SharedReader(LaneWorld& world, StagingArena arena, std::uint64_t block_bytes, UniqueFd wake)
    : world_(world),
      arena_(std::move(arena)),
      block_bytes_(block_bytes),
      wake_(std::move(wake)),
      blocks_(arena_.slots()) {
  for (std::uint32_t i = 0; i < arena_.slots(); ++i) {
    blocks_[i].buffer = arena_.buffer(i).first(static_cast<std::size_t>(block_bytes));
    blocks_[i].op.tag = i;
  }
  beginning_.reserve(blocks_.size());
}

SharedReader::~SharedReader() {
  if (!thread_) return;
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  (void)::eventfd_write(wake_.get(), 1);
}

const SharedReader::File* SharedReader::add(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return nullptr;  // unreached: a guard
  const FileIdentity identity = identity_of(status);
  const Lock lock(mutex_);
  const auto known =
      std::find_if(files_.begin(), files_.end(), [&](const File& file) { return file.identity == identity; });
  if (known != files_.end()) return &*known;
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return nullptr;
  return &files_.emplace_back(File{std::move(own), identity});
}

SharedReader::Piece SharedReader::get(const File& file, std::uint64_t offset) {
  if (offset >= static_cast<std::uint64_t>(file.identity.bytes)) return {};
  Block* block = nullptr;
  bool asked = false;
  {
    const Lock lock(mutex_);
    if (ends_) return {};
    block = block_for(file, offset - offset % block_bytes_);
    if (block == nullptr) return {};
    block->used = ++uses_;
    ++block->pieces;
    asked = block->state == State::Asked;
  }
  if (asked) (void)::eventfd_write(wake_.get(), 1);
  return {*this, *block};
}

// The one that has the bytes, or will have them: if none, one that nobody uses, the longest unused.
SharedReader::Block* SharedReader::block_for(const File& file, std::uint64_t begin) {
  Block* unused = nullptr;
  for (Block& block : blocks_) {
    if (block.file == &file && block.begin == begin) return block.state != State::Failed ? &block : nullptr;
    if (block.pieces == 0 && !is_due(block) && (unused == nullptr || block.used < unused->used))
      unused = &block;
  }
  if (unused == nullptr) return nullptr;
  unused->file = &file;
  unused->begin = begin;
  unused->bytes = static_cast<std::size_t>(
      std::min(block_bytes_, static_cast<std::uint64_t>(file.identity.bytes) - begin));
  unused->state = State::Asked;
  return unused;
}

bool SharedReader::waits(Block& block, int event) {
  const Lock lock(mutex_);
  if (!is_due(block)) return false;
  if (std::find(block.watched.begin(), block.watched.end(), event) == block.watched.end())
    block.watched.push_back(event);
  return true;
}

void SharedReader::give_back(Block& block, int event) {
  const Lock lock(mutex_);
  --block.pieces;
  std::erase(block.watched, event);
}

std::size_t SharedReader::Piece::copy(std::uint64_t offset, std::span<std::byte> into) const {
  if (block_->state != State::There) return 0;
  const auto from = static_cast<std::size_t>(offset - block_->begin);
  const std::size_t bytes = std::min(into.size(), block_->bytes - from);
  std::memcpy(into.data(), &block_->buffer[from], bytes);
  return bytes;
}

void SharedReader::end(Block& block, State state) {
  block.state = state;
  for (const int event : block.watched) (void)::eventfd_write(event, 1);
  block.watched.clear();
}

// Without a reactor, or once it has broken, lanes read for themselves.
Result<void> SharedReader::serve() {
  Result<void> outcome = caught([this]() -> Result<void> {
    std::string note;  // a lane's reactor lacks the same and says so
    SLUICE_TRY_ASSIGN(const std::unique_ptr<Reactor> reactor,
                      world_.make_reactor(arena_.slots() + 1, arena_.bytes(), note));
    const ArenaKeeper keeper(arena_, *reactor);
    return read_all(*reactor);
  });
  const Lock lock(mutex_);
  ends_ = true;
  for (Block& block : blocks_)
    if (is_due(block)) end(block, State::Failed);
  return outcome;
}

Result<void> SharedReader::read_all(Reactor& reactor) {
  bool goes_on = true;
  reactor.poll_readable(waking_, wake_.get(), kForEver);
  while (goes_on || reactor.in_flight() > 0) {
    std::array<Completion, 16> done;
    SLUICE_TRY_ASSIGN(const std::size_t count, reactor.wait(done));
    for (const Completion& each : std::span(done).first(count)) {
      if (each.op != &waking_) {
        const Lock lock(mutex_);
        Block& block = blocks_[each.op->tag];
        end(block, std::cmp_equal(each.result, block.bytes) ? State::There : State::Failed);
        continue;
      }
      eventfd_t ignored = 0;
      (void)::eventfd_read(wake_.get(), &ignored);
      goes_on = read_asked(reactor);
      if (goes_on) reactor.poll_readable(waking_, wake_.get(), kForEver);
    }
  }
  return {};
}

// False: the end has come, and nothing more is begun.
bool SharedReader::read_asked(Reactor& reactor) {
  beginning_.clear();
  {
    const Lock lock(mutex_);
    if (ends_) return false;
    for (Block& block : blocks_) {
      if (block.state != State::Asked) continue;
      beginning_.push_back(&block);
      block.state = State::Reading;
    }
  }
  // All of the buffer: a direct read of the file's end has to be aligned, and comes back short.
  for (Block* const block : beginning_)
    reactor.read(block->op, block->file->fd.get(), block->buffer, block->begin);
  return true;
}

std::shared_ptr<SharedReader> SharedReaders::get(LaneWorld& world, std::uint64_t block_bytes,
                                                 std::uint64_t bytes) {
  const Lock lock(mutex_);
  std::shared_ptr<SharedReader> reader = reader_.lock();
  if (reader) return reader;
  auto made = SharedReader::start(world, block_bytes, bytes);
  if (!made) return nullptr;
  reader = std::move(*made);
  reader_ = reader;
  return reader;
}

}  // namespace sluice
