// SPDX-License-Identifier: MIT
#include "support/lane.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/units.h"

namespace sluice::test {
namespace {

StagingArena make_arena(std::uint64_t chunk_bytes, std::uint32_t depth) {
  auto arena = StagingArena::make(align_up(chunk_bytes, kBufferAlignment), depth, -1);
  if (!arena) {
    std::fprintf(stderr, "%s\n", arena.error().what.c_str());
    std::abort();
  }
  return std::move(*arena);
}

Result<std::unique_ptr<SlotWorkers>> workers_of(const LaneRun& run) {
  if (run.checksum_workers == 0) return std::unique_ptr<SlotWorkers>();
  return SlotWorkers::start("worker", run.checksum_workers,
                            static_cast<std::uint32_t>(run.memory.slots.size()));
}

}  // namespace

const char* name_of(ReactorKind kind) {
  return kind == ReactorKind::Uring ? "uring" : "threads";
}

std::string unavailable(ReactorKind kind) {
  if (kind == ReactorKind::Threads) return "";
  const auto probe = UringReactor::make(2);
  return probe ? "" : probe.error().what;
}

std::unique_ptr<Reactor> make_reactor_of(ReactorKind kind, unsigned entries, std::span<std::byte> arena) {
  if (kind == ReactorKind::Threads) return std::move(ThreadReactor::make(4, entries)).value();
  auto reactor = std::move(UringReactor::make(entries)).value();
  if (!arena.empty()) (void)reactor->register_buffer(arena);
  return reactor;
}

LaneMemory::LaneMemory(std::uint64_t chunk_bytes, std::uint32_t depth)
    : arena(make_arena(chunk_bytes, depth)), slots(depth) {
  for (std::uint32_t i = 0; i < depth; ++i) {
    slots[i].index = i;
    slots[i].buffer = arena.buffer(i).first(static_cast<std::size_t>(chunk_bytes));
  }
}

Result<PipelineStats> dump_to(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run) {
  SLUICE_TRY_ASSIGN(auto sink, FileSink::create(dir_fd, name, run.layout, run.reactor, run.file));
  MemoryCopy copy(Direction::Dump, run.layout, run.reactor, bos);
  SLUICE_TRY_ASSIGN(std::unique_ptr<SlotWorkers> workers, workers_of(run));
  ChecksumStage checksum(Direction::Dump, run.layout, run.reactor, run.tables(), ChecksumOptions{}, nullptr,
                         std::move(workers));
  const std::array<Stage*, 3> route{&copy, &checksum, sink.get()};
  Pipeline pipeline(run.layout, run.memory.slots, route, run.reactor);
  auto stats = pipeline.run(nullptr, [&pipeline] {
    pipeline.check_invariants();
    return false;
  });
  if (!stats) return stats;
  SLUICE_TRY(sink->commit());
  return stats;
}

Result<PipelineStats> restore_from(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run) {
  SLUICE_TRY_ASSIGN(auto source, FileSource::open(dir_fd, name, run.layout, run.reactor, run.file));
  MemoryCopy copy(Direction::Restore, run.layout, run.reactor, bos);
  SLUICE_TRY_ASSIGN(std::unique_ptr<SlotWorkers> workers, workers_of(run));
  ChecksumStage checksum(Direction::Restore, run.layout, run.reactor, run.tables(), ChecksumOptions{},
                         nullptr, std::move(workers));
  const std::array<Stage*, 3> route{source.get(), &checksum, &copy};
  Pipeline pipeline(run.layout, run.memory.slots, route, run.reactor);
  return pipeline.run(nullptr, [&pipeline] {
    pipeline.check_invariants();
    return false;
  });
}

}  // namespace sluice::test
