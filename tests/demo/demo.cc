// SPDX-License-Identifier: MIT
// sluice-demo: GPU processes on virtual GPUs are dumped through the plugin, killed, restored and checked byte
// for byte, and the speeds are set beside what the same disk does raw, in the same run. With --runs all of it
// is done so many times, and what the runs say together is told in the end.
//
// Memory is touched before anything is timed: in a virtual machine the first write to a page of guest memory
// is slow, which is the hypervisor's time and not ours. The virtual GPUs' memory is touched when they are
// made; for the rest (staging buffers, page cache) as much free memory as the run can need is taken, written
// and given back, and the kernel hands out the pages that were given back last.
//
// Exit status: 0 verified (with --corrupt: the corrupted image was refused); 1 not; 2 usage or a machine too
// small.
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "demo_report.h"
#include "demo_runs.h"
#include "lookalike/harness.h"
#include "lookalike/task_tree.h"
#include "measure/process.h"
#include "measure/raw_disk.h"
#include "measure/statistics.h"
#include "pipeline/extents/extent_cloner.h"
#include "support/flip_byte.h"

namespace sluice::demo {
namespace {

using lookalike::FifoSubject;
using lookalike::Program;
using lookalike::read_file;
using lookalike::Scene;
using lookalike::ScratchDirectory;
using lookalike::shipped_plugin_directory;
using lookalike::Strings;
using lookalike::TaskTree;

constexpr const char* kHostVersion = "4.2";
constexpr std::uint64_t kBlockBytes = 4 * kMiB;  // the plugin's defaults, for the raw measurement
constexpr std::uint32_t kDepth = 16;
constexpr std::uint64_t kCeilingBytes = 8 * kGiB;        // at most this much is written raw
constexpr std::uint64_t kTouchBytesPerGpu = 160 * kMiB;  // staging memory and what is around it
constexpr int kSampleMilliseconds = 10;

struct DemoOptions {
  unsigned gpus = 2;
  unsigned processes = 1;
  unsigned runs = 1;
  std::uint64_t vram_bytes = kGiB;  // of each process on each GPU
  std::string directory;
  std::string images;  // empty: below `directory`, and gone at the end
  vamdgpu::Preset preset = vamdgpu::Preset::Mi210;
  std::string json;  // "" none, "-" standard output
  bool corrupt = false;
  bool parent = false;
  bool replicas = false;
};

// Where the telling goes: standard output, or standard error when that carries the JSON.
std::FILE* g_out = stdout;

__attribute__((format(printf, 1, 2))) void tell(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(g_out, format, arguments);
  va_end(arguments);
  std::fflush(g_out);
}

// What cannot go on; the text says what the reader can do.
struct Stop {
  int status;
  std::string why;
};

std::optional<std::uint64_t> parse_size(const char* text) {
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text, &end, 10);
  const std::string_view suffix(end);
  if (end == text || number == 0) return std::nullopt;
  if (suffix == "K") return number * kKiB;
  if (suffix == "M") return number * kMiB;
  if (suffix == "G") return number * kGiB;
  return suffix.empty() ? std::optional(number) : std::nullopt;
}

// scripts/demo --help prints the same lines without this program.
constexpr const char* kOptions =
#include "demo_usage.inc"
    ;

// Returns `status`.
int usage(std::FILE* to, int status) {
  (void)std::fprintf(to, "usage: scripts/demo [OPTIONS]%s", kOptions);
  return status;
}

std::optional<DemoOptions> parse(int argc, char** argv) {
  DemoOptions options;
  const option table[] = {
      {"gpus", required_argument, nullptr, 'g'}, {"processes", required_argument, nullptr, 'n'},
      {"runs", required_argument, nullptr, 'r'}, {"vram", required_argument, nullptr, 'v'},
      {"dir", required_argument, nullptr, 'd'},  {"preset", required_argument, nullptr, 'p'},
      {"json", required_argument, nullptr, 'j'}, {"images", required_argument, nullptr, 'i'},
      {"corrupt", no_argument, nullptr, 'c'},    {"parent", no_argument, nullptr, 'b'},
      {"replicas", no_argument, nullptr, 'a'},   {nullptr, 0, nullptr, 0}};
  for (int choice = 0; (choice = ::getopt_long(argc, argv, "", table, nullptr)) != -1;) {
    if (choice == 'g') {
      options.gpus = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
    } else if (choice == 'n') {
      options.processes = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
    } else if (choice == 'r') {
      options.runs = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
    } else if (choice == 'v') {
      options.vram_bytes = parse_size(optarg).value_or(0);
    } else if (choice == 'd') {
      options.directory = optarg;
    } else if (choice == 'i') {
      options.images = optarg;
    } else if (choice == 'p') {
      const std::optional<vamdgpu::Preset> preset = vamdgpu::preset_by_name(optarg);
      if (!preset) return std::nullopt;
      options.preset = *preset;
    } else if (choice == 'j') {
      options.json = optarg;
    } else if (choice == 'c') {
      options.corrupt = true;
    } else if (choice == 'b') {
      options.parent = true;
    } else if (choice == 'a') {
      options.replicas = true;
    } else {
      return std::nullopt;
    }
  }
  const bool once = options.runs == 1;
  const int others = int{options.corrupt} + int{options.parent} + int{options.replicas};
  const bool good = optind == argc && options.gpus >= 1 && options.gpus <= 16 && options.processes >= 1 &&
                    options.processes <= 16 && options.vram_bytes >= kMiB && options.vram_bytes % 4096 == 0 &&
                    options.runs >= 1 && options.runs <= 99 && (!options.replicas || options.gpus > 1) &&
                    (once || (others == 0 && options.images.empty())) && others <= 1;
  return good ? std::optional(options) : std::nullopt;
}

// A line "Name:   123 kB" of a /proc file, in bytes.
std::uint64_t proc_bytes(const std::string& text, const char* name) {
  const std::size_t at = text.find(std::string(name).append(":"));
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at + std::strlen(name) + 1, nullptr, 10) * kKiB;
}

