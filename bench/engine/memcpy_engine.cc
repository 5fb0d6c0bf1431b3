// SPDX-License-Identifier: MIT
// One thread executes the copies that the stage queues, and writes each slot's eventfd when done.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "engine/copy_engine.h"
#include "engine/engine_thread.h"
#include "front/dma_copy.h"

namespace sluice::bench {
namespace {

class AnonymousMemory {
 public:
  explicit AnonymousMemory(std::uint64_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    (void)::madvise(memory, bytes, MADV_HUGEPAGE);
    bytes_ = {static_cast<std::byte*>(memory), bytes};
  }
  ~AnonymousMemory() {
    if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
  }
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

class MemcpyStage final : public Stage {
 public:
  MemcpyStage(Direction direction, const ImageLayout& layout, std::span<std::byte> bos, EngineThread& thread,
              Reactor& reactor, std::vector<UniqueFd> done)
      : direction_(direction),
        layout_(layout),
        bos_(bos),
        thread_(thread),
        reactor_(reactor),
        done_(std::move(done)) {}

  const char* name() const override { return "copy"; }

  Result<Submit> submit(Slot& slot) override {
    const int done = done_[slot.index].get();
    reactor_.poll_readable(slot.op(), done, std::chrono::minutes(10));
    thread_.run([this, &slot, done] {
      move(slot);
      (void)::eventfd_write(done, 1);
    });
    return Submit::Started;
  }

  Result<Progress> advance(Slot& slot, Op& /*op*/, std::int32_t result) override {
    if (result < 0) return make_error(-result, "copy");
    eventfd_t count = 0;
    (void)::eventfd_read(done_[slot.index].get(), &count);
    return Progress::Done;
  }

 private:
  void move(const Slot& slot) const {
    Piece piece;
    for (auto at = layout_.pieces(slot.chunk); at.next(piece);) {
      std::byte* const staged = &slot.buffer[piece.buffer_offset];
      if (piece.is_header()) {
        const std::uint64_t payload = layout_.payload_bytes();
        if (direction_ == Direction::Dump)
          std::memcpy(staged, reinterpret_cast<const std::byte*>(&payload) + piece.bo_offset, piece.length);
        continue;
      }
      std::byte* const bo = &bos_[layout_.bo_begin(piece.bo) - kHeaderBytes + piece.bo_offset];
      if (direction_ == Direction::Dump) {
        vamdgpu::dma_copy(staged, bo, piece.length);
      } else {
        restore(slot, piece, bo);
      }
    }
  }

  // Known zeros are filled, as by SDMA; the buffer's bytes there are undefined.
  void restore(const Slot& slot, const Piece& piece, std::byte* bo) const {
    const std::uint64_t end = piece.buffer_offset + piece.length;
    for (std::uint64_t at = piece.buffer_offset; at < end;) {
      const bool zero = slot.zero_units[at / kZeroUnitBytes];
      std::uint64_t stop = at;
      while (stop < end && slot.zero_units[stop / kZeroUnitBytes] == zero) {
        stop = std::min(end, align_down(stop, kZeroUnitBytes) + kZeroUnitBytes);
      }
      std::byte* const to = bo + (at - piece.buffer_offset);
      if (zero) {
        std::memset(to, 0, stop - at);
      } else {
        vamdgpu::dma_copy(to, &slot.buffer[at], stop - at);
      }
      at = stop;
    }
  }

  Direction direction_;
  const ImageLayout& layout_;
  std::span<std::byte> bos_;
  EngineThread& thread_;
  Reactor& reactor_;
  std::vector<UniqueFd> done_;  // by slot
};

class MemcpyEngine final : public CopyEngine {
 public:
  explicit MemcpyEngine(Contents contents)
      : CopyEngine(std::move(contents)), memory_(this->contents().total_bytes()) {
    if (!valid()) return;
    fill(memory_.bytes(), this->contents());
    digest_ = digest(memory_.bytes());
  }

  bool valid() const { return !memory_.bytes().empty(); }
  const char* name() const override { return "memcpy"; }

  Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& layout,
                                            StagingArena& /*arena*/, std::span<Slot> slots,
                                            Reactor& reactor) override {
    std::vector<UniqueFd> done;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      done.emplace_back(::eventfd(0, EFD_CLOEXEC));
      if (!done.back()) return make_error(errno, "eventfd");
    }
    return std::unique_ptr<Stage>(
        std::make_unique<MemcpyStage>(direction, layout, memory_.bytes(), thread_, reactor, std::move(done)));
  }

  Result<void> scribble() override {
    std::memset(memory_.bytes().data(), 0xa5, memory_.bytes().size());
    return {};
  }
  Result<void> change(std::span<const ContentRange> ranges, std::uint64_t seed) override {
    bench::change(memory_.bytes(), ranges, seed);
    digest_ = digest(memory_.bytes());
    return {};
  }
  Result<bool> intact() override { return digest(memory_.bytes()) == digest_; }
  std::span<std::byte> memory() override { return memory_.bytes(); }
  double dma_cpu_seconds() const override { return thread_.cpu_seconds(); }

 private:
  AnonymousMemory memory_;
  Sum128 digest_{};
  EngineThread thread_;
};

}  // namespace

Result<std::unique_ptr<CopyEngine>> make_memcpy_engine(Contents contents) {
  const std::uint64_t bytes = contents.total_bytes();
  try {
    auto engine = std::make_unique<MemcpyEngine>(std::move(contents));
    if (!engine->valid()) return make_error(ENOMEM, std::to_string(bytes) + " bytes of BOs in memory");
    return std::unique_ptr<CopyEngine>(std::move(engine));
  } catch (const std::system_error& error) {
    return make_error(error.code().value(), "a thread that copies");
  }
}

}  // namespace sluice::bench
