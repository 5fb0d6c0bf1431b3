// SPDX-License-Identifier: MIT
// What `sluice check --pid` says of a process, held against what the real criu does with it: a scenario whose
// subject is an obstacle-subject.
#pragma once

#include <nlohmann/json.hpp>

#include "scenario.h"

namespace sluice::vm_test {

class CheckedDump : public Scenario {
 protected:
  // With one small GPU: without any, no dump works.
  void SetUp() override;

  // Starts an obstacle-subject with `things`, whose first descriptors are /dev/null, and waits until it has
  // them. False: this kernel has no such thing, which is told.
  bool start(const std::string& things, Launch launch = {});
  // Asks of process `pid`.
  nlohmann::json check(pid_t pid);

  // The verdict is no, for this reason alone, and criu, with every option that check knows, refuses it and
  // leaves it as it was. Ends the subject.
  void expect_refused(const std::string& code);
  void expect_refused(pid_t pid, const std::string& code);
  // start(), and that.
  void expect_refused_with(const std::string& things, const std::string& code, const Launch& launch = {});
  // The verdict is yes, with findings of these codes and no others, and the command that is printed dumps it.
  void expect_dumped(const Strings& codes);
  void expect_dumped_with(const std::string& things, const Strings& codes, const Launch& launch = {});
  // The same; without any one of the options of the command criu refuses.
  void expect_each_option_needed(const Strings& codes);

  // Codes of findings about the process that are not good, sorted, each once.
  static Strings codes_of(const nlohmann::json& checked);
  // Runs criu with the words of `command`, which is check's or is made of it.
  CriuRun run_command(const Strings& command);
  void end_subject();
};

}  // namespace sluice::vm_test
