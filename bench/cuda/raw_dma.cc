// SPDX-License-Identifier: MIT
#include "cuda/raw_dma.h"

#include <algorithm>
#include <optional>

#include "base/units.h"
#include "cuda/driver.h"
#include "engine/contents.h"
#include "measure/at_once.h"
#include "measure/clock.h"
#include "pipeline/arena.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kDeviceBytes = kGiB;  // copied from, or to, repeatedly; larger than any GPU cache
constexpr std::size_t kRingStreams = 4;

}  // namespace

class RawDma::Lane {
 public:
  static Result<std::unique_ptr<Lane>> make(const RawDmaPlan& plan, int ordinal) {
    SLUICE_TRY_ASSIGN(cuda::Gpu gpu, cuda::Gpu::open(ordinal));
    SLUICE_TRY_ASSIGN(cuda::DeviceMemory memory, cuda::DeviceMemory::make(kDeviceBytes + plan.skew));
    std::unique_ptr<Lane> lane(new Lane(plan, std::move(gpu), std::move(memory)));
    for (std::size_t i = 0; i < kRingStreams; ++i) {
      SLUICE_TRY_ASSIGN(cuda::Stream stream, cuda::Stream::make());
      lane->streams_.push_back(std::move(stream));
    }
    for (std::uint32_t i = 0; i < plan.depth; ++i) {
      SLUICE_TRY_ASSIGN(cuda::Event event, cuda::Event::make());
      lane->copied_.push_back(std::move(event));
    }
    return lane;
  }
  ~Lane() { (void)gpu_.use(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // A new ring. Called by the thread that then runs.
  Result<void> prepare() {
    SLUICE_TRY(gpu_.use());
    registration_.reset();
    ring_.reset();
    SLUICE_TRY_ASSIGN(ring_, StagingArena::make(plan_.block_bytes, plan_.depth, gpu_.numa_node()));
    fill(ring_->bytes(), Contents{{ring_->bytes().size()}});
    SLUICE_TRY_ASSIGN(cuda::Registration registration, cuda::Registration::make(ring_->bytes()));
    registration_.emplace(std::move(registration));
    return {};
  }

  std::uint64_t bytes() const { return blocks() * plan_.block_bytes; }
  Result<void> run(Direction direction) { return copy(direction, blocks()); }
  // Each block of the ring, once.
  Result<void> fill_ring() { return copy(Direction::Dump, plan_.depth); }

  std::span<const std::byte> ring() const { return ring_->bytes(); }

 private:
  std::uint64_t blocks() const { return plan_.bytes / plan_.block_bytes; }

  // A block of the ring is reused when its copy is done.
  Result<void> copy(Direction direction, std::uint64_t blocks) {
    SLUICE_TRY(gpu_.use());
    for (std::uint64_t block = 0; block < blocks; ++block) {
      const auto number = static_cast<std::uint32_t>(block % plan_.depth);
      CUstream_st* const stream = streams_[number % kRingStreams].get();
      const cuda::Event& copied = copied_[number];
      if (block >= plan_.depth) SLUICE_TRY(wait(copied));
      const unsigned long long device =
          memory_.address() + plan_.skew + block * plan_.block_bytes % kDeviceBytes;
      std::byte* const host = ring_->buffer(number).data();
      SLUICE_TRY(cuda::check(direction == Direction::Dump
                                 ? cuda::driver().copy_to_host(host, device, plan_.block_bytes, stream)
                                 : cuda::driver().copy_to_device(device, host, plan_.block_bytes, stream),
                             "a bare copy"));
      SLUICE_TRY(cuda::check(cuda::driver().event_record(copied.get(), stream), "cuEventRecord"));
    }
    for (std::uint32_t number = 0; number < std::min<std::uint64_t>(plan_.depth, blocks); ++number)
      SLUICE_TRY(wait(copied_[number]));
    return {};
  }

  Lane(const RawDmaPlan& plan, cuda::Gpu gpu, cuda::DeviceMemory memory)
      : plan_(plan), gpu_(std::move(gpu)), memory_(std::move(memory)) {}

  static Result<void> wait(const cuda::Event& event) {
    return cuda::check(cuda::driver().event_synchronize(event.get()), "cuEventSynchronize");
  }

  const RawDmaPlan& plan_;
  cuda::Gpu gpu_;
  std::optional<StagingArena> ring_;
  std::optional<cuda::Registration> registration_;
  cuda::DeviceMemory memory_;
  std::vector<cuda::Event> copied_;  // by block of the ring
  std::vector<cuda::Stream> streams_;
};

Result<std::unique_ptr<RawDma>> RawDma::make(RawDmaPlan plan) {
  SLUICE_TRY(cuda::load());
  std::unique_ptr<RawDma> dma(new RawDma(plan));
  for (int gpu = 0; gpu < plan.gpus; ++gpu) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Lane> lane, Lane::make(dma->plan_, gpu));
    dma->lanes_.push_back(std::move(lane));
  }
  return dma;
}

RawDma::RawDma(RawDmaPlan plan) : plan_(plan) {}
RawDma::~RawDma() = default;

Result<double> RawDma::sum_rate() {
  SLUICE_TRY(lanes_.front()->prepare());
  std::uint8_t seen = 0;
  double seconds = 0;
  std::uint64_t bytes = 0;
  while (bytes < plan_.bytes / 8) {
    SLUICE_TRY(lanes_.front()->fill_ring());
    const std::span<const std::byte> ring = lanes_.front()->ring();
    const auto start = Clock::now();
    for (std::uint64_t at = 0; at < ring.size(); at += kSumBlockBytes)
      seen = seen ^ sum_of(ring.subspan(at, std::min(kSumBlockBytes, ring.size() - at)))[0];
    seconds += seconds_since(start);
    bytes += ring.size();
  }
  const volatile std::uint8_t used = seen;
  (void)used;
  return static_cast<double>(bytes) / seconds / 1e9;
}

Result<Sample> RawDma::run(Direction direction) {
  return run_at_once(
      lanes_, [](Lane& lane) { return lane.prepare(); },
      [direction](Lane& lane) { return lane.run(direction); });
}

}  // namespace sluice::bench
