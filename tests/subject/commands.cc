// SPDX-License-Identifier: MIT
// The subject's life once it is built: commands in, answers out.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "subject/cache.h"
#include "subject/files.h"
#include "subject/gem.h"
#include "subject/queues.h"
#include "subject/share.h"
#include "subject/subject.h"
#include "subject/svm.h"

namespace sluice::subject {
namespace {

// Next line of the commands, without its newline. ENODATA: there will be none.
Result<std::string> read_line(int fd) {
  std::string line;
  for (;;) {
    char letter = 0;
    const ssize_t got = ::read(fd, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return make_error(errno, "read of a command");
    if (got == 0) return Error{ENODATA, "end of commands"};
    if (letter == '\n') return line;
    line += letter;
  }
}

std::string totals_text(const Arena& arena) {
  const Totals totals = totals_of(arena);
  return " bos=" + std::to_string(totals.bos) + " bytes=" + std::to_string(totals.bytes) +
         " zero=" + std::to_string(totals.zero_bytes) + " checks=" + std::to_string(arena.checks);
}

// What the answer says behind "ok COMMAND".
Result<std::string> obey(Arena& arena, const std::string& command) {
  if (command == "check") {
    SLUICE_TRY(check_everything(arena));
    return totals_text(arena);
  }
  if (command == "queue-progress") {
    SLUICE_TRY_ASSIGN(const QueueProgress progress, queue_progress(arena));
    return (progress.runs ? " runs" : " stands") + (" consumed=" + std::to_string(progress.consumed));
  }
  if (command == "peek") {
    SLUICE_TRY_ASSIGN(const std::uint64_t value, peek_shared_bo(arena));
    return " " + std::to_string(value);
  }
  if (command == "ipc-handle") {
    SLUICE_TRY_ASSIGN(const std::string handle, ipc_handle_text(arena));
    return " " + handle;
  }
  Result<void> result;
  if (command.starts_with("poke "))
    result = poke_shared_bo(arena, std::strtoull(command.c_str() + std::strlen("poke "), nullptr, 10));
  else if (command == "work")
    result = work_on(arena);
  else if (command == "change" || command == "change-largest")
    result = change_data(arena, command == "change-largest");
  else if (command == "replace")
    result = replace_data(arena);
  else if (command.starts_with("queue-share "))
    result = share_queues(arena, static_cast<std::uint32_t>(std::strtoul(
                                     command.c_str() + std::strlen("queue-share "), nullptr, 10)));
  else if (command == "svm-prefetch")
    result = prefetch_svm(arena);
  else if (command == "submit")
    result = submit_gem_job(arena);
  else if (command == "quit")
    result = tear_down(arena);
  else
    result = Error{EINVAL, "unknown command " + command};
  if (!result) return std::move(result).error();
  return std::string();
}

}  // namespace

void say(int fd, const std::string& line) {
  const std::string text = line + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // nobody listens any more
    done += static_cast<std::size_t>(wrote);
  }
}

int subject_continue(Arena& arena) {
  int status = 0;
  for (;;) {
    if (const auto waited = await_input(arena, arena.in_fd); !waited) {
      say(arena.out_fd, "bad " + waited.error().what);
      return 1;
    }
    const Result<std::string> command = read_line(arena.in_fd);
    if (!command) return status;
    const Result<std::string> answer = obey(arena, *command);
    if (!answer) status = 1;
    say(arena.out_fd, answer ? "ok " + *command + *answer : "bad " + answer.error().what);
    if (*command == "quit") return status;
  }
}

}  // namespace sluice::subject
