// SPDX-License-Identifier: MIT
// Podman of the guest, and a job in one of its containers: an image with the subject as its program, started
// as docs/user/podman.md says, with a mount for the subject's FIFOs.
//
// Thread-bound; system errors throw std::system_error or std::runtime_error.
#pragma once

#include "criu.h"
#include "guest_subject.h"
#include "process.h"

namespace sluice::vm_test {

// Names the job's image has for the engines.
inline constexpr const char* kJobImage = "localhost/job:1";

// Makes `archive`, a tar file of a root file system with the subject and its libraries, where it is not there
// yet.
void make_job_root(const std::filesystem::path& archive);

class Podman {
 public:
  // What it says goes to `logs`, numbered. Its store is on the disk of the images, with the job's image, and
  // stays there for the scenarios that follow.
  explicit Podman(std::filesystem::path logs);

  // Of the containers that it makes from now on, where nothing else says which.
  void use_runtime(std::string name) { runtime_ = std::move(name); }

  // Runs in Podman's process before Podman, in the runs that follow.
  std::function<void()> prepare;

  // How long a run of it may take from now on.
  void be_patient(Seconds patience) { patience_ = patience; }

  // Whether the guest has it.
  static bool there();

  struct Said {
    std::optional<int> status;  // nothing: it hung and was killed
    std::string text;           // all that it printed
  };
  Said run(const Strings& arguments);
  // The command line of a run, which prints into `output`.
  Launch command(const Strings& arguments);

  // Where a container's logs of criu are (`podman inspect` says it, too), and its pid as this process sees
  // it.
  static std::filesystem::path folder_of(const std::string& id);
  static pid_t pid_of(const std::string& id);

 private:
  std::filesystem::path logs_;
  std::string runtime_;
  Seconds patience_ = kPatience;
  unsigned runs_ = 0;
};

class PodmanJob {
 public:
  // `directory`: for the subject's FIFOs, emptied first.
  PodmanJob(Podman& podman, std::string name, std::filesystem::path directory);
  ~PodmanJob();  // removes the container, running or not
  PodmanJob(const PodmanJob&) = delete;
  PodmanJob& operator=(const PodmanJob&) = delete;

  // `podman run` with these options. Waits for the subject's first line; empty: it did not start.
  std::string run(const Strings& options, const Strings& subject);
  // `podman container checkpoint` with these options. The log is criu's where it failed, and Podman's words.
  CriuRun checkpoint(const Strings& options, bool leaves_it_running = false);
  // `podman container restore` with these options: of an archive (`--import`), or of this container. The log
  // as above.
  CriuRun restore(const Strings& options);
  // What is left of it goes. `podman rm`, of a container that runs with `--force`.
  bool remove();
  // It has another name from the next restore on.
  void rename(std::string name) { name_ = std::move(name); }

  // Asks the subject to end. False when it does not.
  bool quit();

  // As this process sees it. REQUIRES: it runs.
  pid_t pid() const { return subject_.pid(); }
  GuestSubject& subject() { return subject_; }

 private:
  CriuRun ended(const Podman::Said& said, const char* log) const;

  Podman& podman_;
  std::string name_, id_;
  GuestSubject subject_;
};

}  // namespace sluice::vm_test
