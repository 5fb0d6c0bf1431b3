// SPDX-License-Identifier: MIT
// A container of an OCI runtime (runc, crun), without an engine above it. The bundle's config.json is the
// runtime's own `spec` with the subject as process 1. Added are device nodes of the GPUs that it is given,
// with the device cgroup's permission, a mount for the subject's FIFOs and, if wanted, CRIU's configuration
// file.
//
// Thread-bound; system errors throw std::system_error or std::runtime_error.
#pragma once

#include "criu.h"
#include "guest_subject.h"
#include "process.h"

namespace sluice::vm_test {

struct OciBundle {
  std::string runtime;                  // its program
  std::string id;                       // unique in the guest
  std::filesystem::path directory;      // on a disk, not there yet
  std::vector<unsigned> render_minors;  // of the GPUs that it is given
  Strings subject;                      // options of gpu-subject
  // A configuration file for CRIU at its restore, as the annotation org.criu.config names it. For a crun that
  // hands CRIU none (before 1.26, or before CRIU 4.2) it is /etc/criu/default.conf meanwhile. Empty: none.
  std::filesystem::path criu_configuration;
};

// Whether the guest has this runtime.
bool has_runtime(const std::string& runtime);
// Whether it hands CRIU the file that the annotation org.criu.config names.
bool takes_annotation(const std::string& runtime);
// Whether criu runs the action script of a configuration file beside the runtime that called it. Before 3.19
// it aborts.
bool takes_action_script();
// Whether a container's device cgroup is in force before it is restored. Not by crun that makes cgroups
// itself: it sets the rules last. Where systemd is pid 1, systemd makes them.
bool hides_other_gpus_at_once(const std::string& runtime);

class OciContainer {
 public:
  // Makes the bundle. `logs`: where CRIU's and the runtime's logs of each step go, as files.
  OciContainer(OciBundle bundle, std::filesystem::path logs);
  ~OciContainer();  // deletes the container, running or not, and reaps it
  OciContainer(const OciContainer&) = delete;
  OciContainer& operator=(const OciContainer&) = delete;

  // Runs it and waits for the subject's first line, "ready ..." or "bad ...". Empty: it did not start.
  std::string run();
  // After that its process is gone, unless it is left running.
  CriuRun checkpoint(const std::filesystem::path& images, bool leave_running = false);
  // Ends it, as somebody does who wants an older image instead.
  void remove();
  // Starts the runtime's `restore` of images, its own or of another container with the same bundle. The pid
  // of the runtime.
  pid_t start_restore(const std::filesystem::path& images);
  // Waits for the end of what start_restore() started.
  CriuRun finish_restore();

  // What the runtime has logged in the last step.
  std::string runtime_words() const { return read_file(runtime_log_); }

  // Pid of process 1 as this process sees it. REQUIRES: run() or restored.
  pid_t pid() const { return subject_.pid(); }
  GuestSubject& subject() { return subject_; }

 private:
  void make_root() const;
  void write_configuration() const;
  Launch command(const std::string& action, const Strings& more);
  // Where CRIU logs in a step, and that file.
  Strings work_path(const std::string& action);
  CriuRun ended(std::optional<int> status) const;
  void adopt();

  OciBundle bundle_;
  std::filesystem::path logs_, criu_log_, runtime_log_;
  GuestSubject subject_;
  pid_t restoring_ = 0;
  unsigned steps_ = 0;
};

}  // namespace sluice::vm_test
