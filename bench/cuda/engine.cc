// SPDX-License-Identifier: MIT
// BOs in a GPU's own memory, copied by its DMA engines. The stage queues a chunk's copies in a stream,
// followed by a host function that writes the slot's eventfd. Like a fence of amdgpu, that is an fd that
// turns readable. A stream runs its host functions before it goes on, so there are several streams: one
// copies while another signals.
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "cuda/driver.h"
#include "engine/copy_engine.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kStreams = 4;
constexpr auto kLongestCopy = std::chrono::minutes(1);

// The contents of BOs of any size: kBytes bytes of fill(), repeated over the payload. Each repetition has
// another word at the begin of every page that is not zero, and another after each change. Made in a few
// milliseconds, where needed.
class Pattern {
 public:
  static constexpr std::uint64_t kBytes = 32 * kMiB;

  static Result<Pattern> make(const Contents& contents) {
    SLUICE_TRY_ASSIGN(StagingArena arena, StagingArena::make(kBytes, 1, -1));
    SLUICE_TRY_ASSIGN(cuda::Registration registration, cuda::Registration::make(arena.bytes()));
    Contents piece = contents;
    piece.bo_bytes = {kBytes};
    fill(arena.bytes(), piece);
    return Pattern(std::move(arena), std::move(registration));
  }

  // The payload's bytes [position, position + length) after that many changes. REQUIRES: they are in one
  // repetition.
  std::span<std::byte> bytes(std::uint64_t position, std::uint64_t length, std::uint64_t changes) {
    const std::uint64_t begin = position % kBytes;
    const std::uint64_t other = position / kBytes ^ changes << 32;
    for (std::size_t page = begin / kPageBytes; page * kPageBytes < begin + length; ++page) {
      if (first_words_[page] == 0) continue;
      const std::uint64_t word = first_words_[page] ^ other;
      std::memcpy(&arena_.bytes()[page * kPageBytes], &word, sizeof word);
    }
    return arena_.bytes().subspan(begin, length);
  }

 private:
  static constexpr std::uint64_t kPageBytes = 4 * kKiB;  // not a hardware page

  Pattern(StagingArena arena, cuda::Registration registration)
      : arena_(std::move(arena)), registration_(std::move(registration)), first_words_(kBytes / kPageBytes) {
    for (std::size_t page = 0; page < first_words_.size(); ++page)
      std::memcpy(&first_words_[page], &arena_.bytes()[page * kPageBytes], sizeof first_words_[page]);
  }

  StagingArena arena_;
  cuda::Registration registration_;
  std::vector<std::uint64_t> first_words_;  // of every page
};

void tell(void* done) {
  (void)::eventfd_write(*static_cast<const int*>(done), 1);
}

class CudaStage final : public Stage {
 public:
  static Result<std::unique_ptr<Stage>> make(Direction direction, const ImageLayout& layout,
                                             std::span<const cuda::DeviceMemory> bos, StagingArena& arena,
                                             std::size_t slots, Reactor& reactor) {
    SLUICE_TRY_ASSIGN(cuda::Registration registration, cuda::Registration::make(arena.bytes()));
    std::unique_ptr<CudaStage> stage(new CudaStage(direction, layout, bos, reactor, std::move(registration)));
    for (std::size_t i = 0; i < std::min(kStreams, slots); ++i) {
      SLUICE_TRY_ASSIGN(cuda::Stream stream, cuda::Stream::make());
      stage->streams_.push_back(std::move(stream));
    }
    for (std::size_t i = 0; i < slots; ++i) {
      stage->done_.emplace_back(::eventfd(0, EFD_CLOEXEC));
      if (!stage->done_.back()) return make_error(errno, "eventfd");
      stage->done_fds_.push_back(stage->done_.back().get());
    }
    return std::unique_ptr<Stage>(std::move(stage));
  }

  const char* name() const override { return "copy"; }

  Result<Submit> submit(Slot& slot) override {
    const cuda::Stream& stream = streams_[slot.index % streams_.size()];
    Result<void> enqueued = enqueue(slot, stream.get());
    if (enqueued) {
      enqueued = cuda::check(cuda::driver().launch_host_function(stream.get(), tell, &done_fds_[slot.index]),
                             "cuLaunchHostFunc");
    }
    if (!enqueued) {
      (void)stream.synchronize();  // nothing of the slot is in flight any more
      return std::move(enqueued).error();
    }
    reactor_.poll_readable(slot.op(), done_fds_[slot.index], kLongestCopy);
    return Submit::Started;
  }