// Bytes that the files of a directory hold on disk.
std::uint64_t disk_bytes(const std::filesystem::path& directory) {
  std::uint64_t sum = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) == 0) sum += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return sum;
}

// Bytes that the file system of a directory has given out. Extents that files share count once.
std::uint64_t used_bytes(const UniqueFd& directory) {
  struct statvfs status {};
  if (::syncfs(directory.get()) != 0 || ::fstatvfs(directory.get(), &status) != 0)
    throw Stop{1, "the disk's use is not known: " + std::string(std::strerror(errno))};
  return std::uint64_t{status.f_blocks - status.f_bfree} * status.f_frsize;
}

// Runs a host to its end; samples its resident memory (RssAnon + RssFile: RssShmem is the virtual GPU's) and
// shows how far it is. `expected`: bytes that the images will hold, 0 = unknown.
int watch(Program& host, const char* what, const std::filesystem::path& images, std::uint64_t expected,
          std::uint64_t* peak_rss_bytes) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, host.pid(), 0)));
  if (!pidfd) throw Stop{1, "pidfd_open is refused here"};
  const bool terminal = ::isatty(::fileno(g_out)) == 1;
  const std::string status_file = "/proc/" + std::to_string(host.pid()) + "/status";
  for (unsigned round = 0;; ++round) {
    pollfd ended{pidfd.get(), POLLIN, 0};
    const int ready = ::poll(&ended, 1, kSampleMilliseconds);
    const std::string status = read_file(status_file);
    *peak_rss_bytes =
        std::max(*peak_rss_bytes, proc_bytes(status, "RssAnon") + proc_bytes(status, "RssFile"));
    if (ready == 1) break;
    if (!terminal || round % 20 != 0) continue;
    if (expected > 0) {
      const std::uint64_t percent = std::min<std::uint64_t>(100, disk_bytes(images) * 100 / expected);
      tell("\r   %s ... %3" PRIu64 " %%", what, percent);
    } else {
      tell("\r   %s ... %.1f s", what, round * kSampleMilliseconds / 1000.0);
    }
  }
  if (terminal) tell("\r   %s ... done \n", what);
  return host.wait();
}

