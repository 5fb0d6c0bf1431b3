// SPDX-License-Identifier: MIT
// The serial way compared with ours. Serial: one staging buffer as large as the largest BO; for each BO copy
// all of it, wait, write it through stdio and the page cache (restore: the reverse); no checksum, no sync.
// Both copy from the same memory with a thread that replaces the DMA engine, and write the same bytes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <semaphore>
#include <vector>

#include "engine/engine_thread.h"
#include "front/dma_copy.h"
#include "lane/lane_run.h"
#include "measure/page_cache.h"
#include "measure/process.h"
#include "pipeline/arena.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

constexpr const char* kSerialName = "serial.img";

using Clock = std::chrono::steady_clock;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Result<File> open_file(const std::filesystem::path& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode), std::fclose);
  if (file == nullptr) return make_error(errno, path);
  return file;
}

// Time and CPU since it was made.
class Meter {
 public:
  Meter(const EngineThread& engine, std::uint64_t bytes) : engine_(engine), bytes_(bytes) {}
  Sample sample() const {
    Sample sample;
    sample.bytes = bytes_;
    sample.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    sample.dma_cpu_seconds = engine_.cpu_seconds() - dma_cpu_;
    sample.cpu_seconds = process_cpu_seconds() - cpu_ - sample.dma_cpu_seconds;
    return sample;
  }

 private:
  const EngineThread& engine_;
  std::uint64_t bytes_;
  double dma_cpu_ = engine_.cpu_seconds();
  double cpu_ = process_cpu_seconds();
  Clock::time_point begin_ = Clock::now();
};

class SerialWay {
 public:
  // The staging buffer is made and touched here, untimed; the serial way would do it in each run.
  static Result<std::unique_ptr<SerialWay>> make(CopyEngine& engine, const Place& place) {
    const std::vector<std::uint64_t>& sizes = engine.contents().bo_bytes;
    SLUICE_TRY_ASSIGN(StagingArena staging,
                      StagingArena::make(*std::max_element(sizes.begin(), sizes.end()), 1, -1));
    return std::unique_ptr<SerialWay>(new SerialWay(engine, place, std::move(staging)));
  }

  // When the way itself returns, and when file and name are on the disk.
  struct Dumped {
    Sample returned, durable;
  };
  Result<Dumped> dump() {
    const std::filesystem::path path = place_.file(kSerialName);
    const std::uint64_t payload = engine_.contents().total_bytes();
    const Meter meter(thread_, payload + sizeof payload);
    SLUICE_TRY_ASSIGN(File file, open_file(path, "w"));
    if (std::fwrite(&payload, sizeof payload, 1, file.get()) != 1) return make_error(errno, path);
    std::byte* bo = engine_.memory().data();
    for (const std::uint64_t bytes : engine_.contents().bo_bytes) {
      copy(staging_.bytes().data(), bo, bytes);
      if (std::fwrite(staging_.bytes().data(), 1, bytes, file.get()) != bytes) return make_error(errno, path);
      bo += bytes;
    }
    if (std::fclose(file.release()) != 0) return make_error(errno, path);
    Dumped dumped;
    dumped.returned = meter.sample();
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || ::fdatasync(fd.get()) != 0 || ::close(fd.release()) != 0 || ::fsync(place_.fd()) != 0)
      return make_error(errno, "sync " + path.string());
    dumped.durable = meter.sample();
    return dumped;
  }

  Result<Sample> restore() {
    const std::filesystem::path path = place_.file(kPagesName);
    std::uint64_t payload = 0;
    const Meter meter(thread_, engine_.contents().total_bytes() + sizeof payload);
    SLUICE_TRY_ASSIGN(const File file, open_file(path, "r"));
    if (std::fread(&payload, sizeof payload, 1, file.get()) != 1 ||
        payload != engine_.contents().total_bytes())
      return make_error(EBADMSG, path);
    std::byte* bo = engine_.memory().data();
    for (const std::uint64_t bytes : engine_.contents().bo_bytes) {
      if (std::fread(staging_.bytes().data(), 1, bytes, file.get()) != bytes) return make_error(EIO, path);
      copy(bo, staging_.bytes().data(), bytes);
      bo += bytes;
    }
    return meter.sample();
  }

 private:
  SerialWay(CopyEngine& engine, const Place& place, StagingArena staging)
      : engine_(engine), place_(place), staging_(std::move(staging)) {}

  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    std::binary_semaphore done(0);
    thread_.run([&] {
      vamdgpu::dma_copy(to, from, bytes);
      done.release();
    });
    done.acquire();
  }

  CopyEngine& engine_;
  const Place& place_;
  StagingArena staging_;
  EngineThread thread_;
};

