// SPDX-License-Identifier: MIT
// The real loop, checksum stage, file stages and pipe stage over the simulated reactor and copy engine: one
// seed is one run (support/seeds.h).
//
// Checked in every run: the invariants before every wait; each byte of the file written exactly once, bytes
// of holes never (direct I/O may write the bytes before a resumed boundary twice); the file equals the serial
// writer's; what is restored equals what was dumped; sums equal an independent XXH3-128; exactly the injected
// fault is reported, and then no file is left; a corrupt chunk never reaches the copy stage; nothing stays in
// flight.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "pipeline/arena.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/file_set.h"
#include "pipeline/store/pipe_store.h"
#include "sim/sim_reactor.h"
#include "sim/sim_stages.h"
#include "support/seeds.h"
#include "support/temp_dir.h"

namespace sluice::sim {
namespace {

using test::BoList;
using test::Bytes;
using test::Rng;

constexpr std::uint32_t kMaxSlots = 6;
constexpr std::uint64_t kMaxChunkBytes = kMiB;
constexpr unsigned kScatteredPercent = 40;  // of restores from files: these lie in several
const std::string kName = "pages";

// What all runs share: memory, and a directory in memory where there is one.
struct World {
  World() : dir(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "") {}
  test::TempDir dir;
  StagingArena arena = std::move(StagingArena::make(kMaxChunkBytes, kMaxSlots, -1)).value();
};

enum class Trouble { None, Transfer, Copy, Ring, Cancel, Corruption, Peer };

// Everything a seed decides.
struct Case {
  Case(std::uint64_t seed, Direction direction);