  Result<Progress> advance(Slot& slot, Op& /*op*/, std::int32_t result) override {
    if (result < 0) return make_error(-result, "copy by the GPU");
    eventfd_t count = 0;
    (void)::eventfd_read(done_fds_[slot.index], &count);
    return Progress::Done;
  }

 private:
  CudaStage(Direction direction, const ImageLayout& layout, std::span<const cuda::DeviceMemory> bos,
            Reactor& reactor, cuda::Registration registration)
      : direction_(direction),
        layout_(layout),
        bos_(bos),
        reactor_(reactor),
        registration_(std::move(registration)) {}

  Result<void> enqueue(Slot& slot, CUstream_st* stream) const {
    Piece piece;
    for (auto at = layout_.pieces(slot.chunk); at.next(piece);) {
      std::byte* const staged = &slot.buffer[piece.buffer_offset];
      if (piece.is_header()) {
        const std::uint64_t payload = layout_.payload_bytes();
        if (direction_ == Direction::Dump)
          std::memcpy(staged, reinterpret_cast<const std::byte*>(&payload) + piece.bo_offset, piece.length);
        continue;
      }
      const unsigned long long bo = bos_[piece.bo].address() + piece.bo_offset;
      if (direction_ == Direction::Dump) {
        SLUICE_TRY(
            cuda::check(cuda::driver().copy_to_host(staged, bo, piece.length, stream), "cuMemcpyDtoHAsync"));
      } else {
        SLUICE_TRY(restore(slot, piece, bo, stream));
      }
    }
    return {};
  }

  // The GPU fills known zeros; the buffer's bytes there are undefined.
  static Result<void> restore(const Slot& slot, const Piece& piece, unsigned long long bo,
                              CUstream_st* stream) {
    const std::uint64_t end = piece.buffer_offset + piece.length;
    for (std::uint64_t at = piece.buffer_offset; at < end;) {
      const bool zero = slot.zero_units[at / kZeroUnitBytes];
      std::uint64_t stop = at;
      while (stop < end && slot.zero_units[stop / kZeroUnitBytes] == zero) {
        stop = std::min(end, align_down(stop, kZeroUnitBytes) + kZeroUnitBytes);
      }
      const unsigned long long to = bo + (at - piece.buffer_offset);
      if (zero) {
        SLUICE_TRY(cuda::check(cuda::driver().set_bytes(to, 0, stop - at, stream), "cuMemsetD8Async"));
      } else {
        SLUICE_TRY(cuda::check(cuda::driver().copy_to_device(to, &slot.buffer[at], stop - at, stream),
                               "cuMemcpyHtoDAsync"));
      }
      at = stop;
    }
    return {};
  }

  Direction direction_;
  const ImageLayout& layout_;
  std::span<const cuda::DeviceMemory> bos_;
  Reactor& reactor_;
  cuda::Registration registration_;
  std::vector<UniqueFd> done_;         // by slot
  std::vector<int> done_fds_;          // the same, for the host function
  std::vector<cuda::Stream> streams_;  // last: they end before what they use
};

class CudaEngine final : public CopyEngine {
 public:
  CudaEngine(Contents contents, cuda::Gpu gpu) : CopyEngine(std::move(contents)), gpu_(std::move(gpu)) {
    numa_node_ = gpu_.numa_node();
  }
  ~CudaEngine() override {
    (void)gpu_.use();  // frees the BOs in any thread
  }

  // The BOs, with their contents.
  Result<void> allocate() {
    changes_.assign(div_ceil(contents().total_bytes(), kChangeBytes), 0);
    for (const std::uint64_t bytes : contents().bo_bytes) {
      SLUICE_TRY_ASSIGN(cuda::DeviceMemory bo, cuda::DeviceMemory::make(std::max<std::uint64_t>(bytes, 1)));
      bos_.push_back(std::move(bo));
    }
    const ContentRange all{0, contents().total_bytes()};
    return write({&all, 1});
  }

