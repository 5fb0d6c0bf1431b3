// SPDX-License-Identifier: MIT
#include "lookalike/task_tree.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace sluice::lookalike {
namespace {

std::string line_of(const FifoSubject& task, const std::string& command, const std::string& answer) {
  return "process " + std::to_string(task.pid()) + ", " + command + ": \"" + answer + "\"\n";
}

}  // namespace

TaskTree::~TaskTree() {
  for (FifoSubject& task : tasks_) {
    if (task.pid() > 0) (void)::kill(task.pid(), SIGKILL);
    (void)task.wait();
  }
}

std::string TaskTree::add(const Strings& arguments, Place place) {
  const auto at = place == Place::kFirst ? tasks_.begin() : tasks_.end();
  const auto task = tasks_.emplace(at, directory_.path() / std::to_string(tasks_.size()));
  return task->start(scene_, arguments);
}

Strings TaskTree::with_pids(Strings more) const {
  for (const FifoSubject& task : tasks_) more.insert(more.end(), {"--pid", std::to_string(task.pid())});
  return more;
}

void TaskTree::wait_until_dumped() {
  for (FifoSubject& task : tasks_) (void)task.wait();
  wait_until_gpus_are_free();
}

void TaskTree::wait_until_gpus_are_free() {
  while (scene_.control().counts() != vamdgpu::Counts()) (void)::sched_yield();
}

bool TaskTree::meet_restored() {
  std::ifstream file(scene_.pid_file());
  const std::vector<pid_t> pids{std::istream_iterator<pid_t>(file), std::istream_iterator<pid_t>()};
  return meet(pids);
}

bool TaskTree::meet(const std::vector<pid_t>& pids) {
  if (pids.size() != tasks_.size()) return false;
  auto pid = pids.begin();
  for (FifoSubject& task : tasks_) task.become(*pid++);
  return true;
}

void TaskTree::say(const std::string& line) {
  for (FifoSubject& task : tasks_) task.say(line);
}

std::string TaskTree::wrong_answers(const Strings& commands) {
  std::string wrong;
  for (FifoSubject& task : tasks_) {
    for (const std::string& command : commands) {
      const std::string answer = task.ask(command);
      if (!answer.starts_with("ok " + command)) wrong += line_of(task, command, answer);
    }
  }
  return wrong;
}

std::size_t TaskTree::spoken() {
  return static_cast<std::size_t>(
      std::count_if(tasks_.begin(), tasks_.end(), [](FifoSubject& task) { return task.has_spoken(); }));
}

std::string TaskTree::who_does_not_quit() {
  std::string wrong;
  for (FifoSubject& task : tasks_) {
    std::string answer = task.ask("quit");
    if (answer == "ok quit") answer += task.hear();  // until it has ended
    if (answer != "ok quit") wrong += line_of(task, "quit", answer);
  }
  return wrong;
}

}  // namespace sluice::lookalike
