// SPDX-License-Identifier: MIT
// A lane's end: no io-wq worker of its ring is listed any more, in a container neither, where the kernel
// calls them by a number that nobody there knows; and nobody waits for those of others.
#include "pipeline/lane_thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/lane.h"
#include "support/process_state.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr auto kGlance = 200ms;
constexpr auto kShort = 800ms;        // of what a join waits for a worker at most
constexpr int kNoSuchNamespace = 77;  // exit status

bool is_worker(const std::string& name) {
  return name.rfind("iou-wrk-", 0) == 0;
}

std::ptrdiff_t listed_workers() {
  const std::vector<std::string> names = test::thread_names();
  return std::count_if(names.begin(), names.end(), is_worker);
}

// The io-wq workers of another process.
std::vector<pid_t> workers_of(pid_t process) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  std::vector<pid_t> workers;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(tasks.c_str()), ::closedir);
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    std::ifstream comm(tasks + "/" + entry->d_name + "/comm");
    std::string name;
    if (std::getline(comm, name) && is_worker(name)) workers.push_back(std::atoi(entry->d_name));
  }
  return workers;
}

// A lane with a ring that has a worker: the kernel has files synced by one. It stays until it `may_end`.
class LaneWithWorker {
 public:
  explicit LaneWithWorker(int file)
      : lane_(std::move(LaneThread::start("lane", [this, file] { return body(file); })).value()) {
    has_worker_.wait(false);
  }
  ~LaneWithWorker() { let_end(); }
  Result<void> join() {
    let_end();
    return lane_.join();
  }

 private:
  void let_end() {
    may_end_ = true;
    may_end_.notify_one();
  }
  Result<void> body(int file) {
    SLUICE_TRY_ASSIGN(const auto reactor, UringReactor::make(1));
    Op op;
    reactor->sync_data(op, file);
    std::array<Completion, 1> completions;
    SLUICE_TRY(reactor->wait(completions));
    has_worker_ = true;
    has_worker_.notify_one();
    may_end_.wait(false);
    return {};
  }

  std::atomic<bool> has_worker_ = false;
  std::atomic<bool> may_end_ = false;
  LaneThread lane_;  // last: joined first
};

// One byte is a step of the other's.
struct Steps {
  Steps() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    from = UniqueFd(ends[0]);
    to = UniqueFd(ends[1]);
  }
  void tell(char what) const { (void)!::write(to.get(), &what, 1); }
  // 0: none in that time.
  char hear(std::chrono::milliseconds time) const {
    pollfd wait{from.get(), POLLIN, 0};
    char what = 0;
    if (::poll(&wait, 1, static_cast<int>(time.count())) == 1) (void)!::read(from.get(), &what, 1);
    return what;
  }
  UniqueFd from, to;
};

enum class Place { Here, PidNamespace, PidNamespaceWithItsProc };

// The lane's number is not to be the beginning of another's.
void use_up_numbers() {
  for (int i = 0; i < 100; ++i) std::thread([] {}).join();
}

// Ends a lane, beside one that goes on, and says what it then found.
void end_a_lane(int file, const Steps& orders, const Steps& reports) {
  use_up_numbers();
  LaneWithWorker lane(file);
  reports.tell('w');
  (void)orders.hear(30s);
  LaneWithWorker other(file);
  const bool right = lane.join().ok() && listed_workers() == 1;
  reports.tell(right ? 'r' : 'f');
  (void)orders.hear(30s);
}

// Of a process that has done nothing else. Returns its exit status.
int run_in(Place place, int file, const Steps& orders, const Steps& reports) {
  if (place == Place::Here) return end_a_lane(file, orders, reports), 0;
  const auto refused = [&reports] {
    reports.tell('n');
    return kNoSuchNamespace;
  };
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return refused();
  const pid_t first = ::fork();
  if (first == 0) {
    const bool proc = place != Place::PidNamespaceWithItsProc ||
                      (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       ::mount("proc", "/proc", "proc", 0, nullptr) == 0);
    if (!proc) ::_exit(refused());
    end_a_lane(file, orders, reports);
    ::_exit(0);
  }
  int status = 0;
  return ::waitpid(first, &status, 0) == first && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// The process, or its one child.
pid_t innermost(pid_t process) {
  std::ifstream children("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) +
                         "/children");
  pid_t child = 0;
  return children >> child ? child : process;
}

class LaneEnd : public ::testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(In, LaneEnd,
                         ::testing::Values(Place::Here, Place::PidNamespace, Place::PidNamespaceWithItsProc),
                         [](const auto& param) {
                           return param.param == Place::Here           ? "This"
                                  : param.param == Place::PidNamespace ? "APidNamespace"
                                                                       : "APidNamespaceWithItsProc";
                         });

// The worker is held where it has given itself up, so that the lane's thread can end, and is neither marked
// as exiting nor gone from the list.
TEST_P(LaneEnd, WaitsForItsOwnWorkersAlone) {
  if (const std::string reason = test::unavailable(test::ReactorKind::Uring); !reason.empty())
    GTEST_SKIP() << reason;
  const test::TempDir dir;
  const UniqueFd file(::openat(dir.fd(), "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const Steps orders, reports;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run_in(GetParam(), file.get(), orders, reports));
  const auto ended = [child] {
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  if (reports.hear(30s) != 'w') {
    ASSERT_EQ(ended(), kNoSuchNamespace);
    GTEST_SKIP() << "no namespaces to be had here";
  }
  const std::vector<pid_t> workers = workers_of(innermost(child));
  bool held = workers.size() == 1;
  held = held && ::ptrace(PTRACE_SEIZE, workers[0], nullptr, PTRACE_O_TRACEEXIT) == 0;
  orders.tell('e');
  int status = 0;
  if (held && ::waitpid(workers[0], &status, __WALL) == workers[0]) {
    EXPECT_EQ(status >> 8, SIGTRAP | (PTRACE_EVENT_EXIT << 8));
    EXPECT_EQ(reports.hear(kGlance), 0) << "it was not waited for";
    EXPECT_EQ(::ptrace(PTRACE_DETACH, workers[0], nullptr, nullptr), 0);
  }
  const char found = reports.hear(kShort);
  orders.tell('q');
  EXPECT_EQ(ended(), 0);
  if (!held) GTEST_SKIP() << "a worker cannot be held here";
  EXPECT_EQ(found, 'r') << "one is listed, or one of another lane was waited for";
}

}  // namespace
}  // namespace sluice