  const char* name() const override { return "cuda"; }

  Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& layout,
                                            StagingArena& arena, std::span<Slot> slots,
                                            Reactor& reactor) override {
    SLUICE_TRY(gpu_.use());
    return CudaStage::make(direction, layout, bos_, arena, slots.size(), reactor);
  }

  Result<void> scribble() override {
    SLUICE_TRY(gpu_.use());
    SLUICE_TRY_ASSIGN(const cuda::Stream stream, cuda::Stream::make());
    for (std::size_t i = 0; i < bos_.size(); ++i) {
      if (contents().bo_bytes[i] == 0) continue;
      SLUICE_TRY(
          cuda::check(cuda::driver().set_bytes(bos_[i].address(), 0xa5, contents().bo_bytes[i], stream.get()),
                      "cuMemsetD8Async"));
    }
    return stream.synchronize();
  }

  Result<void> change(std::span<const ContentRange> ranges, std::uint64_t seed) override {
    SLUICE_TRY(gpu_.use());
    for (const ContentRange& range : ranges) {
      for (std::uint64_t at = range.begin; at < range.begin + range.bytes; at += kChangeBytes)
        changes_[at / kChangeBytes] ^= static_cast<std::uint32_t>(seed * 2 + 1);
    }
    return write(ranges);
  }
  Result<bool> intact() override {
    SLUICE_TRY(gpu_.use());
    SLUICE_TRY_ASSIGN(Pattern pattern, Pattern::make(contents()));
    SLUICE_TRY_ASSIGN(const StagingArena staged, StagingArena::make(Pattern::kBytes, 1, numa_node()));
    SLUICE_TRY_ASSIGN(const cuda::Registration registration, cuda::Registration::make(staged.bytes()));
    SLUICE_TRY_ASSIGN(const cuda::Stream stream, cuda::Stream::make());
    bool same = true;
    const auto compare = [&](unsigned long long bo, std::span<std::byte> expected) -> Result<void> {
      SLUICE_TRY(
          cuda::check(cuda::driver().copy_to_host(staged.bytes().data(), bo, expected.size(), stream.get()),
                      "cuMemcpyDtoHAsync"));
      SLUICE_TRY(stream.synchronize());
      same = same && std::memcmp(staged.bytes().data(), expected.data(), expected.size()) == 0;
      return {};
    };
    SLUICE_TRY(each_part(pattern, {0, contents().total_bytes()}, compare));
    return same;
  }

 private:
  Result<void> write(std::span<const ContentRange> ranges) const {
    SLUICE_TRY_ASSIGN(Pattern pattern, Pattern::make(contents()));
    SLUICE_TRY_ASSIGN(const cuda::Stream stream, cuda::Stream::make());
    const auto put = [&](unsigned long long bo, std::span<std::byte> expected) -> Result<void> {
      SLUICE_TRY(
          cuda::check(cuda::driver().copy_to_device(bo, expected.data(), expected.size(), stream.get()),
                      "cuMemcpyHtoDAsync"));
      return stream.synchronize();
    };
    for (const ContentRange& range : ranges) SLUICE_TRY(each_part(pattern, range, put));
    return {};
  }

  // Calls `use` with every part of a range and its expected bytes; the pattern covers the BOs back to back. A
  // part is within one BO and one repetition, with contents that have changed equally often.
  template <class Use>
  Result<void> each_part(Pattern& pattern, const ContentRange& range, Use use) const {
    std::uint64_t bo_begin = 0;
    for (std::size_t i = 0; i < bos_.size(); ++i) {
      const std::uint64_t bo_end = bo_begin + contents().bo_bytes[i];
      const std::uint64_t range_end = std::min(range.begin + range.bytes, bo_end);
      for (std::uint64_t at = std::max(range.begin, bo_begin); at < range_end;) {
        const std::uint32_t changes = changes_[at / kChangeBytes];
        const std::uint64_t skipped = contents().skipped_bytes;
        const std::uint64_t most =
            std::min(range_end, align_down(at + skipped, Pattern::kBytes) + Pattern::kBytes - skipped);
        std::uint64_t end = at;
        while (end < most && changes_[end / kChangeBytes] == changes)
          end = std::min(most, align_down(end, kChangeBytes) + kChangeBytes);
        SLUICE_TRY(use(bos_[i].address() + (at - bo_begin), pattern.bytes(at + skipped, end - at, changes)));
        at = end;
      }
      bo_begin = bo_end;
    }
    return {};
  }

  cuda::Gpu gpu_;
  std::vector<cuda::DeviceMemory> bos_;
  std::vector<std::uint32_t> changes_;  // by kChangeBytes of the payload: the number of its last change
};

}  // namespace

Result<std::unique_ptr<CopyEngine>> make_cuda_engine(Contents contents, int device) {
  SLUICE_TRY(cuda::load());
  SLUICE_TRY_ASSIGN(cuda::Gpu gpu, cuda::Gpu::open(device));
  auto engine = std::make_unique<CudaEngine>(std::move(contents), std::move(gpu));
  SLUICE_TRY(engine->allocate());
  return std::unique_ptr<CopyEngine>(std::move(engine));
}

}  // namespace sluice::bench