// Flips one bit of data in the middle of a pages file. Tells where.
void corrupt(const std::filesystem::path& images) {
  std::filesystem::path pages;
  for (const auto& entry : std::filesystem::directory_iterator(images)) {
    if (entry.path().filename().string().starts_with("amdgpu-pages-")) pages = std::max(pages, entry.path());
  }
  const UniqueFd fd(::open(pages.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = fd ? ::lseek(fd.get(), 0, SEEK_END) : -1;
  const off_t at = size > 0 ? ::lseek(fd.get(), size / 2, SEEK_DATA) : -1;
  if (at < 0) throw Stop{1, "there is no pages file to damage"};
  test::flip_byte(pages, static_cast<std::uint64_t>(at));
  tell("   flipped one bit of %s at byte %jd\n", pages.filename().c_str(), static_cast<std::intmax_t>(at));
}

std::uint64_t figure(const std::string& line, const std::string& key) {
  const std::size_t at = line.find(std::string(key).append("="));
  return at == std::string::npos ? 0 : std::strtoull(line.c_str() + at + key.size() + 1, nullptr, 10);
}

class Demo {
 public:
  explicit Demo(const DemoOptions& options) : options_(options) {
    report_.gpus = options.gpus;
    report_.processes = options.processes;
  }

  int run() {
    check_room();
    const ScratchDirectory place(options_.directory.empty() ? std::filesystem::temp_directory_path()
                                                            : std::filesystem::path(options_.directory));
    const std::filesystem::path images =
        options_.images.empty() ? place.path() / "images" : std::filesystem::absolute(options_.images);
    for (const std::filesystem::path& each : {images, changes_of(images), apart_of(images)}) {
      if (std::filesystem::exists(each)) throw Stop{2, each.string() + " is there already"};
    }
    tell(
        "1. Making %u virtual %s with %s each. There is no GPU in this machine; the plugin, libdrm and the "
        "disk are "
        "real.\n",
        options_.gpus, std::string(vamdgpu::preset_name(options_.preset)).c_str(),
        readable_bytes(options_.processes * options_.vram_bytes).c_str());
    vamdgpu::MachineOptions machine;
    machine.preset = options_.preset;
    // Linux 7.2 restores no queue of an MI300X as one GPU.
    if (options_.preset == vamdgpu::Preset::Mi300x) machine.kfd_minor_version = vamdgpu::kKfdLinux612;
    machine.gpus = options_.gpus;
    machine.vram_bytes = options_.processes * options_.vram_bytes + 64 * kMiB;
    machine.gtt_bytes = options_.processes * (gtt_bytes() + queue_bytes());
    Scene scene(machine, shipped_plugin_directory(), images);

    tell("2. Starting %s with data that can be checked.\n", options_.processes == 1
                                                                ? "a GPU process that fills its memory"
                                                                : "GPU processes that fill their memory");
    std::uint64_t bytes = 0;
    TaskTree subjects(scene);
    const std::uint64_t to_disk = start(subjects, bytes);
    if (options_.parent) return run_on_parent(scene, subjects, images, bytes);
    if (options_.replicas) return run_replicas(scene, subjects, images, bytes);
    tell("3. Measuring the disk, raw.\n");
    measure(place.path(), to_disk);
    tell("4. Dumping it as CRIU %s does, and killing it.\n", kHostVersion);
    dump(scene, subjects, images, to_disk, {});
    see_them_end(subjects);
    report_.dump = read_plugin_stats(images, "dump");
    tell("   %s dumped in %.2f s: %.2f GB/s\n", readable_bytes(report_.dump.bytes).c_str(),
         report_.dump.seconds, report_.dump.gbps());
    if (options_.corrupt) return refuse(scene, subjects, images);

    measure(place.path(), to_disk);
    tell("5. Restoring it.\n");
    restore(scene, subjects, images);
    report_.restore = read_plugin_stats(images, "restore");
    tell("   %s restored in %.2f s: %.2f GB/s\n", readable_bytes(report_.restore.bytes).c_str(),
         report_.restore.seconds, report_.restore.gbps());

    tell("6. What was restored checks every byte, address, handle, map, event and queue, and works on.\n");
    const bool well = check(subjects);
    const bool whole = report_.dump.bytes == bytes && report_.restore.bytes == bytes;
    if (!whole) tell("   the statistics do not account for every byte\n");
    report_.verified = well && whole;
    measure(place.path(), to_disk);
    tell("\n%s", table_of(report_).c_str());
    return report_.verified ? 0 : 1;
  }

  const Report& report() const { return report_; }
  // REQUIRES: run() has returned 0, and nothing was corrupted: the disk was measured three times.
  RunRates rates() const {
    return {report_.dump.gbps(),    raw_writes_[0], raw_writes_[1],
            report_.restore.gbps(), raw_reads_[1],  raw_reads_[2]};
  }

 private:
  // Bytes of theirs that are not zero; `bytes`: all.
  std::uint64_t start(TaskTree& subjects, std::uint64_t& bytes) {
    std::uint64_t zero = 0;
    for (unsigned i = 1; i <= options_.processes; ++i) {
      Strings arguments = {"--vram", std::to_string(options_.vram_bytes),
                           "--gtt",  std::to_string(gtt_bytes()),
                           "--zero", "20",
                           "--seed", std::to_string(i)};
      if (options_.replicas) arguments.emplace_back("--replicas");
      const std::string ready = subjects.add(arguments);
      if (!ready.starts_with("ready")) throw Stop{1, "a GPU process failed: " + ready};
      report_.bos += figure(ready, "bos");
      bytes += figure(ready, "bytes");
      zero += figure(ready, "zero");
      tell("   process %d: %" PRIu64 " BOs, %s of VRAM and GTT, of it %s zero\n", subjects.back().pid(),
           figure(ready, "bos"), readable_bytes(figure(ready, "bytes")).c_str(),
           readable_bytes(figure(ready, "zero")).c_str());
    }
    return bytes - zero;
  }

  // Where the dump on a parent goes, beside it.
  static std::filesystem::path changes_of(const std::filesystem::path& images) {
    return images.string() + "-changes";
  }

  // A dump of all, and what has changed since then on top of it.
  int run_on_parent(Scene& scene, TaskTree& subjects, const std::filesystem::path& images,
                    std::uint64_t bytes) {
    const std::filesystem::path changes = changes_of(images);
    tell("3. Dumping it as CRIU %s does; it runs on.\n", kHostVersion);
    dump(scene, subjects, images, 0, {"--leave-running"});
    report_.dump = read_plugin_stats(images, "dump");
    tell("   its queues were paused for %.3f s\n", report_.dump.frozen_seconds);
    tell("4. It works on, and puts other data into one buffer on each GPU.\n");
    const bool worked = ask(subjects, {"check", "work", "change"});
    tell("5. Dumping what has changed, with --prev-images-dir, and killing it.\n");
    dump(scene, subjects, changes, 0, {"--prev-images-dir", "../" + images.filename().string()});
    see_them_end(subjects);
    report_.on_parent = read_plugin_stats(changes, "dump");
    tell("   its queues were paused for %.3f s\n", report_.on_parent->frozen_seconds);
    tell("6. Restoring it from both.\n");
    restore(scene, subjects, changes);
    report_.restore = read_plugin_stats(changes, "restore");
    const bool well = check(subjects);
    const bool whole = report_.dump.bytes == bytes && report_.on_parent->bytes == bytes &&
                       report_.restore.bytes == bytes && report_.on_parent->parent_bytes > 0;
    if (!whole) tell("   the statistics do not account for every byte\n");
    report_.verified = worked && well && whole;
    tell("\n%s", parent_table_of(report_).c_str());
    if (!options_.images.empty())
      tell("  the full dump is in %s, the dump of the changes in %s: sluice diff compares them\n",
           images.c_str(), changes.c_str());
    return report_.verified ? 0 : 1;
  }

  // Where the dump goes that shares nothing: a neighbour of the other one.
  static std::filesystem::path apart_of(const std::filesystem::path& images) {
    return images.string() + "-apart";
  }

  // A dump of each GPU by itself, and one that writes once what they have alike.
  int run_replicas(Scene& scene, TaskTree& subjects, const std::filesystem::path& images,
                   std::uint64_t bytes) {
    const std::filesystem::path apart = apart_of(images);
    std::filesystem::create_directories(images.parent_path());
    const UniqueFd place(::open(images.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const bool shareable = shareable_block_bytes(place.get()) != 0;
    const auto dump_to = [&](const std::filesystem::path& directory, const Strings& more) {
      const std::uint64_t before = used_bytes(place);
      dump(scene, subjects, directory, 0, more);
      PluginStats stats = read_plugin_stats(directory, "dump");
      const std::uint64_t after = used_bytes(place);
      stats.disk_bytes = after > before ? after - before : 0;
      tell("   it took %.2f s and %s of the disk\n", stats.seconds, readable_bytes(stats.disk_bytes).c_str());
      return stats;
    };
    tell("   %u GPUs hold the same data, as in a data-parallel job.\n", options_.gpus);
    tell("3. Dumping it with SLUICE_DEDUP=off: each GPU is written. It runs on.\n");
    scene.variables["SLUICE_DEDUP"] = "off";
    report_.apart = dump_to(apart, {"--leave-running"});
    scene.variables.erase("SLUICE_DEDUP");
    tell("4. Dumping it %s, and killing it.\n", shareable ? "as usual" : "with SLUICE_DEDUP=on");
    if (!shareable) {
      tell("   Files here cannot share extents, as on XFS and btrfs: the files will need each other.\n");
      scene.variables["SLUICE_DEDUP"] = "on";
    }
    report_.dump = dump_to(images, {});
    see_them_end(subjects);
    tell("5. Restoring it.\n");
    restore(scene, subjects, images);
    report_.restore = read_plugin_stats(images, "restore");
    tell("6. What was restored checks every byte, and works on.\n");
    const bool well = check(subjects);
    const bool whole = report_.apart->bytes == bytes && report_.dump.bytes == bytes &&
                       report_.restore.bytes == bytes && report_.dump.replica_bytes > 0;
    if (!whole) tell("   the statistics do not account for every byte\n");
    report_.verified = well && whole;
    tell("\n%s", replicas_table_of(report_).c_str());
    if (!options_.images.empty())
      tell("  sluice show --stats %s tells what each GPU shares\n", images.c_str());
    return report_.verified ? 0 : 1;
  }

  // `to_disk`: bytes that the images will hold, 0 = unknown.
  void dump(Scene& scene, TaskTree& subjects, const std::filesystem::path& images, std::uint64_t to_disk,
            Strings more) {
    bench::touch_free_memory(kTouchBytesPerGpu * options_.gpus);
    std::filesystem::create_directories(images);
    std::filesystem::permissions(images, std::filesystem::perms::owner_all);  // as a parent's must be
    more.insert(more.end(), {"--log-level", "2", "--images", images.string()});
    Program dumper = scene.start_host(kHostVersion, "dump", subjects.with_pids(more));
    const int dumped = watch(dumper, "dumping", images, to_disk, &report_.peak_rss_bytes);
    if (dumped != 0) throw Stop{1, "the dump failed:\n" + scene.log()};
  }

  static void see_them_end(TaskTree& subjects) {
    for (FifoSubject& subject : subjects) {
      if (subject.wait() != 128 + SIGKILL) throw Stop{1, "a process survived its dump"};
    }
    subjects.wait_until_gpus_are_free();
  }

  void restore(Scene& scene, TaskTree& subjects, const std::filesystem::path& images) const {
    bench::touch_free_memory(kTouchBytesPerGpu * options_.gpus);
    Program restorer =
        scene.start_host(kHostVersion, "restore", {"--log-level", "2", "--images", images.string()});
    std::uint64_t restoring_rss_bytes = 0;
    const int restored = watch(restorer, "restoring", images, 0, &restoring_rss_bytes);
    if (restored != 0) throw Stop{1, "the restore failed:\n" + scene.log()};
    if (!subjects.meet_restored()) throw Stop{1, "the host does not say what it restored"};
  }

  bool check(TaskTree& subjects) { return ask(subjects, {"check", "work", "quit"}); }
  bool ask(TaskTree& subjects, std::initializer_list<const char*> commands) {
    bool well = true;
    for (FifoSubject& subject : subjects) {
      for (const char* command : commands) {
        const std::string answer = subject.ask(command);
        if (answer.starts_with("ok")) continue;
        well = false;
        tell("   process %d says: %s\n", subject.pid(),
             answer.empty() ? "nothing, it is gone" : answer.c_str());
      }
    }
    return well;
  }

  std::uint64_t gtt_bytes() const {
    return std::clamp<std::uint64_t>(options_.vram_bytes / 16 / kMiB * kMiB, kMiB, 64 * kMiB);
  }

  // GTT for a compute queue's context save area and for the plugin's own small BOs: at least this much.
  std::uint64_t queue_bytes() const { return (options_.preset == vamdgpu::Preset::Mi300x ? 256 : 96) * kMiB; }

  void check_room() const {
    const std::uint64_t per_gpu = options_.vram_bytes + gtt_bytes() + queue_bytes();
    const std::uint64_t memory = options_.gpus * (options_.processes * per_gpu + 128 * kMiB) + 512 * kMiB;
    if (bench::memory_line("MemAvailable") < memory) {
      throw Stop{2, "this needs about " + readable_bytes(memory) + " of free memory and there are " +
                        readable_bytes(bench::memory_line("MemAvailable")) +
                        ": use a smaller --vram, or fewer --gpus or --processes"};
    }
    const std::string where =
        options_.directory.empty() ? std::filesystem::temp_directory_path().string() : options_.directory;
    struct statvfs disk {};
    if (::statvfs(where.c_str(), &disk) != 0) throw Stop{2, where + ": " + std::strerror(errno)};
    const std::uint64_t room = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    const std::uint64_t images = options_.processes * options_.gpus * per_gpu;
    const std::uint64_t more = options_.replicas ? images : std::min(images, kCeilingBytes);
    const std::uint64_t need = images + more + 128 * kMiB;
    if (room < need) {
      throw Stop{2, where + " has " + readable_bytes(room) + " free and this needs " + readable_bytes(need) +
                        ": choose another --dir"};
    }
  }

  // One round of the raw measurement. The medians of all rounds stand in the report.
  void measure(const std::filesystem::path& directory, std::uint64_t bytes) {
    bench::RawPlan plan;
    for (unsigned file = 0; file < options_.gpus; ++file)
      plan.files.push_back(directory / ("raw-" + std::to_string(file)));
    plan.bytes_per_file = std::min(bytes, kCeilingBytes) / options_.gpus;
    plan.block_bytes = kBlockBytes;
    plan.depth = kDepth;
    const auto must = [](auto result) {
      if (!result) throw Stop{1, "the disk cannot be measured: " + result.error().what};
      return std::move(*result);
    };
    const std::unique_ptr<bench::RawDisk> disk = must(bench::RawDisk::make(plan));
    raw_writes_.push_back(must(disk->write()).gbps());
    raw_reads_.push_back(must(disk->read()).gbps());
    disk->remove();
    if (!disk->direct()) tell("   (this file system has no direct I/O: through the page cache)\n");
    if (!disk->ring()) tell("   (io_uring is refused here: one block at a time)\n");
    report_.raw_write_gbps = bench::median(raw_writes_);
    report_.raw_read_gbps = bench::median(raw_reads_);
    tell("   raw disk: writes %.2f GB/s, reads %.2f GB/s\n", raw_writes_.back(), raw_reads_.back());
  }

  int refuse(Scene& scene, TaskTree& subjects, const std::filesystem::path& images) {
    tell("5. Damaging the image and restoring it all the same.\n");
    corrupt(images);
    (void)scene.log();
    Program host = scene.start_host(kHostVersion, "restore", {"--log-level", "1"});
    subjects.say("check");  // one that runs for a moment answers
    std::uint64_t rss_bytes = 0;
    const int status = watch(host, "restoring", images, 0, &rss_bytes);
    const std::string log = scene.log();
    const bool runs = subjects.one_has_spoken();
    const bool named = log.find("amdgpu-pages-") != std::string::npos;
    tell("   the host ended with status %d and said:\n%s", status, log.c_str());
    const bool refused = status == 1 && !runs && named;
    tell("   %s\n",
         refused ? "refused, the block is named, and nothing was resumed" : "THIS SHOULD HAVE BEEN REFUSED");
    return refused ? 0 : 1;
  }

  DemoOptions options_;
  Report report_;
  std::vector<double> raw_writes_, raw_reads_;
};

void write_json(const std::string& file, const std::string& json) {
  if (file == "-") {
    std::fputs(json.c_str(), stdout);
  } else if (!file.empty()) {
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd || ::write(fd.get(), json.data(), json.size()) != static_cast<ssize_t>(json.size()))
      throw Stop{1, file + ": " + std::strerror(errno)};
  }
}

int run_once(const DemoOptions& options) {
  Demo demo(options);
  const int status = demo.run();
  write_json(options.json, json_of(demo.report()));
  return status;
}

int run_often(const DemoOptions& options) {
  std::vector<RunRates> runs;
  for (unsigned i = 1; i <= options.runs; ++i) {
    tell("%sRun %u of %u\n", i > 1 ? "\n" : "", i, options.runs);
    Demo demo(options);
    if (const int status = demo.run(); status != 0) return status;
    runs.push_back(demo.rates());
  }
  const bench::Report together = report_of(options.processes, options.gpus, runs);
  tell("\n%s", bench::table_of(together).c_str());
  write_json(options.json, bench::json_of(together).dump(2) + "\n");
  return 0;
}

}  // namespace
}  // namespace sluice::demo

int main(int argc, char** argv) {
  using namespace sluice::demo;
  if (argc == 2 && std::string_view(argv[1]) == "--help") return usage(stdout, 0);
  const auto options = parse(argc, argv);
  if (!options) return usage(stderr, 2);
  if (options->json == "-") g_out = stderr;
  try {
    return options->runs == 1 ? run_once(*options) : run_often(*options);
  } catch (const Stop& stop) {
    std::fprintf(stderr, "demo: %s\n", stop.why.c_str());
    return stop.status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "demo: %s\n", error.what());
    return 1;
  }
}
