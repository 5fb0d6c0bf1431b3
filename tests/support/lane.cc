// SPDX-License-Identifier: MIT
#include "support/lane.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/units.h"
#include "pipeline/store/file_set.h"

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

Result<std::unique_ptr<Stage>> checksum_of(const LaneRun& run, Direction direction) {
  return make_checksum(run.lane, direction, run.tables(), ChecksumOptions{}, nullptr, run.checksum_workers);
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

Result<std::unique_ptr<Reactor>> TestWorld::make_reactor(unsigned entries, std::span<std::byte> arena,
                                                         std::string& /*note*/) {
  std::unique_ptr<Reactor> reactor = make_reactor_of(kind_, entries, arena);
  return wrap_ ? wrap_(std::move(reactor)) : std::move(reactor);
}

std::unique_ptr<Lane> make_lane(const ImageLayout& layout, std::uint32_t depth, LaneWorld& world,
                                std::uint32_t cursors) {
  const LaneOptions options{.staging_bytes = depth * layout.chunk_bytes(), .cursors = cursors};
  return std::move(Lane::make(layout, options, world)).value();
}

Result<PipelineStats> dump_to(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run) {
  Lane& lane = run.lane;
  FileSetSink sink(dir_fd, {name}, lane.layout(), lane.reactor(), run.file);
  MemoryCopy copy(Direction::Dump, lane.layout(), lane.reactor(), bos);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Stage> checksum, checksum_of(run, Direction::Dump));
  SLUICE_TRY_ASSIGN(const PipelineStats stats, lane.run(Route{&copy, checksum.get(), &sink}));
  SLUICE_TRY(sink.commit());
  return stats;
}

Result<PipelineStats> restore_from(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run) {
  Lane& lane = run.lane;
  SLUICE_TRY_ASSIGN(const auto source,
                    FileSetSource::open(dir_fd, {name}, lane.layout(), lane.reactor(), run.file));
  MemoryCopy copy(Direction::Restore, lane.layout(), lane.reactor(), bos);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Stage> checksum, checksum_of(run, Direction::Restore));
  return lane.run(Route{&copy, checksum.get(), source.get()}.towards(Direction::Restore));
}

}  // namespace sluice::test
