// SPDX-License-Identifier: MIT
#include "goals/measured_machine.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "commit.h"
#include "measure/process.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  line.erase(line.find_last_not_of(" \t") + 1);
  return line;
}

// The value of the first line "NAME : VALUE" of /proc/cpuinfo.
std::string cpuinfo(const std::string& name) {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string virtualisation() {
  if ((" " + cpuinfo("flags") + " ").find(" hypervisor ") == std::string::npos) return "";
  const fs::path dmi = "/sys/class/dmi/id";
  const std::string vendor = first_line(dmi / "sys_vendor"), product = first_line(dmi / "product_name");
  return vendor.empty() && product.empty() ? "an unnamed hypervisor" : vendor + " " + product;
}

struct Mount {
  std::string type, options, source;
};

// The mount that has `directory`, from /proc/self/mountinfo: "ID PARENT MAJ:MIN ROOT POINT OPTIONS ... - TYPE
// SOURCE SUPER".
Mount mount_of(const fs::path& directory) {
  struct statx found {};
  if (::statx(AT_FDCWD, directory.c_str(), 0, STATX_MNT_ID, &found) != 0 ||
      (found.stx_mask & STATX_MNT_ID) == 0)
    return {};
  std::ifstream lines("/proc/self/mountinfo");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, skipped, options, field;
    fields >> id >> skipped >> skipped >> skipped >> skipped >> options;
    if (id != std::to_string(found.stx_mnt_id)) continue;
    while (fields >> field && field != "-") continue;
    Mount mount;
    mount.options = options;
    fields >> mount.type >> mount.source;
    return mount;
  }
  return {};
}

// The sysfs directory of the whole disk below it; empty: none (tmpfs, network).
fs::path disk_of(const fs::path& directory, const Mount& mount) {
  struct stat found {};
  dev_t device = 0;
  if (::stat(directory.c_str(), &found) == 0) device = found.st_dev;
  if (major(device) == 0 && ::stat(mount.source.c_str(), &found) == 0 && S_ISBLK(found.st_mode))
    device = found.st_rdev;  // a file system with its own device numbers, such as btrfs
  std::error_code missing;
  const std::string number = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  const fs::path block = fs::canonical(fs::path("/sys/dev/block") / number, missing);
  if (missing) return {};
  return fs::exists(block / "partition") ? block.parent_path() : block;
}

std::string disk_name(const fs::path& disk) {
  std::string model = first_line(disk / "device/model");
  std::error_code missing;
  if (model.empty()) model = fs::canonical(disk / "device/driver", missing).filename();
  return disk.filename().string() + (model.empty() ? "" : " (" + model + ")");
}

// The one in brackets: "[none] mq-deadline".
std::string scheduler(const fs::path& disk) {
  const std::string line = first_line(disk / "queue/scheduler");
  const std::size_t from = line.find('['), to = line.find(']');
  return from < to && to != std::string::npos ? line.substr(from + 1, to - from - 1) : line;
}

std::string now() {
  const time_t seconds = ::time(nullptr);
  tm utc{};
  (void)::gmtime_r(&seconds, &utc);
  char text[32];
  return {text, ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

// For all processors since boot, including time stolen by the hypervisor.
double busy_seconds() {
  std::ifstream in("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  in >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  return (user + nice + system + irq + softirq + steal) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Of this process and its children that have ended.
double own_seconds() {
  rusage children{};
  (void)::getrusage(RUSAGE_CHILDREN, &children);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return process_cpu_seconds() + seconds(children.ru_utime) + seconds(children.ru_stime);
}

}  // namespace

OthersMeter::OthersMeter()
    : busy_(busy_seconds()), own_(own_seconds()), begin_(std::chrono::steady_clock::now()) {}

double OthersMeter::cores() const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const double others = (busy_seconds() - busy_) - (own_seconds() - own_);
  return seconds > 0 && others > 0 ? others / seconds : 0;
}

Machine machine_of(const fs::path& directory) {
  Machine machine;
  machine.cpu = cpuinfo("model name");
  machine.cores = std::thread::hardware_concurrency();
  machine.memory_bytes = memory_line("MemTotal");
  utsname system{};
  if (::uname(&system) == 0)
    machine.kernel = std::string(system.sysname) + " " + system.release + " " + system.machine;
  machine.virtualisation = virtualisation();
  const Mount mount = mount_of(directory);
  if (!mount.type.empty()) machine.file_system = mount.type + " (" + mount.options + ")";
  if (const fs::path disk = disk_of(directory, mount); !disk.empty()) {
    machine.disk = disk_name(disk);
    const std::string rotational = first_line(disk / "queue/rotational");
    machine.rotational = rotational.empty() ? "" : rotational == "0" ? "no" : "yes";
    machine.scheduler = scheduler(disk);
  }
  machine.date = now();
  machine.commit = kCommit;
  return machine;
}

nlohmann::ordered_json json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel},
          {"virtualisation", machine.virtualisation},
          {"file_system", machine.file_system},
          {"disk", machine.disk},
          {"rotational", machine.rotational},
          {"scheduler", machine.scheduler},
          {"date", machine.date},
          {"commit", machine.commit}};
}

std::string text_of(const Machine& machine) {
  const auto known = [](const std::string& text) { return text.empty() ? "unknown" : text; };
  return known(machine.cpu) + ", " + std::to_string(machine.cores) + " cores, " +
         std::to_string(machine.memory_bytes >> 30) + " GiB, " + known(machine.kernel) +
         (machine.virtualisation.empty() ? "" : ", under " + machine.virtualisation) + "\n" +
         known(machine.disk) + ", scheduler " + known(machine.scheduler) + ", " + known(machine.file_system) +
         "; commit " + machine.commit + ", " + machine.date + "\n";
}

}  // namespace sluice::bench
