// SPDX-License-Identifier: MIT
// sluice predump PID: the plugin's part of `criu pre-dump`, without CRIU. For machines whose kernel cannot
// track memory, and for use before any dump. The files go into a directory of their own, or beside CRIU's: a
// dump has one parent.
#include "plugin/predump/predump.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "base/format.h"
#include "base/printable.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/predump/held_tree.h"
#include "cli/text.h"
#include "images/files/cause.h"
#include "images/files/directory_lock.h"
#include "images/files/files.h"
#include "kfd/device.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/held_signals.h"
#include "plugin/host/image_store.h"
#include "proc/processes.h"
#include "proc/task_status.h"
#include "settings/config.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct PreDumpArguments {
  int pid = 0;
  std::string images_dir = ".";
  std::string prev_images_dir;
  bool replace = false;
  bool json = false;
};

// The result. Times in nanoseconds.
struct Outcome {
  ExitCode exit_code = ExitCode::Failed;
  std::string message, remedy;   // of a failure
  std::uint64_t frozen_ns = 0;   // GPU queues
  std::uint64_t stopped_ns = 0;  // threads
  std::uint64_t whole_ns = 0;
  std::uint64_t bytes = 0, written_bytes = 0, skipped_bytes = 0;
  std::uint32_t stops = 0;
};

std::string with_id(const std::string& message) {
  return has_id(message) ? message : message + " [SL-T49]";
}

std::string remedy_for(const std::string& message) {
  const std::string known = remedy_in(message);
  return known.empty() ? "mend what the message names and try again, or dump without a pre-dump" : known;
}

Outcome refused(const std::string& message) {
  return {.exit_code = ExitCode::Refused, .message = with_id(message), .remedy = remedy_for(message)};
}

Outcome failed(const Error& error) {
  return {.exit_code = ExitCode::Failed, .message = with_id(error.what), .remedy = remedy_for(error.what)};
}

std::uint64_t ns_since(Clock::time_point began) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - began).count());
}

// A dump refuses any other directory as its parent.
Result<UniqueFd> open_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return make_error(errno, "make the directory " + printable(path));
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0)
    return make_error(errno, "open the directory " + printable(path));
  if (status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return directory;
  return Error{
      EACCES,
      formatted("{} belongs to another user, or others may write there; use a directory of your own [SL-T44]",
                printable(path))};
}

// As CRIU makes it. An existing link that leads to the same directory is as good. Whether it is new.
Result<bool> link_parent(int directory, const std::string& to) {
  if (to.empty()) return false;
  if (::symlinkat(to.c_str(), directory, kParentLink) == 0) return true;
  if (errno != EEXIST) return make_error(errno, "make the link named parent");
  std::array<char, PATH_MAX> old{};
  const ssize_t length = ::readlinkat(directory, kParentLink, old.data(), old.size());
  if (length < 0 || to != std::string_view(old.data(), static_cast<std::size_t>(length)))
    return Error{EEXIST, "the directory has another parent already; use a new directory [SL-T45]"};
  if (::utimensat(directory, kParentLink, nullptr, AT_SYMLINK_NOFOLLOW) == 0) return false;
  return make_error(errno, "take the link named parent for this pre-dump's");
}

// A pre-dump removes the images of a dump, and those of an older pre-dump.
Result<void> check_replaceable(int directory, const std::string& path) {
  SLUICE_TRY_ASSIGN(const std::vector<std::string> kfd, list_kfd_images(directory));
  SLUICE_TRY_ASSIGN(const std::vector<std::string> render, list_render_images(directory));
  if (!kfd.empty() || !render.empty()) {
    return Error{EEXIST, formatted("{} has the images of a dump, which a pre-dump would remove; name another "
                                   "directory, or add --replace [SL-T54]",
                                   printable(path))};
  }
  if (::faccessat(directory, kPreDumpMark, F_OK, AT_SYMLINK_NOFOLLOW) != 0) return {};
  return Error{EEXIST, formatted("{} has a pre-dump, which other checkpoints may need; name another "
                                 "directory, or add --replace [SL-T75]",
                                 printable(path))};
}

// A descriptor per BO, as CRIU has them.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;  // unreached: does not fail
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

