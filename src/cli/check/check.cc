// SPDX-License-Identifier: MIT
// sluice check: will a dump of this process, on this machine, into this directory work? Like criu check, for
// GPUs.
#include "cli/check/check.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "cli/check/check_parent.h"
#include "cli/check/report.h"
#include "cli/commands.h"
#include "cli/plan/plan.h"
#include "cli/text.h"
#include "images/files/key.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckArguments {
  std::string directory;
  int pid = 0;          // 0: none
  std::string parent;   // of the bytes written; empty: none
  std::string machine;  // a description, as for `sluice plan`
  bool json = false;
  bool report = false;  // for somebody else, who looks for a fault
};

const char* word_of(Weight weight) {
  switch (weight) {
    case Weight::Good:
      return "good";
    case Weight::Option:
      return "option";
    case Weight::Warning:
      return "warning";
    case Weight::Problem:
      break;
  }
  return "problem";
}

void append(Findings& all, Findings more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

std::string text_of(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    const char* mark = finding.weight == Weight::Good      ? "  "
                       : finding.weight == Weight::Option  ? "+ "
                       : finding.weight == Weight::Warning ? "! "
                                                           : "X ";
    const bool named = !finding.code.empty() && finding.code != finding.subject;
    text += broken_line(mark + finding.subject + (named ? " (" + finding.code + ")" : "") + ": " +
                        printable(finding.text));
    if (!finding.remedy.empty()) text += broken_line("    " + finding.remedy);
  }
  return text;
}

// As the link in the new directory has to be: both may be moved with a relative path.
std::string parent_of(const CheckArguments& arguments) {
  if (arguments.directory.empty()) return arguments.parent;
  std::error_code unknown;
  const std::filesystem::path from =
      std::filesystem::weakly_canonical(std::filesystem::absolute(arguments.directory), unknown);
  const std::filesystem::path to =
      std::filesystem::weakly_canonical(std::filesystem::absolute(arguments.parent), unknown);
  const std::filesystem::path way = to.lexically_relative(from);
  return unknown || way.empty() ? arguments.parent : way.string();
}

