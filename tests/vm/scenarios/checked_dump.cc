// SPDX-License-Identifier: MIT
#include "checked_dump.h"

#include <signal.h>

#include <algorithm>
#include <set>

namespace sluice::vm_test {
namespace {

using nlohmann::json;

// All that check ever asks for, and that needs no number.
const Strings& every_option() {
  static const Strings options = {"--shell-job",  "--tcp-established", "--skip-in-flight", "--file-locks",
                                  "--link-remap", "--ext-unix-sk",     "--ghost-limit",    "64M"};
  return options;
}

std::string joined(const Strings& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// The command's options, each with its argument, from the first after -D DIR on.
std::vector<Strings> options_of(const Strings& command) {
  constexpr std::size_t kBefore = 6;  // criu dump -t PID -D DIR
  std::vector<Strings> options;
  for (std::size_t i = kBefore; i < command.size(); ++i) {
    if (command[i].starts_with("--")) {
      options.push_back({command[i]});
    } else {
      options.back().push_back(command[i]);
    }
  }
  return options;
}

}  // namespace

void CheckedDump::SetUp() {
  Scenario::SetUp();
  load({.number = 1, .vram_mib = 16});
}

bool CheckedDump::start(const std::string& things, Launch launch) {
  subject_.emplace(scratch() / "subject");
  std::filesystem::create_directories(subject_->directory() / "shadow");
  Strings words = {(settings().programs / "obstacle-subject").string(), subject_->directory().string(),
                   things};
  launch.arguments.insert(launch.arguments.end(), words.begin(), words.end());
  launch.output = "/dev/null";
  subject_->adopt(vm_test::start(launch));
  const std::string ready = subject_->hear();
  if (ready.starts_with("cannot ")) {
    std::cout << ready << "\n";
    end_subject();
    return false;
  }
  EXPECT_TRUE(ready.starts_with("ready")) << things << ": " << ready;
  return true;
}

json CheckedDump::check(pid_t pid) {
  Launch launch;
  launch.arguments = {(settings().programs / "sluice").string(),
                      "check",
                      "--json",
                      "--pid",
                      std::to_string(pid),
                      "--dir",
                      images().string()};
  launch.output = scratch() / "check.json";
  launch.prepare = criu_->prepare;
  std::filesystem::remove(launch.output);
  const std::optional<int> status = run(launch);
  const std::string text = read_file(launch.output);
  json checked = json::parse(text, nullptr, false);
  EXPECT_FALSE(checked.is_discarded()) << text;
  if (checked.is_discarded()) return json::object();
  EXPECT_EQ(status, checked["result"] == "works" ? 0 : 3) << text;
  return checked;
}

Strings CheckedDump::codes_of(const json& checked) {
  static const std::set<std::string> subjects = {"file", "map", "socket", "process", "criu", "plugin"};
  std::set<std::string> codes;
  for (const json& one : checked.value("findings", json::array())) {
    if (one["weight"] != "good" && one["code"] != "no-gpu" && subjects.count(one["subject"]) != 0)
      codes.insert(one["code"].get<std::string>());
  }
  return {codes.begin(), codes.end()};
}

CriuRun CheckedDump::run_command(const Strings& command) {
  // The guest has no iptables.
  Strings options = {"--network-lock", criu_traits().network_lock};
  Launch launch = criu_->command("dump", images(), options);
  Strings words = command;
  const Strings ours(launch.arguments.begin() + 2, launch.arguments.end());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours[i] == "-D" || ours[i] == "-L") {
      ++i;  // the command has a directory, and its criu knows where plugins are
    } else {
      words.push_back(ours[i]);
    }
  }
  launch.arguments = words;
  CriuRun done;
  done.status = run(launch);
  done.log = read_file(criu_->last_log());
  return done;
}

void CheckedDump::end_subject() {
  subject_->kill();
  subject_.reset();
  (void)eventually([] {
    for (const pid_t pid : living_children()) kill_and_reap(pid);
    return living_children().empty();
  });
}

void CheckedDump::expect_refused(const std::string& code) {
  expect_refused(subject_->pid(), code);
}

void CheckedDump::expect_refused(pid_t pid, const std::string& code) {
  const json checked = check(pid);
  EXPECT_EQ(checked["result"], "refused") << code;
  EXPECT_EQ(checked["problems"], 1) << code << ": " << checked.dump(1);
  EXPECT_TRUE(checked["criu_command"].is_null());
  const Strings codes = codes_of(checked);
  EXPECT_NE(std::find(codes.begin(), codes.end(), code), codes.end()) << code << ": " << joined(codes);
  Strings command = {"criu", "dump", "-t", std::to_string(pid), "-D", images().string()};
  command.insert(command.end(), every_option().begin(), every_option().end());
  const CriuRun run = run_command(command);
  ASSERT_TRUE(run.status.has_value()) << code;
  EXPECT_NE(run.status, 0) << "criu dumps what check refuses: " << code;
  EXPECT_EQ(::kill(subject_->pid(), 0), 0) << code;
  end_subject();
}

void CheckedDump::expect_refused_with(const std::string& things, const std::string& code,
                                      const Launch& launch) {
  if (start(things, launch)) expect_refused(code);
}

void CheckedDump::expect_dumped(const Strings& codes) {
  const json checked = check(subject_->pid());
  EXPECT_EQ(checked["result"], "works") << checked.dump(1);
  EXPECT_EQ(codes_of(checked), codes) << checked.dump(1);
  ASSERT_TRUE(checked["criu_command"].is_array()) << checked.dump(1);
  const Strings command = checked["criu_command"].get<Strings>();
  const CriuRun run = run_command(command);
  EXPECT_EQ(run.status, 0) << "criu refuses what check lets pass: " << joined(command);
  if (run.good()) {
    EXPECT_TRUE(subject_->reap_dumped()) << "the dumped process still runs";
    subject_->forget();
  }
  end_subject();
}

void CheckedDump::expect_dumped_with(const std::string& things, const Strings& codes, const Launch& launch) {
  SCOPED_TRACE(things);
  if (start(things, launch)) expect_dumped(codes);
}

void CheckedDump::expect_each_option_needed(const Strings& codes) {
  const json checked = check(subject_->pid());
  ASSERT_TRUE(checked["criu_command"].is_array()) << checked.dump(1);
  const Strings command = checked["criu_command"].get<Strings>();
  const std::vector<Strings> options = options_of(command);
  EXPECT_FALSE(options.empty());
  for (std::size_t without = 0; without < options.size(); ++without) {
    Strings fewer(command.begin(), command.begin() + 6);
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (i != without) fewer.insert(fewer.end(), options[i].begin(), options[i].end());
    }
    const CriuRun run = run_command(fewer);
    EXPECT_TRUE(run.status.has_value());
    EXPECT_FALSE(run.good()) << "criu needs no " << joined(options[without]);
    ASSERT_TRUE(subject_->alive()) << joined(options[without]);
  }
  expect_dumped(codes);
}

}  // namespace sluice::vm_test
