// SPDX-License-Identifier: MIT
// Runs the `sluice` command and keeps what it says. Thread-bound.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "support/refuse_system_call.h"

namespace sluice::cli_test {

// Exit status of the command.
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2, kRefused = 3;

struct Ended {
  int status = 0;  // as a shell's
  std::string out, err;
};

// Runs `arguments` with an environment ("NAME=value") to its end. `before` is called in the new process
// before the program starts.
Ended run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                  const std::function<void()>& before = {});

// The same where standard error is a terminal of a kind ($TERM; "": not set) and so many columns (0: it does
// not tell): `err` is what it got.
struct Terminal {
  std::string kind = "xterm";
  unsigned short columns = 80;
};
Ended run_on_terminal(const std::vector<std::string>& arguments, std::vector<std::string> environment,
                      const Terminal& terminal);

// For `before`: from now on system call `number` fails with `error` in this process and what it starts.
// `arguments`: only where all this is true of the call.
void refuse_system_call(int number, int error, std::initializer_list<test::ArgumentBits> arguments = {});
// For `before`: what root starts from here on has none of these capabilities.
void give_up_capabilities(const std::vector<int>& capabilities);
// For `before`: this process, and what it starts, sees at `where` what lies at `what`; nobody else does.
void mount_over(const std::string& what, const std::string& where, bool read_only = false);
// Whether that is allowed here: to root, outside of most containers.
bool may_mount();

}  // namespace sluice::cli_test