// The command that dumps it, as separate words.
std::vector<std::string> dump_command(const std::string& criu, const CheckArguments& arguments,
                                      const std::vector<std::string>& options) {
  std::vector<std::string> words = {criu, "dump",
                                    "-t", std::to_string(arguments.pid),
                                    "-D", arguments.directory.empty() ? "DIR" : arguments.directory};
  if (!arguments.parent.empty()) {
    words.insert(words.end(), {"--track-mem", "--prev-images-dir", parent_of(arguments)});
  }
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

std::string text_of(const std::vector<std::string>& command) {
  if (command.empty()) return "";
  std::string text = "  command:";
  for (const std::string& word : command) text += " " + shell_word(word);
  return text + '\n';
}

// The findings, and the conclusions.
struct Outcome {
  Findings findings;
  std::optional<std::uint64_t> bytes;  // of GPU memory
  std::vector<std::string> command;    // dumps it
  ParentCheck parent;
  std::chrono::duration<double> took{};

  std::size_t count(Weight weight) const {
    return static_cast<std::size_t>(
        std::count_if(findings.begin(), findings.end(),
                      [weight](const Finding& finding) { return finding.weight == weight; }));
  }
};

Outcome look(const CheckArguments& arguments, const std::optional<cli::Machine>& machine) {
  const auto began = std::chrono::steady_clock::now();
  LogLines warnings;
  const settings::Config config =
      settings::parse_config(settings::environment_and_file(settings::kConfigFile, warnings), warnings);
  const ImageKeys keys(settings::read_key(config));
  CriuQuestion criu;
  const CriuBinary binary = criu.binary();
  Outcome all;
  for (const LogLine& line : warnings)
    all.findings.push_back({Weight::Warning, "settings", line.text, "see docs/user/configuration.md"});
  PluginCheck plugin = check_plugin(binary);
  all.findings.push_back(std::move(plugin.finding));
  GpuCheck gpus = check_gpus();
  append(all.findings, std::move(gpus.findings));
  append(all.findings, check_host(config, keys, gpus.topology ? gpus.topology->gpu_count() : 0));
  CriuQuestion::Answer answer = criu.answer(binary);
  if (arguments.pid != 0) {
    ProcessCheck processes =
        check_processes(arguments.pid, gpus.topology, {answer.version, binary.has_libbpf, plugin.others});
    append(all.findings, std::move(processes.findings));
    all.bytes = processes.bytes;
    if (!arguments.parent.empty()) {
      all.parent =
          check_parent({arguments.parent, processes, gpus.topology, answer.version, config, keys, machine});
      append(all.findings, std::move(all.parent.findings));
    }
    all.command = dump_command(criu.name(), arguments, processes.options);
  }
  if (!arguments.directory.empty()) append(all.findings, check_directory(arguments.directory, all.bytes));
  all.findings.insert(all.findings.begin(), std::move(answer.finding));
  if (all.count(Weight::Problem) > 0) all.command.clear();
  all.took = std::chrono::steady_clock::now() - began;
  return all;
}

Json json_of(const Outcome& all) {
  Json list = Json::array();
  for (const Finding& finding : all.findings) {
    list.push_back({{"weight", word_of(finding.weight)},
                    {"subject", finding.subject},
                    {"text", finding.text},
                    {"remedy", finding.remedy},
                    {"code", finding.code.empty() ? finding.subject : finding.code}});
  }
  const std::size_t problems = all.count(Weight::Problem);
  return {{"command", "check"},
          {"result", problems == 0 ? "works" : "refused"},
          {"problems", problems},
          {"warnings", all.count(Weight::Warning)},
          {"gpu_bytes", all.bytes ? Json(*all.bytes) : Json()},
          {"parent", all.parent.json ? *all.parent.json : Json()},
          {"criu_command", all.command.empty() ? Json() : Json(all.command)},
          {"seconds", all.took.count()},
          {"findings", std::move(list)}};
}

std::string text_of(const Outcome& all) {
  const std::size_t problems = all.count(Weight::Problem);
  const std::size_t notes = all.count(Weight::Warning);
  std::string text = text_of(all.findings) + text_of(all.command);
  text += problems > 0                    ? "A dump will NOT work: " + count_text(problems, "problem")
          : all.count(Weight::Option) > 0 ? "A dump will work with the command above"
                                          : "A dump will work";
  if (notes > 0) text += (problems == 0 ? ", with " : ", ") + count_text(notes, "warning");
  return text + "\n";
}

ExitCode check(const CheckArguments& arguments) {
  std::optional<cli::Machine> machine;
  if (!arguments.machine.empty()) {
    auto described = read_machine(arguments.machine);
    if (!described) return refuse_machine("check", arguments.json, described.error());
    machine = std::move(*described);
  }
  const Outcome all = look(arguments, machine);
  if (arguments.report) {
    (void)std::fputs(report_text(text_of(all), arguments.directory).c_str(), stdout);
    return ExitCode::Done;
  }
  if (arguments.json) {
    print_json(json_of(all));
  } else {
    (void)std::fputs(text_of(all).c_str(), stdout);
  }
  return all.count(Weight::Problem) == 0 ? ExitCode::Done : ExitCode::Refused;
}

}  // namespace

void add_check(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command =
      app.add_subcommand("check", "Whether a dump will work here, and what to do if it will not");
  command->add_option("--dir", arguments->directory, "where the images would go")->type_name("DIR");
  command->add_option("--pid", arguments->pid, "the process that would be dumped, with its children")
      ->type_name("PID")
      ->check(process_number());
  CLI::Option* const pid = command->get_option("--pid");
  CLI::Option* const parent =
      command->add_option("--parent", arguments->parent, "the checkpoint that the dump would build on")
          ->type_name("DIR")
          ->needs(pid);
  command->add_option("--machine", arguments->machine, "rates, to predict how long the job is paused")
      ->type_name("FILE")
      ->needs(parent);
  add_json_flag(*command, arguments->json);
  command->add_flag("--report", arguments->report, "print what a report of a fault needs, and no memory")
      ->excludes("--json");
  command->footer(
      "Only looks: writes nothing, stops nothing, opens nothing for writing. Without\n"
      "options it looks at the machine alone. Lines with X make a dump fail, lines with\n"
      "+ need the criu option in the line below, lines with ! make it slower or less\n"
      "safe; the line below says what to do. With --pid it prints the command that\n"
      "dumps the process. sluice-bench measures how fast the disk is.\n\n"
      "With --parent it predicts what a dump on that checkpoint would write, as far as\n"
      "buffers show: only the checksums of a dump show what changed in them. --machine\n"
      "is a description as sluice plan takes it.\n\n"
      "--report adds versions, settings, topology, and lines of the logs in --dir, for\n"
      "somebody else to read. It may name processes and files.\n\n"
      "Example: sluice check --dir /var/lib/checkpoints/job --pid 4242\n\n"
      "Exit status: 0 a dump will work, or --report, 1 FILE describes no machine,\n"
      "2 wrong usage, 3 it will not work.");
  command->callback([arguments, &run] { run = [arguments] { return check(*arguments); }; });
}

}  // namespace sluice::cli
