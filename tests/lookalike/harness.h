// SPDX-License-Identifier: MIT
// What the tests of this folder and the demo have in common: programs with pipes, and a scene: a virtual
// machine, a directory for images, a subject, and hosts of any version that dump and restore it.
//
// Thread-bound. Nothing here waits by time: a program that dies gives end of file, which every reader sees.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "control.h"
#include "machine_directory.h"

namespace sluice::lookalike {

using Strings = std::vector<std::string>;

// A running program: its standard input and output are ours, standard error is inherited. The destructor
// kills and reaps what has not been waited for.
class Program {
 public:
  Program() = default;
  // `environment` is what execve takes. With `control` a socket lies at descriptor kControlFd in the program.
  Program(const Strings& arguments, const Strings& environment, bool control = false);
  Program(Program&& other) noexcept { *this = std::move(other); }
  Program& operator=(Program&& other) noexcept;
  ~Program();

  pid_t pid() const { return pid_; }
  // Sends `line` and a newline.
  void say(const std::string& line);
  // Next line of its output, without the newline; "" at end of file.
  std::string hear();
  // say() and hear().
  std::string ask(const std::string& line);
  void close_input() { input_.reset(); }
  // Whether nobody can write to its output any more: it has ended, and so has whoever inherited that.
  bool output_has_ended() const;
  // Whether it has ended itself; wait() still tells how.
  bool has_ended() const;
  // Whether its main thread blocks `signal`, and whether such a one has come to it that nobody has taken yet.
  bool blocks(int signal) const;
  bool has_pending(int signal) const;
  // Whether a thread of it is called so, and whether that sleeps.
  bool has_thread(const std::string& name) const;
  bool thread_sleeps(const std::string& name) const;

  // On the control socket: next line ("" at end of file), and one byte that lets it go on.
  std::string hear_control();
  void release_control();

  // Waits for the end; status as a shell's: 128 + N for signal N. At most once.
  int wait();
  // SIGKILL and wait().
  void kill();
  bool started() const { return pid_ > 0; }

  static constexpr int kControlFd = 9;

 private:
  pid_t pid_ = 0;
  UniqueFd input_, output_, control_;
};

// Directory of the running executable: the hosts and the subject lie beside it.
std::filesystem::path program_directory();
// Directories of plugins: the shipped one ($SLUICE_TEST_PLUGIN_DIR, by default what the build has made), and
// the one that only writes down what happens to it.
std::filesystem::path shipped_plugin_directory();
std::filesystem::path probe_plugin_directory();

// A directory that goes with the object.
class ScratchDirectory {
 public:
  // Below `parent`, by default $TMPDIR or /tmp.
  explicit ScratchDirectory(const std::filesystem::path& parent = {});
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class Scene {
 public:
  // `libdir`: the plugin directory. Images go to `images`; empty: into a scratch directory.
  Scene(const vamdgpu::MachineOptions& options, std::filesystem::path libdir,
        const std::filesystem::path& images = {});

  vamdgpu::Machine& machine() { return machine_; }
  const std::filesystem::path& images() const { return images_; }
  std::filesystem::path pid_file() const { return scratch_->path() / "pid"; }
  // Programs started from now on run on another machine ("the images were carried there").
  void move_to(const vamdgpu::MachineOptions& options);

  // More variables for the hosts' environment.
  std::map<std::string, std::string> variables;
  // A program, by its path, and arguments: it runs hosts, with less than the test may itself (setpriv,
  // prlimit).
  Strings run_by;

  // Starts the subject and waits until it is ready. Its first line, "ready ..." or "bad ...".
  std::string start_subject(const Strings& arguments = {});
  Program& subject() { return subject_; }
  // Its process id: after a restore that of the restored one, which is nobody's child here.
  pid_t subject_pid() const { return subject_pid_; }

  // A program on the machine.
  Program start_program(const Strings& arguments) { return Program(arguments, environment()); }

  // Runs a host to its end; its exit status. `version`: "4.2" etc.
  int dump(const std::string& version, const Strings& more = {});
  // Restores; after success subject() is the restored one, to be asked like the first.
  int restore(const std::string& version, const Strings& more = {});
  // Starts a host with a control socket, for --hold. It dumps the subject, where there is one.
  Program start_host(const std::string& version, const std::string& command, const Strings& more);
  // Takes a restoring host's pipes as those of the subject, once it has exited with success.
  void adopt(Program host);
  // Looking into the machine.
  vamdgpu::Control& control() { return *control_; }

  // Returns when the killed subject has given back its GPU memory: the kernel closes its files in its own
  // time.
  void wait_until_subject_is_gone();

  // What the last host logged, and forgets it.
  std::string log();
  // Whether it has logged the text by now.
  bool has_logged(const std::string& text) const;

 private:
  Strings environment() const;
  void end_subject();

  std::unique_ptr<ScratchDirectory> scratch_;
  vamdgpu::Machine machine_;
  std::filesystem::path libdir_;
  std::filesystem::path images_;
  std::filesystem::path log_;
  Program subject_;
  pid_t subject_pid_ = 0;
  std::unique_ptr<vamdgpu::Control> control_;
};

// A subject that talks through FIFOs, which outlive it: after a restore the same object goes on talking.
class FifoSubject {
 public:
  // Makes the FIFOs in `directory`, which is new.
  explicit FifoSubject(const std::filesystem::path& directory);
  FifoSubject(FifoSubject&&) = delete;

  // Starts it on the scene's machine. Its first line, "ready ..." or "bad ...".
  std::string start(Scene& scene, const Strings& arguments);
  // The restored process is this one.
  void become(pid_t pid);
  pid_t pid() const { return pid_; }

  void say(const std::string& line);
  // Next line; "" when the process has ended.
  std::string hear();
  std::string ask(const std::string& line);
  // Whether there is something to hear. Does not wait.
  bool has_spoken();
  // Of one that is gone: what was said to it is not heard by the next, and what it has said is not heard.
  void forget();

  // Waits for the end of the program that start() started; status as a shell's, -1 when it was waited for.
  int wait() { return program_.started() ? program_.wait() : -1; }

 private:
  std::filesystem::path directory_;
  UniqueFd to_, from_, pidfd_;
  Program program_;
  pid_t pid_ = 0;
  std::string heard_;  // and not returned yet
};

std::string read_file(const std::filesystem::path& path);

}  // namespace sluice::lookalike
