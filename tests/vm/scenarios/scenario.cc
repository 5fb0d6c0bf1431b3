// SPDX-License-Identifier: MIT
#include "scenario.h"

#include <signal.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLastLines = 40;

std::string case_name() {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(info->test_suite_name()) + "." + info->name();
  for (char& letter : name) {
    if (letter == '/') letter = '-';
  }
  return name;
}

std::string command_of(pid_t pid) {
  std::string name = read_file("/proc/" + std::to_string(pid) + "/comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return std::to_string(pid) + " (" + name + ")";
}

void print_log(const fs::path& file) {
  std::istringstream text(read_file(file));
  std::deque<std::string> last;
  std::cout << "---- " << file.filename().string() << ": the plugin's lines\n";
  for (std::string line; std::getline(text, line);) {
    if (line.find("amdgpu_plugin: ") != std::string::npos || line.find("Error (") != std::string::npos)
      std::cout << line << "\n";
    last.push_back(line);
    if (last.size() > kLastLines) last.pop_front();
  }
  std::cout << "---- " << file.filename().string() << ": its last lines\n";
  for (const std::string& line : last) std::cout << line << "\n";
}

}  // namespace

Strings everything() {
  return {"--gpus", "2", "--vram", "24M", "--gtt", "4M", "--svm", "--waiter", "--run-queues", "--hsakmt-shm"};
}

bool Usage::is_within(const Usage& most) const {
  return std::all_of(numbers.begin(), numbers.end(), [&](const auto& each) {
    const auto limit = most.numbers.find(each.first);
    return limit != most.numbers.end() && each.second <= limit->second;
  });
}

std::string describe(const Usage& usage) {
  std::string text;
  for (const auto& [what, number] : usage.numbers)
    text += (text.empty() ? "" : ", ") + std::to_string(number) + " " + what;
  return text;
}

std::set<std::uint32_t> ProcessSeen::gpus_with_vram() const {
  std::set<std::uint32_t> gpus;
  for (const auto& [gpu, bytes] : vram) {
    if (bytes != 0) gpus.insert(gpu);
  }
  return gpus;
}

Scenario::Scenario() = default;
Scenario::~Scenario() = default;

void Scenario::SetUp() {
  kernel_log_.emplace();
  scratch_ = fs::temp_directory_path() / "vm-scenarios" / case_name();
  disk_ = settings().images / case_name();
  fs::remove_all(scratch_);
  fs::remove_all(disk_);
  fs::create_directories(scratch_ / "plugins");
  fs::create_directories(disk_);
  fs::create_symlink(settings().plugin, scratch_ / "plugins" / "amdgpu_plugin.so");
  criu_.emplace(scratch_ / "logs");
  criu_->use_plugins(scratch_ / "plugins");
}

void Scenario::TearDown() {
  if (HasFailure() && subject_ && subject_->pid() > 0)
    std::cout << "---- subject: where its threads stand\n" << stacks_of(subject_->pid()) << std::flush;
  subject_.reset();
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm")) fs::remove(entry.path());
  expect_nothing_left();
  for (const std::string& line : kernel_log_->complaints()) ADD_FAILURE() << "kernel log: " << line;
  if (HasFailure()) report_logs();
  fs::remove_all(scratch_);
  fs::remove_all(disk_);
}

void Scenario::expect_nothing_left() {
  // criu does not wait for what it kills when a restore fails.
  (void)eventually([] { return living_children().empty(); }, Seconds(5));
  for (const pid_t pid : living_children()) {
    ADD_FAILURE() << "process " << command_of(pid) << " is left";
    kill_and_reap(pid);
  }
  if (!machine_.loaded()) return;
  Usage usage;
  // The kernel closes the files of what was killed in its own time.
  if (at_start_ && !eventually([&] { return (usage = machine_.usage()).is_within(*at_start_); }, Seconds(20)))
    ADD_FAILURE() << "left on the GPUs: " << describe(usage) << "\nbefore: " << describe(*at_start_);
  machine_.unload();
}

void Scenario::report_logs() {
  if (!fs::exists(criu_->logs())) return;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(criu_->logs()))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) print_log(file);
  if (settings().out.empty()) return;
  std::error_code error;
  fs::create_directories(settings().out / case_name(), error);
  for (const fs::path& file : files)
    fs::copy_file(file, settings().out / case_name() / file.filename(), fs::copy_options::overwrite_existing,
                  error);
  if (error) std::cout << "the logs were not kept: " << error.message() << "\n";
}

fs::path Scenario::images(const std::string& name) const {
  fs::create_directories(disk_ / name);
  return disk_ / name;
}

void Scenario::load(const Gpus& wanted) {
  for (const std::string& line : kernel_log_->complaints()) ADD_FAILURE() << "kernel log: " << line;
  machine_.load(wanted);
  for (const std::string& line : kernel_log_->complaints_of_binding())
    ADD_FAILURE() << "kernel log: " << line;
  at_start_ = machine_.usage();
}

