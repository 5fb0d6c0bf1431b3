// SPDX-License-Identifier: MIT
// Finding open device files in traced processes. The device is /dev/null; the processes are children of the
// test.
#include "proc/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/machines.h"

namespace sluice::proc {
namespace {

using test::Folder;
using test::write_text;

const dev_t kNull = makedev(1, 3);

// A child that runs `setup`, says so, and waits until it is killed.
class Child {
 public:
  explicit Child(const std::function<void()>& setup) {
    int ready[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      setup();
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  bool trace() const { return ::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) == 0; }

 private:
  pid_t pid_ = -1;
};

// Descriptors far from those a test runner may have for /dev/null itself.
void put(int fd, int at) {
  (void)::dup2(fd, at);
}

bool can_compare() {
  const auto same = same_open_file({::getpid(), 0}, {::getpid(), 1});
  return same.ok() || same.error().err != ENOSYS;
}

std::vector<FileHolder> from_300(std::vector<FileHolder> holders) {
  std::erase_if(holders, [](FileHolder holder) { return holder.fd < 300; });
  return holders;
}

TEST(Processes, only_those_traced_by_this_thread_are_found) {
  const Child traced([] {});
  const Child other([] {});
  ASSERT_TRUE(traced.trace());
  const auto pids = traced_processes();
  ASSERT_TRUE(pids.ok()) << pids.error().what;
  EXPECT_EQ(*pids, std::vector<pid_t>{traced.pid()});
  EXPECT_EQ(processes_traced_by(traced.pid()).value(), std::vector<pid_t>());
}

TEST(Processes, a_tracer_is_read_from_status_and_nothing_else) {
  const Folder proc;
  write_text(proc.path() / "10/status",
             "Name:\tx\nUmask:\t0022\nState:\tS\nTgid:\t10\nPid:\t10\nTracerPid:\t5\n");
  write_text(proc.path() / "9/status", "Name:\tx\nTracerPid:\t5\n");
  write_text(proc.path() / "11/status", "Name:\tx\nTracerPid:\t55\n");
  write_text(proc.path() / "12/status", "Name:\tx\nTracerPid:\t0\n");
  write_text(proc.path() / "13/status", "");
  write_text(proc.path() / "self/status", "Name:\tx\nTracerPid:\t5\n");
  std::filesystem::create_directory(proc.path() / "14");
  EXPECT_EQ(processes_traced_by(5, proc.path().c_str()).value(), (std::vector<pid_t>{9, 10}));
}

// As /proc/PID/stat. The name is the process' own choice.
std::string stat_line(const std::string& state, const std::string& flags, const std::string& threads,
                      const std::string& exit_code) {
  std::vector<std::string> fields(50, "0");  // behind the name
  fields[0] = state;
  fields[6] = flags;
  fields[17] = threads;
  fields[49] = exit_code;
  std::string line = "4711 (x) S 4)";
  for (const std::string& field : fields) line += " " + field;
  return line + "\n";
}

TEST(Processes, one_is_ending_that_was_sent_sigkill_or_exits) {
  const Folder proc;
  const auto add = [&](int pid, const std::string& pending, const std::string& flags,
                       const std::string& state = "S", const std::string& exit_code = "0") {
    const std::string directory = std::to_string(pid);
    write_text(proc.path() / directory / "status",
               "Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t" + pending + "\n");
    write_text(proc.path() / directory / "stat", stat_line(state, flags, "1", exit_code));
  };
  add(10, "0000000000000000", "4194560");
  add(11, "0000000000000100", "4194560");
  add(12, "0000000000004000", "4194560");  // SIGTERM
  add(13, "0000000000000000", "4194564");
  add(15, "0000000000000000", "4194560", "R", "256");   // exit(1), and is not yet marked
  add(16, "0000000000000000", "4194560", "t", "1541");  // a tracer's stop
  add(17, "0000000000000000", "4194560", "T", "19");
  for (const auto& [pid, ends] : {std::pair(10, false),
                                  {11, true},
                                  {12, false},
                                  {13, true},
                                  {14, true},
                                  {15, true},
                                  {16, false},
                                  {17, false}})
    EXPECT_EQ(is_ending(pid, proc.path().c_str()), ends) << pid;
}

TEST(Processes, descendants_are_children_and_theirs) {
  const Folder proc;
  const auto add = [&](int pid, int parent) {
    write_text(proc.path() / std::to_string(pid) / "status",
               "Name:\tx\nPPid:\t" + std::to_string(parent) + "\n");
  };
  add(1, 0);
  add(10, 1);
  add(20, 10);
  add(30, 20);  // of a child
  add(5, 20);   // its number is lower than its parent's
  add(11, 1);
  write_text(proc.path() / "12/status", "");
  std::vector<pid_t> found = descendants(10, proc.path().c_str()).value();
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<pid_t>{5, 20, 30}));
  EXPECT_EQ(descendants(30, proc.path().c_str()).value(), std::vector<pid_t>());
}

TEST(Processes, a_process_has_ended_when_all_its_threads_have) {
  const Folder proc;
  const auto state = [&](const char* task, const char* is) {
    write_text(proc.path() / task / "status", std::string("Name:\tx\nState:\t") + is + "\n");
  };
  state("10/task/10", "Z (zombie)");
  state("10/task/11", "X (dead)");
  state("20/task/20", "Z (zombie)");
  state("20/task/21", "D (disk sleep)");
  write_text(proc.path() / "10/stat", stat_line("Z", "0", "2", "0"));
  EXPECT_TRUE(has_ended(10, proc.path().c_str()));
  write_text(proc.path() / "10/stat", stat_line("Z", "0", "3", "0"));
  EXPECT_FALSE(has_ended(10, proc.path().c_str())) << "the list is not whole";
  EXPECT_FALSE(has_ended(20, proc.path().c_str()));
  EXPECT_TRUE(has_ended(30, proc.path().c_str())) << "it is gone";
  EXPECT_FALSE(has_ended(::getpid()));
}

TEST(Processes, a_task_that_is_gone_has_ended_and_one_that_cannot_be_read_has_not) {
  const Folder proc;
  std::filesystem::create_directories(proc.path() / "10/task/10");
  EXPECT_TRUE(has_ended(10, proc.path().c_str())) << "nothing is said of it any more";
  std::filesystem::create_directories(proc.path() / "20/task/20/status");
  EXPECT_FALSE(has_ended(20, proc.path().c_str()));
  std::filesystem::create_directory(proc.path() / "30");
  std::ofstream(proc.path() / "30/task") << "no directory";
  EXPECT_FALSE(has_ended(30, proc.path().c_str()));
}

TEST(Processes, a_status_that_cannot_be_read_is_an_error) {
  const Folder proc;
  write_text(proc.path() / "10/status", "Name:\tx\nPPid:\t1\nTracerPid:\t5\n");
  std::filesystem::create_directories(proc.path() / "11/status");
  EXPECT_EQ(processes_traced_by(5, proc.path().c_str()).error().err, EISDIR);
  EXPECT_EQ(descendants(1, proc.path().c_str()).error().err, EISDIR);
  EXPECT_EQ(descendants(1, "/nonexistent").error().err, ENOENT);
}

TEST(Processes, the_restoring_process_is_the_one_with_the_lowest_innermost_pid) {
  const Child first([] {});
  const Child second([] {});
  const auto lowest = static_cast<std::uint32_t>(std::min(first.pid(), second.pid()));
  for (const auto& holders : {std::vector{first.pid(), second.pid()}, {second.pid(), first.pid()}}) {
    const RestoringProcess found = restoring_process(holders);
    EXPECT_EQ(found.innermost, lowest);
    EXPECT_EQ(static_cast<std::uint32_t>(found.pid), lowest);
  }
  pid_t gone = -1;
  {
    const Child child([] {});
    gone = child.pid();
  }
  EXPECT_EQ(restoring_process({gone, first.pid()}).innermost, std::nullopt);
  EXPECT_EQ(restoring_process({gone, first.pid()}).pid, gone);
  EXPECT_EQ(restoring_process({}).innermost, std::nullopt);
}

TEST(Processes, the_innermost_pid_is_the_last_of_its_line) {
  const Folder proc;
  write_text(proc.path() / "10/status", "Name:\tx\nPid:\t10\nNSpid:\t10\t4\t1\nNSpgid:\t10\t4\t2\n");
  write_text(proc.path() / "11/status", "Name:\tx\nPid:\t11\nNSpid:\t11\n");
  write_text(proc.path() / "12/status", "Name:\tx\nPid:\t12\n");
  EXPECT_EQ(innermost_pid(10, proc.path().c_str()), 1);
  EXPECT_EQ(innermost_pid(11, proc.path().c_str()), 11);
  EXPECT_EQ(innermost_pid(12, proc.path().c_str()), std::nullopt);
  EXPECT_EQ(innermost_pid(13, proc.path().c_str()), std::nullopt);
  EXPECT_EQ(innermost_pid(::getpid()), ::getpid());
}

TEST(Processes, an_open_file_has_its_holders_whatever_their_descriptors) {
  if (!can_compare()) GTEST_SKIP() << "this kernel has no kcmp";
  // One file that both children hold, two that only the second has.
  const int shared = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const Child first([&] { put(shared, 300); });
  const Child second([&] {
    put(shared, 301);
    put(shared, 302);
    put(::open("/dev/null", O_RDWR), 310);
    put(::open("/dev/null", O_RDWR), 311);
    put(::open("/dev/zero", O_RDWR), 312);
  });
  ::close(shared);
  ASSERT_TRUE(first.trace());
  ASSERT_TRUE(second.trace());

  const auto files = open_device_files({first.pid(), second.pid()}, std::array{kNull});
  ASSERT_TRUE(files.ok()) << files.error().what;
  std::vector<std::vector<FileHolder>> found;
  for (const OpenFile& file : *files) {
    if (const auto holders = from_300(file.holders); !holders.empty()) found.push_back(holders);
  }
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0],
            (std::vector<FileHolder>{{first.pid(), 300}, {second.pid(), 301}, {second.pid(), 302}}));
  EXPECT_EQ(found[1], (std::vector<FileHolder>{{second.pid(), 310}}));
  EXPECT_EQ(found[2], (std::vector<FileHolder>{{second.pid(), 311}}));

  auto taken = take_descriptor({first.pid(), 300});
  if (!taken && taken.error().err == ENOSYS) GTEST_SKIP() << "this kernel has no pidfd_getfd";
  ASSERT_TRUE(taken.ok()) << taken.error().what;
  EXPECT_EQ(::fcntl(taken->get(), F_GETFD), FD_CLOEXEC);
}

