// SPDX-License-Identifier: MIT
// Several subjects that are dumped and restored as one tree of processes.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "lookalike/harness.h"

namespace sluice::lookalike {

class TaskTree {
 public:
  explicit TaskTree(Scene& scene) : scene_(scene) {}
  ~TaskTree();  // kills them
  TaskTree(const TaskTree&) = delete;
  TaskTree& operator=(const TaskTree&) = delete;

  enum class Place { kLast, kFirst };
  // Starts one more; the host is to ask for its files as the last, or the first, of all. Its first line,
  // "ready ..." or "bad ...".
  std::string add(const Strings& arguments, Place place = Place::kLast);
  // `more`, and what tells the host whom to dump.
  Strings with_pids(Strings more = {}) const;
  // Returns when all that were dumped and killed have given back their GPU memory.
  void wait_until_dumped();
  // The kernel closes the files of what was killed in its own time.
  void wait_until_gpus_are_free();
  // After a restore: the tasks are those that the host has made. False: it names more or fewer.
  [[nodiscard]] bool meet_restored();
  // The same of a host that names none: `pids` are the tasks', in any order. False: there are more or fewer.
  [[nodiscard]] bool meet(const std::vector<pid_t>& pids);

  void say(const std::string& line);
  // Asks each task each of the commands. What was not answered with "ok COMMAND ...", a line each; empty: all
  // were.
  [[nodiscard]] std::string wrong_answers(const Strings& commands);
  // The same of tasks that check themselves, work on, check again.
  [[nodiscard]] std::string what_is_not_whole() { return wrong_answers({"check", "work", "check"}); }
  // How many have said something that nobody has heard, and whether any has.
  std::size_t spoken();
  bool one_has_spoken() { return spoken() > 0; }
  // Tells all to end. Which do not, or say more than that they do, a line each; empty: none.
  [[nodiscard]] std::string who_does_not_quit();

  FifoSubject& front() { return tasks_.front(); }
  FifoSubject& back() { return tasks_.back(); }
  std::size_t size() const { return tasks_.size(); }
  auto begin() { return tasks_.begin(); }
  auto end() { return tasks_.end(); }
  auto begin() const { return tasks_.begin(); }
  auto end() const { return tasks_.end(); }

 private:
  Scene& scene_;
  ScratchDirectory directory_;
  std::list<FifoSubject> tasks_;
};

}  // namespace sluice::lookalike
