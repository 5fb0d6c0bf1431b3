// SPDX-License-Identifier: MIT
// sluice unpause PID: resumes the GPU queues of a process whose dump was killed. The work is in
// kfd/unpause.h; this prints, also what else keeps the process from running.
#include "kfd/unpause.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/commands.h"
#include "cli/process_state.h"
#include "proc/task_status.h"

namespace sluice::cli {
namespace {

using kfd::UnpauseReport;
using kfd::UnpauseStatus;

struct UnpauseArguments {
  int pid = 0;
  bool json = false;
};

// The name of a status, and the command's exit code.
struct Meaning {
  const char* result;
  const char* reason;  // "" if the result says everything
  ExitCode exit_code;
};

Meaning meaning_of(UnpauseStatus status) {
  switch (status) {
    case UnpauseStatus::Unpaused:
      return {"unpaused", "", ExitCode::Done};
    case UnpauseStatus::NotPaused:
      return {"not-paused", "", ExitCode::Done};
    case UnpauseStatus::NoKfd:
      return {"refused", "no-kfd", ExitCode::Refused};
    case UnpauseStatus::NoSuchProcess:
      return {"refused", "no-such-process", ExitCode::Refused};
    case UnpauseStatus::NotLeadThread:
      return {"refused", "not-lead-thread", ExitCode::Refused};
    case UnpauseStatus::Ended:
      return {"refused", "ended", ExitCode::Refused};
    case UnpauseStatus::NotGpuProcess:
      return {"refused", "not-gpu-process", ExitCode::Refused};
    case UnpauseStatus::Traced:
      return {"refused", "traced", ExitCode::Refused};
    case UnpauseStatus::InheritedFiles:
      return {"refused", "inherited-files", ExitCode::Refused};
    case UnpauseStatus::NotPermitted:
      return {"failed", "not-permitted", ExitCode::Failed};
    case UnpauseStatus::KernelError:
      break;
  }
  return {"failed", "kernel-error", ExitCode::Failed};
}

const char* word_of(Parasite parasite) {
  switch (parasite) {
    case Parasite::Mapped:
      return "mapped";
    case Parasite::Running:
      return "running";
    case Parasite::None:
      break;
  }
  return "none";
}

// A word for the user's shell: the process chose its own name.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : printable(text)) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// Further notes for the user: full sentences.
std::vector<std::string> notes_on(pid_t pid, UnpauseStatus status, const ProcessState& state) {
  std::vector<std::string> notes;
  if (state.frozen) {
    notes.push_back("its cgroup is frozen, so its threads are paused; to let them run: echo " +
                    state.frozen->thaw + " > " + quoted(state.frozen->file));
  }
  if (state.stopped > 0) {
    notes.push_back(std::to_string(state.stopped) + " of its " + std::to_string(state.threads) +
                    " threads are stopped by a signal; to let them run: kill -CONT " + std::to_string(pid));
  }
  if (state.parasite == Parasite::Running) {
    notes.emplace_back(
        "its lead thread is in criu's own code; it leaves that by itself once criu is gone: if it is still "
        "there in a second, the process cannot be saved");
  }
  if (state.parasite == Parasite::Mapped) {
    notes.emplace_back("criu's code is left in its memory (memfd:CRIUMFD) and not executed: it does no harm");
  }
  if (status == UnpauseStatus::NotPaused) {
    notes.emplace_back(
        "if its GPU work does not go on all the same: was it dumped again after a killed dump, without an "
        "unpause between them? Before Linux 7.3 nothing but ending the process helps then");
  }
  return notes;
}

void print_as_json(const UnpauseArguments& arguments, const std::string& name, const UnpauseReport& report,
                   const ProcessState& state, const std::vector<std::string>& notes) {
  const Meaning meaning = meaning_of(report.status);
  nlohmann::ordered_json object = {{"command", "unpause"},
                                   {"pid", arguments.pid},
                                   {"name", name},
                                   {"result", meaning.result},
                                   {"reason", meaning.reason},
                                   {"error", nullptr},
                                   {"message", report.what},
                                   {"remedy", report.remedy},
                                   {"kfd_descriptors", report.descriptors},
                                   {"threads", state.threads},
                                   {"stopped_threads", state.stopped},
                                   {"criu_code", word_of(state.parasite)},
                                   {"frozen_cgroup", nullptr},
                                   {"notes", notes}};
  if (report.err != 0) {
    const char* error_name = strerrorname_np(report.err);
    object["error"] = error_name != nullptr ? error_name : std::to_string(report.err);
  }
  if (state.frozen) object["frozen_cgroup"] = {{"file", state.frozen->file}, {"thaw", state.frozen->thaw}};
  print_json(object);
}

void print_as_text(const UnpauseArguments& arguments, const std::string& name, const UnpauseReport& report,
                   const std::vector<std::string>& notes) {
  const bool good = meaning_of(report.status).exit_code == ExitCode::Done;
  std::FILE* out = good ? stdout : stderr;
  std::string text;
  if (good) {
    text = "process " + std::to_string(arguments.pid) + " (" + name + "): ";
    text += report.status == UnpauseStatus::Unpaused
                ? "its GPU queues run again"
                : "nothing to do, because no dump left its GPU queues paused";
  } else {
    text = "sluice unpause: " + report.what;
  }
  text += '\n';
  if (!report.remedy.empty()) text += "  " + report.remedy + '\n';
  for (const std::string& note : notes) text += "note: " + note + '\n';
  (void)std::fputs(text.c_str(), out);
}

ExitCode unpause(const UnpauseArguments& arguments) {
  // Before attaching: afterwards /proc shows our own tracing.
  const auto task = proc::read_task_status("/proc/" + std::to_string(arguments.pid));
  const ProcessState state = read_process_state(arguments.pid);
  const UnpauseReport report = kfd::unpause_left_paused(arguments.pid);

  const std::string name = task ? task->name : "";
  const ExitCode exit_code = meaning_of(report.status).exit_code;
  // For a process that we must not touch only the reason matters.
  const auto notes = exit_code == ExitCode::Refused ? std::vector<std::string>()
                                                    : notes_on(arguments.pid, report.status, state);
  if (arguments.json) {
    print_as_json(arguments, name, report, state, notes);
  } else {
    print_as_text(arguments, name, report, notes);
  }
  return exit_code;
}

}  // namespace

void add_unpause(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<UnpauseArguments>();
  CLI::App* command =
      app.add_subcommand("unpause", "Let a process' GPU queues run again after its dump was killed");
  command->add_option("PID", arguments->pid, "the process, as this pid namespace numbers it")
      ->required()
      ->type_name("")
      ->check(process_number());
  add_json_flag(*command, arguments->json);
  command->footer(
      "Leaves a process alone that a dump or a debugger traces, or whose queues no\n"
      "dump has paused. Needs root on the host: CAP_SYS_PTRACE, and\n"
      "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the initial user namespace.\n\n"
      "Example: sluice unpause 4242\n\n"
      "Exit status: 0 its queues run, or were not paused, 1 failed, 2 wrong usage,\n"
      "3 refused: the process was left alone.");
  command->callback([arguments, &run] { run = [arguments] { return unpause(*arguments); }; });
}

}  // namespace sluice::cli
