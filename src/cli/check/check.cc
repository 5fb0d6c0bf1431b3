// SPDX-License-Identifier: MIT
// sluice check: will a dump on this machine, of this process, into this directory work? Like criu check, for
// GPUs.
#include "cli/check/check.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "images/key.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckArguments {
  std::string directory;
  int pid = 0;  // 0: none
  bool json = false;
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
    text += mark + finding.subject + ": " + printable(finding.text) + '\n';
    if (!finding.remedy.empty()) text += "    " + finding.remedy + '\n';
  }
  return text;
}

// The command that dumps it, word by word.
std::vector<std::string> dump_command(const std::string& criu, const CheckArguments& arguments,
                                      const std::vector<std::string>& options) {
  std::vector<std::string> words = {criu, "dump",
                                    "-t", std::to_string(arguments.pid),
                                    "-D", arguments.directory.empty() ? "DIR" : arguments.directory};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

std::string text_of(const std::vector<std::string>& command) {
  if (command.empty()) return "";
  std::string text = "  command:";
  for (const std::string& word : command) text += " " + shell_word(word);
  return text + '\n';
}

ExitCode check(const CheckArguments& arguments) {
  const auto began = std::chrono::steady_clock::now();
  LogLines warnings;
  const plugin::Config config =
      plugin::parse_config(plugin::environment_and_file(plugin::kConfigFile, warnings), warnings);
  use_image_key(plugin::read_key(config));
  CriuQuestion criu;
  const CriuBinary binary = criu.binary();
  Findings findings;
  for (const LogLine& line : warnings)
    findings.push_back({Weight::Warning, "settings", line.text, "see docs/configuration.md"});
  PluginCheck plugin = check_plugin(binary);
  findings.push_back(std::move(plugin.finding));
  GpuCheck gpus = check_gpus();
  append(findings, std::move(gpus.findings));
  append(findings, check_host(config));
  CriuQuestion::Answer answer = criu.answer(binary);
  std::optional<std::uint64_t> bytes;
  std::vector<std::string> command;
  if (arguments.pid != 0) {
    ProcessCheck processes =
        check_processes(arguments.pid, gpus.topology, {answer.version, binary.has_libbpf, plugin.others});
    append(findings, std::move(processes.findings));
    bytes = processes.bytes;
    command = dump_command(criu.name(), arguments, processes.options);
  }
  if (!arguments.directory.empty()) append(findings, check_directory(arguments.directory, bytes));
  findings.insert(findings.begin(), std::move(answer.finding));

  std::size_t problems = 0;
  std::size_t notes = 0;
  for (const Finding& finding : findings) {
    problems += finding.weight == Weight::Problem ? 1 : 0;
    notes += finding.weight == Weight::Warning ? 1 : 0;
  }
  if (problems > 0) command.clear();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (arguments.json) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      list.push_back({{"weight", word_of(finding.weight)},
                      {"subject", finding.subject},
                      {"text", finding.text},
                      {"remedy", finding.remedy},
                      {"code", finding.code.empty() ? finding.subject : finding.code}});
    }
    print_json({{"command", "check"},
                {"result", problems == 0 ? "works" : "refused"},
                {"problems", problems},
                {"warnings", notes},
                {"gpu_bytes", bytes ? Json(*bytes) : Json()},
                {"criu_command", command.empty() ? Json() : Json(command)},
                {"seconds", took.count()},
                {"findings", std::move(list)}});
  } else {
    std::string text = text_of(findings) + text_of(command);
    const bool needs_options = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.weight == Weight::Option;
    });
    text += problems > 0    ? "A dump will NOT work: " + count_text(problems, "problem")
            : needs_options ? "A dump will work with the command above"
                            : "A dump will work";
    if (notes > 0)
      text += problems == 0 ? ", with " + count_text(notes, "warning") : ", " + count_text(notes, "warning");
    (void)std::fputs((text + "\n").c_str(), stdout);
  }
  return problems == 0 ? ExitCode::Done : ExitCode::Refused;
}

}  // namespace

void add_check(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command =
      app.add_subcommand("check", "Whether a dump will work here, and what to do where it will not");
  command->add_option("--dir", arguments->directory, "where the images would go")->type_name("DIR");
  command->add_option("--pid", arguments->pid, "the process that would be dumped, with its children")
      ->type_name("PID")
      ->check(process_number());
  add_json_flag(*command, arguments->json);
  command->footer(
      "Looks only: writes nothing, stops nothing, opens nothing for writing. Without\n"
      "options only the machine is looked at. Lines with X make a dump fail, lines with\n"
      "+ need the option of criu that is named below, lines with ! make it slower or\n"
      "less safe; the line below says what to do. With --pid the command that dumps the\n"
      "process is printed. How fast the disk is, sluice-bench measures.\n\n"
      "Example: sluice check --dir /var/lib/checkpoints/job --pid 4242\n\n"
      "Exit status: 0 a dump will work, 2 wrong usage, 3 it will not.");
  command->callback([arguments, &run] { run = [arguments] { return check(*arguments); }; });
}

}  // namespace sluice::cli
