// SPDX-License-Identifier: MIT
#include "proc/task_status.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "base/printable.h"
#include "base/unique_fd.h"
#include "proc/directory.h"

namespace sluice::proc {
namespace {

// The value of the line "key:\tvalue"; empty if there is none. The name comes first and contains no newline
// (the kernel writes it as "\n"), so no task can forge a line by its name.
std::string_view value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key) && line.substr(key.size()).starts_with(":\t")) {
      return line.substr(key.size() + 2);
    }
    text.remove_prefix(line.size() == text.size() ? line.size() : line.size() + 1);
  }
  return {};
}

}  // namespace

Result<TaskStatus> read_task_status(const std::string& directory) {
  const std::string name = directory + "/status";
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return make_error(errno, "open " + name);
  // All fields used here are in the first eight lines; 1 KiB holds them whatever the name.
  std::array<char, 1024> bytes{};
  std::size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = TEMP_FAILURE_RETRY(::read(fd.get(), &bytes[length], bytes.size() - length));
    if (got < 0) return make_error(errno, "read " + name);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  const std::string_view text(bytes.data(), length);

  TaskStatus status;
  status.name = printable(value_of(text, "Name"));
  if (const std::string_view state = value_of(text, "State"); !state.empty()) status.state = state.front();
  status.tgid = parse_number(value_of(text, "Tgid")).value_or(0);
  status.parent = parse_number(value_of(text, "PPid")).value_or(0);
  status.tracer = parse_number(value_of(text, "TracerPid")).value_or(0);
  return status;
}

}  // namespace sluice::proc