Result<bool> same_contents(const std::filesystem::path& a, const std::filesystem::path& b) {
  SLUICE_TRY_ASSIGN(const File first, open_file(a, "r"));
  SLUICE_TRY_ASSIGN(const File second, open_file(b, "r"));
  std::vector<char> one(kMiB), other(kMiB);
  for (;;) {
    const std::size_t got = std::fread(one.data(), 1, one.size(), first.get());
    if (std::fread(other.data(), 1, other.size(), second.get()) != got) return false;
    if (std::memcmp(one.data(), other.data(), got) != 0) return false;
    if (got < one.size()) return std::ferror(first.get()) == 0 && std::ferror(second.get()) == 0;
  }
}

Case case_of(std::string name, std::string note, const Pairs& pairs) {
  Case each{std::move(name), std::move(note), pairs.figures()};
  for (Figure& figure : each.figures) {
    if (figure.name == "raw") figure.name = "serial";
    if (figure.name == "raw cpu") figure.name = "serial cpu";
  }
  return each;
}

}  // namespace

Result<Report> run_serial(const BenchOptions& options) {
  const std::uint64_t bo_bytes = options.by_scale(4 * kMiB, 256 * kMiB, kGiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine,
                    make_memcpy_engine({{bo_bytes, bo_bytes, bo_bytes, bo_bytes}}));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<SerialWay> serial, SerialWay::make(*engine, place));
  const std::uint64_t bytes = engine->contents().total_bytes();
  SumTable sums;
  LanePlan plan = pages_plan(*engine, place, &sums);
  Report report{
      "serial", "beside whole BOs copied, then written through the page cache, one after the other", {}};

  options.tell("dump");
  // All memory that the page cache will use has been touched: a hypervisor's first touch is not timed.
  const auto prepare_dump = [&] {
    std::filesystem::remove(place.file(kPagesName));
    std::filesystem::remove(place.file(kSerialName));
    place.settle();
    touch_free_memory(bytes);
  };
  const auto dump = [&]() -> Result<Sample> {
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
    return run.sample;
  };
  Pairs returned;
  SLUICE_TRY_ASSIGN(const Pairs durable, run_pairs(count, prepare_dump, dump, [&]() -> Result<Sample> {
                      SLUICE_TRY_ASSIGN(const SerialWay::Dumped dumped, serial->dump());
                      returned.raw.push_back(dumped.returned);
                      return dumped.durable;
                    }));
  returned.ours = durable.ours;
  report.cases.push_back(case_of("dump, to durable", "ours with checksum; serial, then fdatasync", durable));
  report.cases.push_back(case_of(
      "dump, as it returns",
      "the same runs: ours returns when durable, serial with most still in the page cache", returned));

  prepare_dump();
  SLUICE_TRY(dump());
  SLUICE_TRY(serial->dump());
  SLUICE_TRY_ASSIGN(const bool same, same_contents(place.file(kPagesName), place.file(kSerialName)));
  if (!same) return make_error(EBADMSG, "the two ways wrote different files");
  std::filesystem::remove(place.file(kSerialName));

  plan.direction = Direction::Restore;
  // Every run fills BOs that had other contents, and is checked.
  const auto checked = [&](const Run& run) -> Run {
    return [&engine, run]() -> Result<Sample> {
      SLUICE_TRY(engine->scribble());
      SLUICE_TRY_ASSIGN(const Sample sample, run());
      SLUICE_TRY_ASSIGN(const bool intact, engine->intact());
      if (!intact) return make_error(EBADMSG, "the restored contents are not what was dumped");
      return sample;
    };
  };
  for (const bool warm : {false, true}) {
    const std::string name = warm ? "restore, warm cache" : "restore, cold cache";
    if (!options.wants(name)) continue;
    options.tell(name);
    std::vector<double> cached;
    // Prepares the cache, as the last step.
    const auto cache = [&](const Run& run) -> Run {
      return [&, run]() -> Result<Sample> {
        touch_free_memory(bytes);
        SLUICE_TRY(warm ? read_in(place.file(kPagesName), std::filesystem::file_size(place.file(kPagesName)))
                        : drop_cached(place.file(kPagesName)));
        SLUICE_TRY_ASSIGN(const double share, cached_share(place.file(kPagesName)));
        cached.push_back(share * 100);
        return run();
      };
    };
    SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                             count, [] {}, checked(cache(dump)),
                                             checked(cache([&] { return serial->restore(); }))));
    report.cases.push_back(case_of(name, "ours verifies every block, serial none", pairs));
    report.cases.back().figures.push_back(figure("cached", "%", cached));
  }
  return report;
}

}  // namespace sluice::bench
