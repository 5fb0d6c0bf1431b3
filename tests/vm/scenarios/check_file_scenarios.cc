// SPDX-License-Identifier: MIT
// `sluice check --pid` of processes with files and maps that CRIU refuses or wants an option for, and with
// their harmless neighbours.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "base/unique_fd.h"
#include "checked_dump.h"

namespace sluice::vm_test {
namespace {

class CheckFiles : public CheckedDump {
 protected:
  // A descriptor that the subject gets, under a number that stays free otherwise.
  static constexpr int kInherited = 9;

  static std::function<void()> inherits(int fd, int as = kInherited) {
    return [fd, as] {
      // The second for one that has that number already: dup2() leaves it as it is.
      if (::dup2(fd, as) < 0 || ::fcntl(as, F_SETFD, 0) != 0) throw std::runtime_error("dup2");
    };
  }
};

// A process that has nothing, and one with all that is harmless.
TEST_F(CheckFiles, HarmlessNeighboursRaiseNothing) {
  Launch launch;
  launch.own_session = true;
  expect_dumped_with("nothing", {}, launch);
  expect_dumped_with("harmless,child,lowered-limits", {}, launch);
}

TEST_F(CheckFiles, WhatNoCriuDumpsIsRefused) {
  Launch launch;
  launch.own_session = true;
  expect_refused_with("io-uring", "io-uring", launch);
  expect_refused_with("perf-event", "perf-event", launch);
  expect_refused_with("userfaultfd", "anon-inode", launch);
  expect_refused_with("bpf-map", "bpf", launch);
  expect_refused_with("secret-memory", "secret-memory", launch);
  expect_refused_with("device", "device", launch);
  expect_refused_with("device-map", "device-map", launch);
  expect_refused_with("tun", "tun", launch);
  expect_refused_with("namespace-file", "namespace-file", launch);
  expect_refused_with("sysv-shm", "sysv-shm", launch);
}

// The kernel's module makes its node without any hardware.
TEST_F(CheckFiles, AnRdmaDeviceIsRefused) {
  std::ifstream order("/usr/lib/rdma-modules/order");
  ASSERT_TRUE(order.is_open());
  for (std::string name; std::getline(order, name);) {
    const UniqueFd file(::open(("/usr/lib/rdma-modules/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(::syscall(SYS_finit_module, file.get(), "", 0) == 0 || errno == EEXIST)
        << name << ": " << std::strerror(errno);
  }
  Launch launch;
  launch.own_session = true;
  expect_refused_with("rdma", "rdma", launch);
}

TEST_F(CheckFiles, APidfdIsAMatterOfTheVersionAndOfTheProcess) {
  Launch launch;
  launch.own_session = true;
  if (criu_version() < CriuVersion{4, 1, 0}) {
    expect_refused_with("pidfd", "pidfd", launch);
  } else {
    expect_dumped_with("pidfd", {}, launch);
    expect_refused_with("pidfd-outside", "pidfd-outside", launch);
  }
}

TEST_F(CheckFiles, FilesThatNeedAnOptionHaveItInTheCommand) {
  Launch launch;
  launch.own_session = true;
  ASSERT_TRUE(start("file-lock,lease,deleted-file,link-remap", launch));
  expect_each_option_needed({"deleted-file", "file-lock", "link-remap"});
}

// Its name leads to another file: a file system was mounted over its directory.
TEST_F(CheckFiles, AFileWhoseNameIsTakenIsRefused) {
  Launch launch;
  launch.own_session = true;
  ASSERT_TRUE(start("file-in-shadow", launch));
  const std::string shadow = subject_->directory() / "shadow";
  ASSERT_EQ(::mount("none", shadow.c_str(), "tmpfs", 0, nullptr), 0) << std::strerror(errno);
  write_file(shadow + "/file", "another");
  expect_refused("path-taken");
  EXPECT_EQ(::umount(shadow.c_str()), 0);
}

// A file of a mount namespace that the subject does not live in, as a container's input.
TEST_F(CheckFiles, AFileOfAnotherMountNeedsToBeNamed) {
  const std::filesystem::path there = scratch() / "there";
  std::filesystem::create_directories(there);
  Launch launch;
  launch.own_session = true;
  launch.prepare = [&] {
    const int home = ::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (home < 0 || ::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", there.c_str(), "tmpfs", 0, nullptr) != 0)
      throw std::runtime_error("mount");
    const int file = ::open((there / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (::setns(home, CLONE_NEWNS) != 0) throw std::runtime_error("setns");
    inherits(file)();
  };
  ASSERT_TRUE(start("nothing", launch));
  expect_each_option_needed({"foreign-mount"});
}

class CheckTerminals : public CheckFiles {
 protected:
  void SetUp() override {
    CheckFiles::SetUp();
    for (int i = 0; i < 2; ++i) {
      masters_[i].reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
      ASSERT_TRUE(masters_[i]);
      ASSERT_EQ(::unlockpt(masters_[i].get()), 0);
    }
  }
  // Opens it as descriptor 9 + i; a session's first one becomes its controlling terminal.
  std::function<void()> opens(std::initializer_list<int> which, int flags = O_NOCTTY) {
    const std::vector<int> numbers(which);
    return [this, numbers, flags] {
      for (const int i : numbers) {
        const int fd = ::open(::ptsname(masters_[i].get()), O_RDWR | O_CLOEXEC | flags);
        inherits(fd, kInherited + i)();
      }
    };
  }

 private:
  UniqueFd masters_[2];
};

TEST_F(CheckTerminals, OneTerminalNeedsAnOption) {
  Launch launch;
  launch.own_session = true;
  launch.prepare = opens({0});
  ASSERT_TRUE(start("nothing", launch));
  expect_each_option_needed({"terminal"});
}

TEST_F(CheckTerminals, TwoAreRefused) {
  Launch launch;
  launch.own_session = true;
  launch.prepare = opens({0, 1});
  expect_refused_with("nothing", "terminals", launch);
}

TEST_F(CheckTerminals, TheNameOfATerminalThatIsNotOpenIsRefused) {
  Launch launch;
  launch.own_session = true;
  launch.prepare = opens({0}, 0);
  expect_refused_with("current-terminal", "controlling-terminal", launch);
}

// ---- with GPUs

class CheckGpuProcess : public CheckedDump {
 protected:
  // The subject, as the child of a process with these things.
  void start_with(const std::string& things) {
    subject_.emplace(scratch() / "subject");
    Launch launch;
    launch.arguments = {(settings().programs / "obstacle-subject").string(), subject_->directory().string(),
                        things};
    const std::string ready = subject_->start(
        with_common_options({"--gpus", "1", "--vram", "1M", "--gtt", "1M", "--run-queues"}), launch);
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << ready;
  }
};

TEST_F(CheckGpuProcess, WithAnIoUringIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_with("io-uring"));
  const nlohmann::json checked = check(subject_->root());
  EXPECT_EQ(codes_of(checked), Strings{"io-uring"}) << checked.dump(1);
  EXPECT_EQ(checked["result"], "refused");
  EXPECT_FALSE(criu_->dump(subject_->root(), images()).good());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(CheckGpuProcess, WithLocksAndAConnectionSurvivesByThePrintedCommand) {
  ASSERT_NO_FATAL_FAILURE(start_with("harmless,file-lock,tcp-established"));
  const nlohmann::json checked = check(subject_->root());
  EXPECT_EQ(codes_of(checked), (Strings{"file-lock", "tcp-established"})) << checked.dump(1);
  ASSERT_TRUE(checked["criu_command"].is_array()) << checked.dump(1);
  const CriuRun dumped = run_command(checked["criu_command"].get<Strings>());
  ASSERT_TRUE(dumped.good());
  ASSERT_TRUE(subject_->reap_dumped());
  ASSERT_NO_FATAL_FAILURE(
      restore({"--file-locks", "--tcp-established", "--network-lock", criu_traits().network_lock}));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
