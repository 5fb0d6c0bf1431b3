// SPDX-License-Identifier: MIT
// The process that is dumped and restored (gpu-subject --control), and what it says. It lives in a session of
// its own and talks through two FIFOs that survive it: after a restore the same object goes on talking to the
// restored process.
//
// Thread-bound. A subject that dies or does not answer within kPatience gives empty answers.
#pragma once

#include "base/unique_fd.h"
#include "process.h"

namespace sluice::vm_test {

class GuestSubject {
 public:
  // Makes the FIFOs in `directory`, which it empties first. `inside`: what the subject calls it, where that
  // is something else.
  explicit GuestSubject(std::filesystem::path directory, std::filesystem::path inside = {});
  ~GuestSubject();  // kills what still runs
  GuestSubject(const GuestSubject&) = delete;
  GuestSubject& operator=(const GuestSubject&) = delete;

  // Another copy of gpu-subject to start.
  void use_program(std::filesystem::path program) { program_ = std::move(program); }

  // Starts it with options of gpu-subject and waits for its first line, "ready ..." or "bad ...". `launch`
  // may bring namespaces, an environment, and arguments: a program that runs the subject's command, given as
  // its last arguments.
  std::string start(const Strings& options, Launch launch = {});
  // The same for another program that obeys in the same way, through the FIFOs in directory().
  std::string start_program(Launch launch);

  // Waits for the first line of a subject that somebody else starts on the FIFOs in directory().
  std::string meet();

  // Sends a line and waits for the answer.
  std::string ask(const std::string& command);
  void say(const std::string& command);
  std::string hear();
  // Whether it has said something that was not heard yet. Does not wait.
  bool has_spoken();

  // Its pid as this process sees it.
  pid_t pid() const { return pid_; }
  // The process that start() started: the subject itself, or what runs it.
  pid_t root() const { return root_; }
  // For a subject in a pid namespace of its own, whose restored pid only criu knows.
  void adopt(pid_t pid) { pid_ = root_ = pid; }
  bool alive() const { return pid_ > 0 && is_alive(pid_); }
  // SIGKILL and reap.
  void kill();
  // It has ended, and somebody else reaps it.
  void forget() { pid_ = root_ = 0; }
  // Reaps it and its children after criu has killed them. False when one still runs after kPatience.
  bool reap_dumped();
  // Asks it to end by itself; its exit status.
  std::optional<int> quit();

  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_, inside_, program_;
  UniqueFd to_, from_;
  std::string pending_;  // heard, but no whole line yet
  pid_t pid_ = 0, root_ = 0;
};

// The number after "KEY=" in an answer, -1 without one.
long number_in(const std::string& answer, const std::string& key);

}  // namespace sluice::vm_test