void Scenario::move_to(const Gpus& wanted) {
  Usage usage;
  ASSERT_TRUE(eventually([&] { return (usage = machine_.usage()).is_within(*at_start_); }, Seconds(20)))
      << describe(usage);
  load(wanted);
}

Strings Scenario::with_common_options(const Strings& options) {
  // Context save areas of real size would be most of what is dumped.
  Strings all = {"--empty-context"};
  for (const std::string& option : options) {
    // Most subjects with SVM ranges have much else, too.
    if (option != "--svm" || kernel_has_svm()) all.push_back(option);
  }
  return all;
}

void Scenario::start_subject(const Strings& options, const Launch& launch) {
  subject_.emplace(scratch_ / "subject");
  const std::string ready = subject_->start(with_common_options(options), launch);
  ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
}

void Scenario::expect_whole() {
  std::string answer = subject_->ask("check");
  ASSERT_EQ(answer.rfind("ok check", 0), 0U) << answer;
  answer = subject_->ask("work");
  ASSERT_EQ(answer, "ok work");
  answer = subject_->ask("check");
  ASSERT_EQ(answer.rfind("ok check", 0), 0U) << answer;
}

void Scenario::dump(const Strings& more) {
  dumped_pid_ = subject_->root();
  possessions_ = subject_->pid() > 0 ? possessions_of(subject_->pid()) : Strings();
  const CriuRun run = criu_->dump(dumped_pid_, images(), more);
  ASSERT_TRUE(run.good()) << "criu dump ended with " << run.status.value_or(-1);
  ASSERT_TRUE(subject_->reap_dumped()) << "the dumped process still runs";
}

void Scenario::expect_known_buffers(const fs::path& parent) {
  Launch launch;
  launch.arguments = {(settings().programs / "sluice").string(), "check",    "--json",       "--pid",
                      std::to_string(subject_->root()),          "--parent", parent.string()};
  launch.output = scratch_ / "check.json";
  (void)run(launch);  // whether a dump works is not asked here
  const std::string text = read_file(launch.output);
  const auto checked = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(checked.is_object() && checked["parent"].is_object()) << text;
  EXPECT_GT(checked["parent"]["mapped_buffers_in_parent"], 0) << text;
}

void Scenario::dump_chain() {
  Strings more = {"--track-mem"};  // criu takes no parent that was dumped without
  for (const std::string name : {"first", "second"}) {
    SCOPED_TRACE(name);
    more.push_back("--leave-running");
    ASSERT_TRUE(criu_->dump(subject_->root(), images(name), more).good());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    more = {"--track-mem", "--prev-images-dir", "../" + name};
  }
  expect_known_buffers(images("second"));
  ASSERT_NO_FATAL_FAILURE(dump(more));
  for (const std::string name : {"second", "images"}) {
    const fs::directory_iterator all(images(name));
    EXPECT_TRUE(std::any_of(begin(all), end(all),
                            [](const fs::directory_entry& file) {
                              return file.path().filename().string().starts_with("amdgpu-delta-");
                            }))
        << name << " is complete by itself";
  }
}

void Scenario::restore(const Strings& more) {
  // A restore that failed has killed its task; the pid is free when that is reaped.
  ASSERT_TRUE(eventually([&] {
    (void)living_children();
    return dumped_pid_ <= 0 || ::kill(dumped_pid_, 0) != 0;
  })) << dumped_pid_
      << " still exists";
  const CriuRun run = criu_->restore(images(), more);
  ASSERT_TRUE(run.good()) << "criu restore ended with " << run.status.value_or(-1);
}

void Scenario::expect_survives(const Strings& dump_options, const Strings& restore_options) {
  ASSERT_NO_FATAL_FAILURE(dump(dump_options));
  ASSERT_NO_FATAL_FAILURE(restore(restore_options));
  // An older criu keeps what the plugin gave it to map through.
  if (criu_traits().takes_map_fds && subject_->alive()) {
    EXPECT_EQ(possessions_of(subject_->pid()), possessions_) << "the restore added something, or lost it";
  }
  ASSERT_NO_FATAL_FAILURE(expect_whole());
}

void Scenario::expect_queues_run() {
  const std::string answer = subject_->ask("queue-progress");
  ASSERT_EQ(answer.rfind("ok queue-progress runs", 0), 0U) << answer;
}

void Scenario::expect_no_complete_image(const fs::path& directory) {
  if (fs::exists(directory)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      const bool metadata = name.starts_with("amdgpu-kfd-") || name.starts_with("amdgpu-renderD-") ||
                            name.starts_with("amdgpu-dmabuf_") || name.starts_with("amdgpu-delta-kfd-") ||
                            name.starts_with("amdgpu-delta-renderD-");
      EXPECT_FALSE(metadata && name.ends_with(".img")) << name << " stands although the dump failed";
    }
  }
  const CriuRun run = criu_->restore(directory);
  EXPECT_TRUE(run.status.has_value());
  EXPECT_FALSE(run.good()) << "criu restored from images of a dump that failed";
}

}  // namespace sluice::vm_test
