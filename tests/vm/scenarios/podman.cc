// SPDX-License-Identifier: MIT
#include "podman.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "container.h"
#include "settings.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kControlInside = "/control";
constexpr const char* kRunning = "/run/podman";

fs::path store() {
  return settings().images / "podman";
}

// The last line of what a command printed.
std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

void make_job_root(const fs::path& archive) {
  if (fs::exists(archive)) return;
  const fs::path root = settings().images / "job-root";
  for (const char* name : {"dev", "proc", "sys", "tmp", "control"}) fs::create_directories(root / name);
  copy_below(root, files_of_program(settings().programs / "gpu-subject"));
  Launch tar;
  tar.arguments = {"tar", "-C", root.string(), "-cf", archive.string(), "."};
  if (vm_test::run(tar) != 0) throw std::runtime_error("tar does not make " + archive.string());
  fs::remove_all(root);
}

Podman::Podman(fs::path logs) : logs_(std::move(logs)) {
  fs::create_directories(logs_);
  const fs::path made = settings().images / "podman-has-its-image";
  if (fs::exists(made)) return;
  const fs::path archive = settings().images / "job-root.tar";
  make_job_root(archive);
  const Said said = run({"import", "--quiet", archive.string(), kJobImage});
  if (said.status != 0) throw std::runtime_error("podman import: " + said.text);
  write_file(made, "");
}

bool Podman::there() {
  return fs::exists("/usr/bin/podman");
}

Launch Podman::command(const Strings& arguments) {
  Launch launch;
  launch.arguments = {"podman",
                      "--root",
                      store(),
                      "--runroot",
                      kRunning,
                      "--cgroup-manager",
                      has_systemd() ? "systemd" : "cgroupfs"};
  if (!runtime_.empty()) launch.arguments.insert(launch.arguments.end(), {"--runtime", runtime_});
  launch.arguments.insert(launch.arguments.end(), arguments.begin(), arguments.end());
  launch.prepare = prepare;
  launch.output = logs_ / ("podman-" + std::to_string(++runs_) + ".log");
  return launch;
}

Podman::Said Podman::run(const Strings& arguments) {
  const Launch launch = command(arguments);
  const std::optional<int> status = vm_test::run(launch, patience_);
  return {status, read_file(launch.output)};
}

fs::path Podman::folder_of(const std::string& id) {
  return store() / "overlay-containers" / id / "userdata";
}

pid_t Podman::pid_of(const std::string& id) {
  return std::atoi(
      read_file(fs::path(kRunning) / "overlay-containers" / id / "userdata" / "pidfile").c_str());
}

PodmanJob::PodmanJob(Podman& podman, std::string name, fs::path directory)
    : podman_(podman), name_(std::move(name)), subject_(std::move(directory), kControlInside) {}

PodmanJob::~PodmanJob() {
  if (!id_.empty()) (void)remove();
}

std::string PodmanJob::run(const Strings& options, const Strings& subject) {
  Strings words = {"run", "--detach", "--name",
                   name_, "--volume", subject_.directory().string() + ":" + kControlInside};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {kJobImage, settings().programs / "gpu-subject", "--control", kControlInside});
  words.insert(words.end(), subject.begin(), subject.end());
  const Podman::Said said = podman_.run(words);
  id_ = last_line(said.text);
  if (said.status != 0) return {};
  subject_.adopt(Podman::pid_of(id_));
  return subject_.hear();
}

CriuRun PodmanJob::ended(const Podman::Said& said, const char* log) const {
  const fs::path file = Podman::folder_of(id_) / log;
  return {said.status, (fs::exists(file) ? read_file(file) : std::string()) + said.text};
}

CriuRun PodmanJob::checkpoint(const Strings& options, bool leaves_it_running) {
  Strings words = {"container", "checkpoint"};
  if (leaves_it_running) words.emplace_back("--leave-running");
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(name_);
  CriuRun run = ended(podman_.run(words), "dump.log");
  if (!subject_.alive()) subject_.forget();
  return run;
}

CriuRun PodmanJob::restore(const Strings& options) {
  Strings words = {"container", "restore"};
  words.insert(words.end(), options.begin(), options.end());
  const Podman::Said said = podman_.run(words);
  if (said.status == 0) {
    if (const std::string id = last_line(said.text); fs::exists(Podman::folder_of(id))) id_ = id;
    subject_.adopt(Podman::pid_of(id_));
  }
  return ended(said, "restore.log");
}

bool PodmanJob::remove() {
  Strings words = {"rm", "--ignore"};
  if (subject_.alive()) words.insert(words.end(), {"--force", "--time", "0"});
  subject_.forget();
  words.push_back(name_);
  return podman_.run(words).status == 0;
}

bool PodmanJob::quit() {
  const pid_t pid = subject_.pid();
  if (subject_.ask("quit") != "ok quit" || !eventually([pid] { return !is_alive(pid); })) return false;
  subject_.forget();
  return true;
}

}  // namespace sluice::vm_test
