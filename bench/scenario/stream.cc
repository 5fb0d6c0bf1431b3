// SPDX-License-Identifier: MIT
// Dump and restore through a pipe, beside a plain loop at the same place. Both move a file in memory, in
// equal pieces, through a pipe of the same size. A restore is compared with a loop of splice(2), a dump with
// a loop of write(2): splice hands the pages away, and a lane needs its staging memory again. "of splice" is
// a dump's ratio to a splice loop nevertheless. The other end is the same for all:
//
//   the disk   bytes are spliced to, or from, a file of the disk that is measured, as an image streamer does
//   a program  one that only reads, or writes, them: lz4 or ssh at their very best
//   nothing    they are discarded in place (dump only)
//
// CPU: of our end only. "beyond the pools": growth of resident memory during the run, without the lane's
// staging.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "lane/lane_run.h"
#include "measure/page_cache.h"
#include "measure/process.h"
#include "pipeline/store/pipe_store.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kWindowBytes = 64 * kMiB;   // of the loop's file in memory, used repeatedly
constexpr std::size_t kStreamerBytes = 252 * kKiB;  // moved by a streamer at once
constexpr std::size_t kProgramBytes = kMiB;         // read, or written, by a program at once

enum class OtherEnd : std::uint8_t { Disk, Program, Nothing };

const char* describe(OtherEnd end) {
  return end == OtherEnd::Disk ? "the disk" : end == OtherEnd::Program ? "a program" : "nothing";
}

struct Ends {
  UniqueFd reader, writer;
};

