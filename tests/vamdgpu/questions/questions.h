// SPDX-License-Identifier: MIT
// What AMD's driver answers: some hundreds of questions to /dev/kfd and to a render node of an MI210, each
// with the answer of Debian's own amdgpu.ko in Linux 6.1, 6.12 and 7.2. The same questions go to the virtual
// amdgpu: its answers are equal, or the list says what it answers, and why.
//
// The lists (kfd_questions.cc, queue_questions.cc, criu_questions.cc, render_questions.cc, job_questions.cc)
// are read from top to bottom: later questions use what earlier ones made. They need one GPU that nobody else
// uses, and root.
#pragma once

#include <string>
#include <vector>

namespace vamdgpu::questions {

enum class Linux { k61, k612, k72 };

enum class Who {
  Driver,   // AMD's amdgpu.ko, as Debian builds it
  Virtual,  // the virtual amdgpu
};

// What the driver answers, by kernel.
struct Answers {
  Answers(const char* all) : linux61(all), linux612(all), linux72(all) {}
  Answers(const char* in61, const char* in612, const char* in72)
      : linux61(in61), linux612(in612), linux72(in72) {}
  const char* in(Linux version) const;

  const char *linux61, *linux612, *linux72;
};

struct Asked {
  std::string question;
  std::string answer;    // "ok", what came back, or the errno's name
  std::string expected;  // of the one who was asked
  std::string why;       // where that is not what the driver answers
};

// Asks everything, each list in a process of its own (a KFD process lives as long as an address space).
// Throws std::system_error when no process can be made; a list that cannot begin (no GPU, no such file) has
// one entry that says so, which never is as expected.
std::vector<Asked> ask_everything(Linux version, Who who);

// A line for each answer that is not the expected one.
std::vector<std::string> surprises(const std::vector<Asked>& asked);

}  // namespace vamdgpu::questions
