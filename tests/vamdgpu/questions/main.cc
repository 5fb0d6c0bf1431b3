// SPDX-License-Identifier: MIT
// vamdgpu-questions: asks the driver of this machine, and says which answers are not the expected ones.
#include <cstdio>
#include <cstring>
#include <exception>

#include "questions.h"

namespace {

using namespace vamdgpu::questions;

int usage() {
  std::fputs(
      "vamdgpu-questions --linux 6.1|6.12|7.2 --of driver|virtual [--all]\n"
      "Asks /dev/kfd and a render node. Ends with 0 when every answer is the expected one.\n"
      "--all prints every question with its answer, and the reason where it is not the driver's.\n",
      stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) try {
  Linux version = Linux::k72;
  Who who = Who::Driver;
  bool all = false, linux_given = false, who_given = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--all") {
      all = true;
    } else if (word == "--linux" && (next == "6.1" || next == "6.12" || next == "7.2")) {
      version = next == "6.1" ? Linux::k61 : next == "6.12" ? Linux::k612 : Linux::k72;
      linux_given = true;
      ++i;
    } else if (word == "--of" && (next == "driver" || next == "virtual")) {
      who = next == "driver" ? Who::Driver : Who::Virtual;
      who_given = true;
      ++i;
    } else {
      return usage();
    }
  }
  if (!linux_given || !who_given) return usage();
  const std::vector<Asked> asked = ask_everything(version, who);
  if (all)
    for (const Asked& each : asked)
      std::printf("%s\t%s\t%s\n", each.question.c_str(), each.answer.c_str(), each.why.c_str());
  const std::vector<std::string> lines = surprises(asked);
  for (const std::string& line : lines) std::fprintf(stderr, "%s\n", line.c_str());
  std::printf("%zu questions, %zu answers that are not the expected ones\n", asked.size(), lines.size());
  return lines.empty() ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "vamdgpu-questions: %s\n", e.what());
  return 2;
}