TEST(Processes, what_has_been_put_in_a_listed_files_place_is_not_taken_for_it) {
  const Child child([] {
    put(::open("/dev/zero", O_RDWR), 300);
    put(::open("/dev/null", O_RDWR), 301);
    put(::open("/proc/self/status", O_RDONLY), 302);
  });
  const auto taken = take_file({kNull, {{child.pid(), 301}, {child.pid(), 300}}});
  if (!taken && taken.error().err == ENOSYS) GTEST_SKIP() << "this kernel has no pidfd_getfd";
  EXPECT_TRUE(taken.ok()) << taken.error().what;
  for (const int replaced : {300, 302}) {
    const auto other = take_file({kNull, {{child.pid(), replaced}, {child.pid(), 301}}});
    ASSERT_FALSE(other.ok()) << replaced;
    EXPECT_EQ(other.error().err, ESTALE);
    const std::string named =
        "descriptor " + std::to_string(replaced) + " of process " + std::to_string(child.pid());
    EXPECT_TRUE(other.error().what.starts_with(named)) << other.error().what;
    EXPECT_TRUE(other.error().what.ends_with("[SL-D01]")) << other.error().what;
  }
  EXPECT_EQ(take_file({kNull, {{child.pid(), 999}}}).error().err, EBADF);
}