  Rng rng;
  Direction direction;
  std::uint64_t chunk_bytes = 16;
  std::uint32_t depth = 1;
  BoList bos;
  Bytes file;  // as it should be
  bool streamed = false;
  StreamPeer::Manner manner = StreamPeer::Manner::Sound;
  std::uint64_t manner_at = 0;  // file offset
  FileOptions options;
  std::uint64_t block_bytes = 0;  // 0: no table
  std::uint64_t latency_ns_max = 1;
  Trouble trouble = Trouble::None;
  Faults faults;
  SimCopyOptions copy;
  std::uint64_t cancel_at = UINT64_MAX;
  std::uint64_t corrupt_at = 0;  // file offset
};

// Contents with stretches of zeros, at unit boundaries of the file and elsewhere.
void fill(Case& one, std::uint64_t payload_bytes) {
  Rng& rng = one.rng;
  Bytes payload(payload_bytes);
  rng.fill(payload);
  for (std::uint64_t zeros = rng.between(0, 4); zeros > 0 && payload_bytes > 0; --zeros) {
    std::uint64_t begin = rng.between(0, payload_bytes - 1);
    std::uint64_t end = rng.between(begin, payload_bytes);
    if (rng.percent(50)) {
      begin = align_down(begin, kZeroUnitBytes);
      end = std::min(align_up(end, kZeroUnitBytes), payload_bytes);
    }
    std::fill(payload.begin() + static_cast<long>(begin), payload.begin() + static_cast<long>(end),
              std::byte{0});
  }
  std::uint64_t at = 0;
  while (at < payload_bytes || rng.percent(30)) {
    const std::uint64_t left = payload_bytes - at;
    const std::uint64_t bytes =
        one.bos.size() == 11 ? left : rng.between(0, rng.percent(20) ? left : left / 2 + 1);
    const std::uint64_t taken = std::min(bytes, left);
    one.bos.emplace_back(payload.begin() + static_cast<long>(at),
                         payload.begin() + static_cast<long>(at + taken));
    at += taken;
    if (one.bos.size() == 12) break;
  }
  one.file = test::serial_file(one.bos);
}

Case::Case(std::uint64_t seed, Direction way) : rng(seed), direction(way) {
  constexpr std::array<std::uint64_t, 8> kChunks{16, 32, 128, 4096, 4096, 8192, 64 * kKiB, 256 * kKiB};
  chunk_bytes = rng.percent(3) ? kMaxChunkBytes : kChunks[rng.between(0, kChunks.size() - 1)];
  depth = static_cast<std::uint32_t>(rng.between(1, kMaxSlots));
  const std::uint64_t most_chunks = chunk_bytes <= 8192 ? 20 : chunk_bytes < kMaxChunkBytes ? 6 : 3;
  fill(*this, rng.percent(2) ? 0 : rng.between(0, most_chunks * chunk_bytes));
  const std::uint64_t chunks = div_ceil(file.size(), chunk_bytes);

  streamed = rng.percent(30);
  constexpr std::array<IoMode, 4> kModes{IoMode::Auto, IoMode::Uncached, IoMode::Buffered, IoMode::Buffered};
  options.io_mode = kModes[rng.between(0, kModes.size() - 1)];
  options.holes = rng.percent(70);
  options.sync = rng.percent(10);
  options.most_on_disk = static_cast<std::uint32_t>(rng.between(1, depth));
  if (rng.percent(75)) block_bytes = chunk_bytes >> rng.between(0, 3);
  latency_ns_max = rng.percent(20) ? 1 : rng.between(2, 1000);
  faults.short_percent = rng.percent(50) ? 0 : static_cast<unsigned>(rng.between(1, 60));
  faults.stall_percent = rng.percent(60) ? 0 : static_cast<unsigned>(rng.between(1, 30));
  copy.depth = static_cast<int>(rng.between(1, 4));
  copy.latency_ns_max = rng.percent(20) ? 1 : rng.between(2, 1000);

  if (rng.percent(50)) return;
  switch (rng.between(0, 5)) {
    case 0:
      trouble = Trouble::Transfer;
      faults.fail_op = rng.between(0, 2 * chunks);
      faults.fail_errno = rng.percent(50) ? ENOSPC : EIO;
      break;
    case 1:
      trouble = Trouble::Copy;
      copy.fail_op = rng.between(0, 3 * chunks);
      break;
    case 2:
      trouble = Trouble::Ring;
      faults.break_wait = rng.between(0, 3 * chunks);
      break;
    case 3:
      trouble = Trouble::Cancel;
      cancel_at = rng.between(0, 3 * chunks);
      break;
    case 4:
      if (!streamed) break;
      trouble = Trouble::Peer;
      manner_at = rng.between(0, file.size() - 1);
      manner = direction == Direction::Dump ? StreamPeer::Manner::Dies
               : rng.percent(50)            ? StreamPeer::Manner::EndsEarly
                                            : StreamPeer::Manner::HasMore;
      break;
    default:
      if (direction == Direction::Dump || block_bytes == 0) break;
      trouble = Trouble::Corruption;
      corrupt_at = rng.between(0, file.size() - 1);
      copy.bad_chunk = corrupt_at / chunk_bytes;
  }
}

// The units of the file that hold nothing but zeros; a unit does not reach across a chunk.
std::vector<bool> zero_bytes_of(const Case& one) {
  std::vector<bool> zero(one.file.size());
  for (std::uint64_t begin = 0; begin < one.file.size();) {
    const std::uint64_t chunk_end = align_down(begin, one.chunk_bytes) + one.chunk_bytes;
    const std::uint64_t end =
        std::min({begin + kZeroUnitBytes, chunk_end, static_cast<std::uint64_t>(one.file.size())});
    const bool all =
        std::all_of(one.file.begin() + static_cast<long>(begin), one.file.begin() + static_cast<long>(end),
                    [](std::byte b) { return b == std::byte{0}; });
    std::fill(zero.begin() + static_cast<long>(begin), zero.begin() + static_cast<long>(end), all);
    begin = end;
  }
  return zero;
}

// The file for a restore, with holes where the dump would have left them.
void write_image(const World& world, const Case& one) {
  const UniqueFd fd(::openat(world.dir.fd(), kName.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(one.file.size())), 0);
  const std::vector<bool> zero = zero_bytes_of(one);
  for (std::size_t begin = 0; begin < one.file.size();) {
    std::size_t end = begin + 1;
    while (end < one.file.size() && zero[end] == zero[begin]) ++end;
    if (!zero[begin] || !one.options.holes) {
      ASSERT_EQ(::pwrite(fd.get(), &one.file[begin], end - begin, static_cast<off_t>(begin)),
                static_cast<ssize_t>(end - begin));
    }
    begin = end;
  }
  if (one.trouble == Trouble::Corruption) {
    const std::byte flipped = one.file[one.corrupt_at] ^ std::byte{0x40};
    ASSERT_EQ(::pwrite(fd.get(), &flipped, 1, static_cast<off_t>(one.corrupt_at)), 1);
  }
}

// Lays the bytes of the file into several, as those of a dump with a parent lie.
ExtentMap scatter(const World& world, const Case& one, Rng rng) {
  constexpr std::uint64_t kPage = 4 * kKiB;
  constexpr std::byte kGarbage{0xa5};
  ExtentMap map;
  std::array<Bytes, 3> files = {Bytes(one.file.size(), kGarbage), {}, {}};
  for (std::uint64_t begin = 0; begin < one.file.size();) {
    std::uint64_t end = begin + rng.between(1, one.file.size() / 4 + 1);
    if (rng.percent(50)) end = align_up(end, kPage);
    end = std::min<std::uint64_t>(end, one.file.size());
    const auto bytes = std::span(one.file).subspan(begin, end - begin);
    const bool is_sound =
        one.trouble != Trouble::Corruption || one.corrupt_at < begin || one.corrupt_at >= end;
    const bool all_zero =
        std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
    if (all_zero && is_sound && rng.percent(50)) {
      map.extents.push_back({begin, end, Extent::kZeros, 0});
    } else {
      const auto number = static_cast<std::uint32_t>(rng.between(0, files.size() - 1));
      Bytes& file = files[number];
      std::uint64_t at = begin;  // in the dump's own file, else anywhere, half of them where blocks fit
      if (number != 0) {
        at = rng.percent(50) ? align_up(file.size(), kPage) + begin % kPage
                             : file.size() + rng.between(0, kPage);
        file.resize(at + bytes.size(), kGarbage);
      }
      std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<long>(at));
      if (!is_sound) file[at + (one.corrupt_at - begin)] ^= std::byte{0x40};
      map.extents.push_back({begin, end, number, at});
    }
    begin = end;
  }
  for (const Bytes& file : files) {
    const std::string name = kName + (map.files.empty() ? "" : std::to_string(map.files.size()));
    world.dir.write(name, file);
    map.files.push_back({world.dir.fd(), name, file.size(), name, false});
  }
  return map;
}

// The one errno the run may fail with; 0: it must succeed.
int expected_errno(const Case& one, const SimReactor& reactor, const SimCopy& copy, bool cancelled) {
  if (reactor.broke()) return EIO;
  if (reactor.fault_fired()) return one.faults.fail_errno;
  if (copy.fault_fired()) return EREMOTEIO;
  if (cancelled) return ECANCELED;
  if (one.trouble == Trouble::Peer && one.direction == Direction::Restore)
    return one.manner == StreamPeer::Manner::EndsEarly ? ENODATA : EBADMSG;
  return one.trouble == Trouble::Corruption ? EBADMSG : 0;
}

struct Totals {
  std::uint64_t runs = 0;
  std::uint64_t failed_as_told = 0;
  std::uint64_t steps = 0;
};

void run_seed(World& world, std::uint64_t seed, Direction direction, Totals& totals) {
  test::announce_seed(seed);
  Case one(seed, direction);
  const ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(one.bos), one.chunk_bytes)).value();
  ASSERT_EQ(layout.file_bytes(), one.file.size());

  std::vector<Slot> slots(one.depth);
  for (std::uint32_t i = 0; i < one.depth; ++i) {
    slots[i].index = i;
    slots[i].buffer = world.arena.buffer(i).first(one.chunk_bytes);
  }
  BoList target;  // of a restore: full of garbage
  for (const Bytes& bo : one.bos) target.emplace_back(bo.size(), std::byte{0x5a});
  SumTable table;
  if (one.block_bytes > 0) {
    table = direction == Direction::Dump ? unit_tables(layout, one.block_bytes).front()
                                         : test::serial_sums(one.bos, one.block_bytes);
  }

  SimReactor reactor(Rng(one.rng.next()), one.latency_ns_max, one.faults);
  SimCopy copy(direction, layout, reactor, direction == Direction::Dump ? one.bos : target,
               Rng(one.rng.next()), one.copy);
  ChecksumStage checksum(direction, layout, reactor, {&table, one.block_bytes > 0 ? 1U : 0U},
                         ChecksumOptions{}, nullptr);
  std::unique_ptr<FileSetSink> sink;
  std::unique_ptr<Stage> source;
  Bytes streamed;
  StreamPeer peer(direction, streamed, Rng(one.rng.next()), one.manner, one.manner_at);
  std::unique_ptr<PipeStore> pipe;
  const std::vector<std::string> names{kName};
  std::vector<Stage*> route;
  if (direction == Direction::Dump) {
    if (!one.streamed) {
      sink = std::make_unique<FileSetSink>(world.dir.fd(), names, layout, reactor, one.options);
    }
  } else if (!one.streamed) {
    Rng scattering(~seed);
    if (scattering.percent(kScatteredPercent)) {
      std::vector<ExtentMap> maps = {scatter(world, one, scattering)};
      source = std::make_unique<ExtentSource>(std::move(maps), layout, reactor, one.options);
    } else {
      ASSERT_NO_FATAL_FAILURE(write_image(world, one));
      source = std::move(FileSetSource::open(world.dir.fd(), names, layout, reactor, one.options)).value();
    }
  } else {
    streamed = one.file;
    if (one.trouble == Trouble::Corruption) streamed[one.corrupt_at] ^= std::byte{0x40};
  }
  if (one.streamed) {
    pipe = std::make_unique<PipeStore>(
        direction, [&peer](const std::string&) { return peer.open(); }, names, layout, reactor);
  }
  Stage* const store = sink     ? static_cast<Stage*>(sink.get())
                       : source ? source.get()
                                : static_cast<Stage*>(pipe.get());
  route = {&copy, &checksum, store};
  if (direction == Direction::Restore) std::reverse(route.begin(), route.end());

  // Pipes and sources want the order of the file.
  const auto cursors = sink ? static_cast<std::uint32_t>(Rng(seed).between(1, 8)) : 1;
  Pipeline pipeline(layout, slots, route, reactor, cursors);
  reactor.on_step = [&pipeline, &peer] {
    pipeline.check_invariants();
    peer.step();
  };
  std::uint64_t asked = 0;
  bool cancelled = false;
  const auto stats = pipeline.run(nullptr, [&] { return cancelled = cancelled || asked++ == one.cancel_at; });

  ++totals.runs;
  totals.steps += reactor.steps();
  int expected = expected_errno(one, reactor, copy, cancelled);
  // The peer's death is seen by whoever writes after it: nobody, when all is in the pipe.
  if (one.manner == StreamPeer::Manner::Dies && !stats.ok()) expected = EPIPE;
  ASSERT_EQ(stats.ok() ? 0 : stats.error().err, expected) << (stats.ok() ? "" : stats.error().what);
  if (!reactor.broke()) {
    ASSERT_EQ(reactor.in_flight(), 0U);
    ASSERT_EQ(copy.running(), 0);
  }
  if (expected != 0) {
    ++totals.failed_as_told;
    sink.reset();
    if (direction == Direction::Dump) {
      ASSERT_TRUE(world.dir.names().empty());
    }
    return;
  }

  ASSERT_EQ(stats->chunks, layout.chunk_count());
  ASSERT_EQ(stats->bytes, layout.file_bytes());
  if (one.block_bytes > 0) {
    ASSERT_EQ(table.sums, test::serial_sums(one.bos, one.block_bytes).sums);
  }
  if (direction == Direction::Restore) {
    ASSERT_EQ(target, one.bos);
    return;
  }
  if (one.streamed) {
    pipe.reset();
    peer.drain();
    if (one.manner != StreamPeer::Manner::Dies) {
      ASSERT_EQ(streamed, one.file);
    }
    return;
  }
  const bool direct = sink->direct();
  ASSERT_TRUE(sink->commit().ok());
  ASSERT_EQ(world.dir.names(), std::vector<std::string>{kName});
  ASSERT_EQ(world.dir.read(kName), one.file);
  const std::vector<bool> zero = zero_bytes_of(one);
  std::vector<std::uint8_t> written = reactor.written();
  written.resize(one.file.size());
  for (std::size_t at = 0; at < one.file.size(); ++at) {
    const bool skipped = one.options.holes && zero[at];
    ASSERT_TRUE(skipped  ? written[at] == 0
                : direct ? written[at] >= 1
                         : written[at] == 1)
        << "byte " << at << " was written " << unsigned{written[at]} << " times";
  }
  ASSERT_EQ(::unlinkat(world.dir.fd(), kName.c_str(), 0), 0);
}

void run_all(Direction direction) {
  (void)::signal(SIGPIPE, SIG_IGN);
  World world;
  Totals totals;
  const test::Seeds seeds = test::seeds_of_test(test::usual(10'000, 500));
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    run_seed(world, seed, direction, totals);
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("shown: engine, %s: %llu seeds, %llu of them failed as they were told to, %llu steps\n",
              direction == Direction::Dump ? "dump" : "restore", static_cast<unsigned long long>(totals.runs),
              static_cast<unsigned long long>(totals.failed_as_told),
              static_cast<unsigned long long>(totals.steps));
  EXPECT_EQ(totals.runs, seeds.count);
  if (!seeds.replay && seeds.count >= 100) {
    EXPECT_GT(totals.failed_as_told, seeds.count / 10) << "the faults do not reach the engine";
  }
}

TEST(Simulation, Dump) {
  run_all(Direction::Dump);
}
TEST(Simulation, Restore) {
  run_all(Direction::Restore);
}

}  // namespace
}  // namespace sluice::sim