Result<Ends> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return make_error(errno, "pipe");
  (void)::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  return Ends{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Calls `move` until it returns 0; it returns the number of bytes moved. `what` is for messages.
Result<void> move_all(const char* what, const std::function<ssize_t()>& move) {
  for (;;) {
    const ssize_t moved = TEMP_FAILURE_RETRY(move());
    if (moved == 0) return {};
    if (moved < 0) return make_error(errno, what);
  }
}

class Streams {
 public:
  Streams(const Place& place, std::uint64_t bytes) : place_(place), bytes_(bytes) {}

  Result<void> make_window() {
    window_.reset(::memfd_create("window", MFD_CLOEXEC));
    if (!window_ || ::ftruncate(window_.get(), kWindowBytes) != 0)
      return make_error(errno, "a file in memory");
    window_bytes_.assign(kWindowBytes, std::byte{0x5a});
    const std::vector<std::byte> part(kMiB, std::byte{0x5a});
    for (std::uint64_t at = 0; at < kWindowBytes; at += part.size()) {
      if (::pwrite(window_.get(), part.data(), part.size(), static_cast<off_t>(at)) < 0)
        return make_error(errno, "fill a file in memory");
    }
    return {};
  }

  // Runs `body` with our end of a pipe while a thread runs the other end. Timed to the end of both.
  Result<Sample> run(Direction direction, OtherEnd other,
                     const std::function<Result<double>(UniqueFd)>& body) {
    SLUICE_TRY_ASSIGN(Ends ends, make_pipe());
    UniqueFd ours = std::move(direction == Direction::Dump ? ends.writer : ends.reader);
    UniqueFd theirs = std::move(direction == Direction::Dump ? ends.reader : ends.writer);
    Result<void> served;
    double their_cpu = 0;
    const double cpu = process_cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    std::thread thread([&] {
      served = direction == Direction::Dump ? take(other, std::move(theirs)) : give(other, std::move(theirs));
      their_cpu = thread_cpu_seconds();
    });
    const Result<double> dma_cpu = body(std::move(ours));
    thread.join();
    if (!dma_cpu) return dma_cpu.error();
    SLUICE_TRY(served);
    Sample sample;
    sample.bytes = bytes_;
    sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    sample.dma_cpu_seconds = *dma_cpu;
    sample.cpu_seconds = process_cpu_seconds() - cpu - their_cpu - *dma_cpu;
    return sample;
  }

  // The loop's part of a run.
  Result<double> splice_loop(Direction direction, const UniqueFd& ours) const {
    std::uint64_t done = 0;
    SLUICE_TRY(move_all("splice", [&]() -> ssize_t {
      auto at = static_cast<loff_t>(done % kWindowBytes);
      const auto most = static_cast<std::size_t>(
          std::min({kPipeTransferBytes, kWindowBytes - static_cast<std::uint64_t>(at), bytes_ - done}));
      if (most == 0) return 0;
      const ssize_t moved = direction == Direction::Dump
                                ? ::splice(window_.get(), &at, ours.get(), nullptr, most, 0)
                                : ::splice(ours.get(), nullptr, window_.get(), &at, most, 0);
      if (moved > 0) done += static_cast<std::uint64_t>(moved);
      return moved;
    }));
    if (done != bytes_) return make_error(EIO, "the splice loop ended early");
    return 0.0;
  }

  // A dump's loop: copies, as a lane does.
  Result<double> write_loop(const UniqueFd& ours) const {
    std::uint64_t done = 0;
    SLUICE_TRY(move_all("write", [&]() -> ssize_t {
      const std::uint64_t at = done % kWindowBytes;
      const auto most =
          static_cast<std::size_t>(std::min({kPipeTransferBytes, kWindowBytes - at, bytes_ - done}));
      if (most == 0) return 0;
      const ssize_t moved = ::write(ours.get(), &window_bytes_[at], most);
      if (moved > 0) done += static_cast<std::uint64_t>(moved);
      return moved;
    }));
    return 0.0;
  }

  // A dump makes a new file; a restore reads from the disk, not from the page cache.
  void prepare(Direction direction) const {
    if (direction == Direction::Dump) {
      std::filesystem::remove(place_.file(kStreamed));
    } else {
      (void)drop_cached(place_.file(kStreamed));
    }
    place_.settle();
  }

  // Whether the last run to the disk has written these bytes.
  Result<bool> wrote(std::span<const std::byte> file) const {
    const UniqueFd in(::open(place_.file(kStreamed).c_str(), O_RDONLY | O_CLOEXEC));
    if (!in) return make_error(errno, "open the streamed file");
    std::vector<std::byte> buffer(kProgramBytes);
    std::uint64_t at = 0;
    bool same = true;
    SLUICE_TRY(move_all("read", [&]() -> ssize_t {
      const ssize_t got = ::read(in.get(), buffer.data(), buffer.size());
      if (got <= 0) return got;
      const auto bytes = static_cast<std::size_t>(got);
      same = same && bytes <= file.size() - at && std::memcmp(buffer.data(), &file[at], bytes) == 0;
      at += bytes;
      return same ? got : 0;
    }));
    return same && at == file.size();
  }

  // The source of restores: in memory, borrowed, and on the disk.
  Result<void> hold(std::span<const std::byte> file) {
    file_ = file;
    const UniqueFd out(
        ::open(place_.file(kStreamed).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!out) return make_error(errno, "make the streamed file");
    std::uint64_t at = 0;
    return move_all("write", [&]() -> ssize_t {
      const ssize_t moved = ::write(out.get(), file.data() + at, file.size() - at);
      if (moved > 0) at += static_cast<std::uint64_t>(moved);
      return moved;
    });
  }

 private:
  static constexpr const char* kStreamed = "streamed";

  Result<void> take(OtherEnd other, UniqueFd pipe) const {
    if (other == OtherEnd::Program) {
      std::vector<std::byte> buffer(kProgramBytes);
      return move_all("read", [&] { return ::read(pipe.get(), buffer.data(), buffer.size()); });
    }
    const std::string path = other == OtherEnd::Disk ? place_.file(kStreamed).string() : "/dev/null";
    const UniqueFd out(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!out) return make_error(errno, "open " + path);
    SLUICE_TRY(move_all(
        "splice", [&] { return ::splice(pipe.get(), nullptr, out.get(), nullptr, kStreamerBytes, 0); }));
    if (other == OtherEnd::Disk && ::fdatasync(out.get()) != 0) return make_error(errno, "sync " + path);
    return {};
  }

  Result<void> give(OtherEnd other, UniqueFd pipe) const {
    if (other == OtherEnd::Program) {
      std::uint64_t at = 0;
      return move_all("write", [&]() -> ssize_t {
        const std::size_t most = std::min<std::size_t>(kProgramBytes, file_.size() - at);
        if (most == 0) return 0;
        const ssize_t moved = ::write(pipe.get(), &file_[at], most);
        if (moved > 0) at += static_cast<std::uint64_t>(moved);
        return moved;
      });
    }
    const UniqueFd in(::open(place_.file(kStreamed).c_str(), O_RDONLY | O_CLOEXEC));
    if (!in) return make_error(errno, "open the streamed file");
    (void)::posix_fadvise(in.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    // To the last byte and no further: the reader may close the pipe after it.
    std::uint64_t at = 0;
    return move_all("splice", [&]() -> ssize_t {
      const std::size_t most = std::min<std::size_t>(kStreamerBytes, file_.size() - at);
      if (most == 0) return 0;
      const ssize_t moved = ::splice(in.get(), nullptr, pipe.get(), nullptr, most, 0);
      if (moved > 0) at += static_cast<std::uint64_t>(moved);
      return moved;
    });
  }

  const Place& place_;
  std::uint64_t bytes_;
  UniqueFd window_;
  std::vector<std::byte> window_bytes_;  // the same contents, for write(2)
  std::span<const std::byte> file_;      // a whole pages file
};

// Peak resident memory since the last reset without `bytes`, in MiB; 0 if it is less.
double peak_mib_beyond(std::uint64_t bytes) {
  const std::uint64_t peak = resident_peak_bytes();
  return peak > bytes ? static_cast<double>(peak - bytes) / static_cast<double>(kMiB) : 0;
}

}  // namespace

Result<Report> run_stream(const BenchOptions& options) {
  (void)::signal(SIGPIPE, SIG_IGN);  // writers get EPIPE instead
  const std::uint64_t bytes = options.by_scale(32 * kMiB, kGiB, 4 * kGiB);
  const unsigned rounds = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_memcpy_engine({{bytes - kHeaderBytes}}));
  Streams streams(place, bytes);
  SLUICE_TRY(streams.make_window());
  SumTable sums;
  std::vector<double> beyond;
  const auto lane = [&](Direction direction, UniqueFd ours) -> Result<double> {
    reset_resident_peak();
    const std::uint64_t before = resident_peak_bytes();
    LanePlan plan;
    plan.engine = engine.get();
    plan.direction = direction;
    plan.sums = &sums;
    plan.make_store = [&](const ImageLayout& layout, Reactor& reactor) -> Result<std::unique_ptr<Stage>> {
      return std::unique_ptr<Stage>(std::make_unique<PipeStore>(
          direction, [&](const std::string&) -> Result<UniqueFd> { return std::move(ours); },
          std::vector<std::string>{"stream"}, layout, reactor));
    };
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
    if (direction == Direction::Restore) {
      SLUICE_TRY_ASSIGN(const bool intact, engine->intact());
      if (!intact) return Error{EBADMSG, "the restored contents are not what was dumped"};
    }
    beyond.push_back(peak_mib_beyond(before + kStagingBytes));
    return run.sample.dma_cpu_seconds;
  };
  std::vector<std::byte> file(bytes);
  const std::uint64_t payload = bytes - kHeaderBytes;
  std::memcpy(file.data(), &payload, sizeof payload);
  std::ranges::copy(engine->memory(), file.begin() + kHeaderBytes);

  Report report{
      "stream",
      "a lane into a pipe beside a loop of write(2), and out of one beside a loop of splice(2); checksum on",
      {}};
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    if (direction == Direction::Restore) {
      // One more dump, compared, because the timed ones were overwritten.
      streams.prepare(Direction::Dump);
      SLUICE_TRY(streams.run(Direction::Dump, OtherEnd::Disk,
                             [&](UniqueFd pipe) { return lane(Direction::Dump, std::move(pipe)); }));
      SLUICE_TRY_ASSIGN(const bool same, streams.wrote(file));
      if (!same) return Error{EBADMSG, "what came out of the pipe is not what was dumped"};
      SLUICE_TRY(streams.hold(file));
    }
    for (const OtherEnd other : {OtherEnd::Disk, OtherEnd::Program, OtherEnd::Nothing}) {
      const bool dump = direction == Direction::Dump;
      if (!dump && other == OtherEnd::Nothing) continue;
      const std::string name = std::string(dump ? "dump, to " : "restore, from ") + describe(other);
      if (!options.wants(name)) continue;
      options.tell(name);
      beyond.clear();
      const auto ours = [&](UniqueFd pipe) { return lane(direction, std::move(pipe)); };
      const auto splice = [&](const UniqueFd& pipe) { return streams.splice_loop(direction, pipe); };
      const auto write = [&](const UniqueFd& pipe) { return streams.write_loop(pipe); };
      const auto prepare = [&] {
        if (!dump) (void)engine->scribble();
        streams.prepare(direction);
        touch_free_memory(options.scale == Scale::Smoke ? 0 : 256 * kMiB);
      };
      SLUICE_TRY_ASSIGN(const Pairs pairs,
                        run_pairs(
                            rounds, prepare, [&] { return streams.run(direction, other, ours); },
                            [&] {
                              return dump ? streams.run(direction, other, write)
                                          : streams.run(direction, other, splice);
                            }));
      Case each{name, "", pairs.figures()};
      if (dump) {
        std::vector<double> spliced;
        for (unsigned round = 0; round < rounds; ++round) {
          prepare();
          SLUICE_TRY_ASSIGN(const Sample sample, streams.run(direction, other, splice));
          spliced.push_back(sample.gbps());
        }
        each.figures.push_back(ratio("of splice", pairs.our_gbps(), spliced));
        each.figures.push_back(figure("splice", "GB/s", std::move(spliced)));
      }
      each.figures.push_back(figure("beyond the pools", "MiB", beyond));
      report.cases.push_back(std::move(each));
    }
  }
  return report;
}

}  // namespace sluice::bench