TEST(Processes, ended_processes_and_closed_descriptors_are_told_apart_from_errors) {
  pid_t gone = -1;
  {
    const Child child([] {});
    gone = child.pid();
    const auto none = take_descriptor({gone, 999});
    EXPECT_TRUE(none.error().err == EBADF || none.error().err == ENOSYS) << none.error().what;
  }
  EXPECT_EQ(device_descriptors(gone, kNull).value(), std::vector<int>());
  EXPECT_EQ(take_descriptor({gone, 0}).error().err, ESRCH);
  EXPECT_EQ(traced_processes("/nonexistent").error().err, ENOENT);
}

// A made-up /proc: what a link leads to cannot be asked where a device is taken for a directory.
TEST(Processes, a_descriptor_that_cannot_be_asked_is_no_answer_where_it_may_be_a_device) {
  const Folder proc;
  write_text(proc.path() / "7/status", "");
  const std::filesystem::path fds = proc.path() / "7/fd";
  std::filesystem::create_directory(fds);
  std::filesystem::create_symlink("/dev/null", fds / "3");
  std::filesystem::create_symlink(proc.path() / "gone", fds / "4");
  std::filesystem::create_symlink("/proc/version/x", fds / "5");
  EXPECT_EQ(device_descriptors(7, kNull, proc.path().c_str()).value(), std::vector<int>{3});
  std::filesystem::create_symlink("/dev/null/x", fds / "6");
  const auto found = device_descriptors(7, kNull, proc.path().c_str());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().err, ENOTDIR);
  EXPECT_NE(found.error().what.find("descriptor 6 of process 7"), std::string::npos) << found.error().what;
}

TEST(Processes, a_dma_buf_that_is_closed_meanwhile_is_none_and_one_that_cannot_be_asked_is_an_error) {
  const Folder proc;
  write_text(proc.path() / "7/status", "");
  const std::filesystem::path fds = proc.path() / "7/fd";
  std::filesystem::create_directory(fds);
  std::filesystem::create_symlink("/dmabuf:gone", fds / "3");
  std::filesystem::create_symlink("/dev/null", fds / "4");
  EXPECT_TRUE(dmabuf_descriptors(7, proc.path().c_str()).value().empty());
  write_text(fds / "6", "no link");
  const auto no_link = dmabuf_descriptors(7, proc.path().c_str());
  ASSERT_FALSE(no_link.ok());
  EXPECT_EQ(no_link.error().err, EINVAL);
  std::filesystem::create_symlink("/dmabuf" + std::string(300, 'a'), fds / "5");
  EXPECT_EQ(dmabuf_descriptors(7, proc.path().c_str()).error().err, ENAMETOOLONG);
}

}  // namespace
}  // namespace sluice::proc