// Before anything is stopped. Later steps report a process that cannot be examined.
bool uses_gpus(pid_t pid, const plugin::PreDump& predump) {
  auto processes = proc::descendants(pid);
  if (!processes) return true;  // unreached: a race
  processes->push_back(pid);
  return std::any_of(processes->begin(), processes->end(), [&](pid_t process) {
    const auto files = predump.tree().has_files(process);
    return !files || *files;
  });
}

// From the first stopped thread until the last runs again, whose time is added to `stopped_ns`.
Result<void> take(pid_t pid, plugin::PreDump& predump, std::uint64_t& stopped_ns) {
  const auto began = Clock::now();
  const Result<void> taken = [&]() -> Result<void> {
    HeldTree tree;
    SLUICE_TRY(tree.hold(pid));
    if (predump.shares() > 0) return predump.begin_share(tree.processes());
    for (const pid_t process : tree.processes()) predump.tree().add(process);
    Result<void> begun = predump.begin();
    if (predump.queues_stand()) predump.cancel();  // retries UNPAUSE while the processes are traced
    return begun;
  }();
  stopped_ns += ns_since(began);
  return taken;
}

Outcome copy(const PreDumpArguments& arguments, plugin::PreDump& predump) {
  const auto without_gpus = [&arguments] {
    return refused(formatted(
        "process {} and its descendants have no open /dev/kfd and no render node of its GPUs; name the "
        "process that uses the GPU [SL-T50]",
        arguments.pid));
  };
  if (!uses_gpus(arguments.pid, predump)) return without_gpus();
  plugin::HeldSignals signals(predump.stopped());
  const plugin::HeldSignals::InHook hook(signals);
  const auto began = Clock::now();
  Outcome outcome;
  const auto next_share = [&] { return take(arguments.pid, predump, outcome.stopped_ns); };
  const Result<void> begun = next_share();
  if (!begun && (begun.error().err == ESRCH || begun.error().err == EPERM))
    return refused(begun.error().what);
  if (!begun) return failed(begun.error());
  if (!predump.any_contents()) return without_gpus();  // unreached: a race
  if (const auto finished = predump.finish(next_share); !finished) return failed(finished.error());
  outcome.exit_code = ExitCode::Done;
  outcome.frozen_ns = predump.frozen_ns();
  outcome.whole_ns = ns_since(began);
  outcome.bytes = predump.totals().bytes;
  outcome.written_bytes = predump.totals().io_bytes;
  outcome.skipped_bytes = predump.totals().skipped_bytes;
  outcome.stops = predump.shares();
  return outcome;
}

Outcome run_predump(const PreDumpArguments& arguments) {
  const auto kfd_device = kfd::kfd_device_number();
  if (!kfd_device)
    return refused(
        "this machine has no /dev/kfd, so no process uses an AMD GPU; load the amdgpu driver [SL-T51]");
  const auto status = proc::read_task_status("/proc/" + std::to_string(arguments.pid));
  if (!status)
    return refused(
        formatted("there is no process {}; give its id in this pid namespace [SL-T52]", arguments.pid));
  if (status->tgid != arguments.pid) {
    return refused(
        formatted("{} is a thread of process {}; name the process [SL-T53]", arguments.pid, status->tgid));
  }
  const auto directory = open_directory(arguments.images_dir);
  if (!directory) return refused(directory.error().what);
  const auto lock = DirectoryLock::take(directory->get());
  if (!lock) return refused(lock.error().what);
  if (!arguments.replace) {
    const auto replaceable = check_replaceable(directory->get(), arguments.images_dir);
    if (!replaceable) return refused(replaceable.error().what);
  }
  const auto linked = link_parent(directory->get(), arguments.prev_images_dir);
  if (!linked) return refused(linked.error().what);

  const settings::Config config = read_settings("predump");
  const auto store = plugin::ImageStore::of_directory([fd = directory->get()] { return fd; });
  plugin::PreDump predump(*store, *kfd_device, plugin::PreDump::Shares::Many);
  Result<void> ready = predump.read_machine();
  if (ready) ready = predump.prepare(config);
  if (!ready) return failed(ready.error());
  const auto looked = predump.look_for_parent();
  if (!looked && *linked) (void)::unlinkat(directory->get(), kParentLink, 0);
  return looked ? copy(arguments, predump) : refused(looked.error().what);
}

