// SPDX-License-Identifier: MIT
// What every scenario has: a machine with GPUs, a subject, criu, a directory for images, and an end that
// looks for what was left behind. GoogleTest fixtures derive from it.
//
// After the body: no process is left, every GPU object is gone, the kernel has nothing to complain of. A
// scenario that failed prints the end of its criu logs and all of the plugin's lines, and its logs go to
// SLUICE_VM_OUT.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "criu.h"
#include "guest_subject.h"
#include "kernel_log.h"
#include "machine.h"
#include "settings.h"

namespace sluice::vm_test {

// The subject with everything that a process can have, on two GPUs.
Strings everything();

class Scenario : public testing::Test {
 protected:
  Scenario();
  ~Scenario() override;
  void SetUp() override;
  void TearDown() override;

  // A directory on the disk, made, empty.
  std::filesystem::path images(const std::string& name = "images") const;
  const std::filesystem::path& scratch() const { return scratch_; }

  // Most scenarios run on two GPUs.
  void load(const Gpus& wanted = {});
  // The images were carried to another machine.
  void move_to(const Gpus& wanted);
  Machine& machine() { return machine_; }

  // Options of the subject with those that every subject here gets, and without SVM where the driver was
  // built without it.
  static Strings with_common_options(const Strings& options);

  // ---- steps; each expects its own success, and an ASSERT_NO_FATAL_FAILURE around them ends the scenario
  void start_subject(const Strings& options, const Launch& launch = {});
  // Everything in the subject is as it was, it works on, and all is right after that, too.
  void expect_whole();
  // Dumps it, and it is gone.
  void dump(const Strings& more = {});
  void restore(const Strings& more = {});
  // The same with two dumps before it, each the parent of the next, while it works on: a chain of three.
  // `sluice check` sees in the maps of the process that the last parent has its buffers.
  void dump_chain();
  // dump, restore, expect_whole.
  void expect_survives(const Strings& dump_options = {}, const Strings& restore_options = {});
  // The subject's queues run: packets put into them are consumed.
  void expect_queues_run();

  // No restore comes from these images: criu says so and no process is made.
  void expect_no_complete_image(const std::filesystem::path& directory);

  Machine machine_;
  std::optional<GuestSubject> subject_;
  std::optional<Criu> criu_;
  pid_t dumped_pid_ = 0;
  Strings possessions_;  // of the dumped process

  // What the kernel has said up to now was asked for.
  void forgive_kernel_log() { kernel_log_.emplace(); }

 private:
  void expect_nothing_left();
  void expect_known_buffers(const std::filesystem::path& parent);
  void report_logs();

  std::filesystem::path scratch_;
  std::filesystem::path disk_;
  std::optional<KernelLog> kernel_log_;
  std::optional<Usage> at_start_;
};

}  // namespace sluice::vm_test