void print_as_json(const PreDumpArguments& arguments, const Outcome& outcome) {
  const char* const result = outcome.exit_code == ExitCode::Done      ? "done"
                             : outcome.exit_code == ExitCode::Refused ? "refused"
                                                                      : "failed";
  print_json({{"command", "predump"},
              {"pid", arguments.pid},
              {"images_dir", arguments.images_dir},
              {"result", result},
              {"message", outcome.message},
              {"remedy", outcome.remedy},
              {"frozen_ns", outcome.frozen_ns},
              {"stopped_ns", outcome.stopped_ns},
              {"whole_ns", outcome.whole_ns},
              {"bytes", outcome.bytes},
              {"written_bytes", outcome.written_bytes},
              {"skipped_bytes", outcome.skipped_bytes},
              {"stops", outcome.stops}});
}

// A relative path, because both directories may move and tasks of CRIU before 4.2 follow no other one.
std::string from_beside(const std::string& directory) {
  std::error_code unknown;
  const std::filesystem::path path =
      std::filesystem::weakly_canonical(std::filesystem::absolute(directory), unknown);
  return unknown ? directory : "../" + path.filename().string();
}

void print_as_text(const PreDumpArguments& arguments, const Outcome& outcome) {
  if (outcome.exit_code != ExitCode::Done) {
    (void)std::fprintf(stderr, "sluice predump: %s\n", outcome.message.c_str());
    if (outcome.message.find(outcome.remedy) == std::string::npos)
      (void)std::fprintf(stderr, "  %s\n", outcome.remedy.c_str());
    return;
  }
  constexpr double kNsPerMs = 1e6;
  const double seconds = static_cast<double>(outcome.whole_ns) / 1e9;
  (void)std::printf(
      "process %d: %s in its GPUs, %s written in %.2f s\n"
      "  its threads were paused for %.1f ms, its GPU queues for %.1f ms\n"
      "  now: criu dump -t %d -D DIR --prev-images-dir %s, with DIR beside it\n",
      arguments.pid, bytes_text(outcome.bytes).c_str(), bytes_text(outcome.written_bytes).c_str(), seconds,
      static_cast<double>(outcome.stopped_ns) / kNsPerMs, static_cast<double>(outcome.frozen_ns) / kNsPerMs,
      arguments.pid, shell_word(from_beside(arguments.images_dir)).c_str());
}

ExitCode predump(const PreDumpArguments& arguments) {
  plugin::log_without_host("sluice predump", Level::Warning);
  raise_descriptor_limit();
  const Outcome outcome = run_predump(arguments);
  if (arguments.json) {
    print_as_json(arguments, outcome);
  } else {
    print_as_text(arguments, outcome);
  }
  return outcome.exit_code;
}

}  // namespace

void add_predump(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<PreDumpArguments>();
  CLI::App* command = app.add_subcommand("predump", "Copy what a process has in its GPUs while it runs");
  command->add_option("PID", arguments->pid, "the root of the processes that are dumped afterwards")
      ->required()
      ->type_name("")
      ->check(process_number());
  command->add_option("--images-dir", arguments->images_dir, "where the files go; by default here")
      ->type_name("DIR");
  command
      ->add_option("--prev-images-dir", arguments->prev_images_dir,
                   "an older pre-dump or dump, seen from the files' directory")
      ->type_name("DIR");
  command->add_flag("--replace", arguments->replace, "remove a pre-dump or a dump that is there");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Stops the process and its descendants for some milliseconds, on a full GPU once\n"
      "for each share that its free memory has room for. The directory is then what\n"
      "criu's --prev-images-dir names, and may be that of a criu pre-dump.\n"
      "What an older one has is not written again. SLUICE_PREDUMP_RATE bounds what is\n"
      "taken of a GPU's link. Needs root on the host.\n\n"
      "Example: sluice predump 4242 --images-dir /ckpt/before\n"
      "         criu dump -t 4242 -D /ckpt/now --prev-images-dir ../before\n\n"
      "Exit status: 0 done, 1 failed: no files are left, 2 wrong usage, 3 it is no\n"
      "process or no directory that may be touched, and was not.");
  command->callback([arguments, &run] { run = [arguments] { return predump(*arguments); }; });
}

}  // namespace sluice::cli
