// SPDX-License-Identifier: MIT
#include "plugin/predump/host_predump.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/format.h"
#include "kfd/device.h"
#include "proc/processes.h"
#include "settings/settings.h"

namespace sluice::plugin {

Result<std::unique_ptr<HostPreDump>> HostPreDump::make() {
  std::unique_ptr<HostPreDump> made(new HostPreDump);
  const auto kfd_device = kfd::kfd_device_number();
  if (!kfd_device) return made;
  made->kfd_device_ = *kfd_device;
  LogLines lines;
  const settings::Config config = settings::parse_config(settings::plugin_settings(lines), lines);
  log_lines(lines);
  // CRIU closes its own before it ends.
  made->directory_.reset(::openat(image_dir_fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made->directory_) return make_error(errno, "open the image directory", Topic::Images);
  made->store_ = ImageStore::of_directory([fd = made->directory_.get()] { return fd; });
  made->predump_.emplace(*made->store_, *kfd_device, PreDump::Shares::One);
  made->wanted_ = config.predump && !streaming();
  made->signals_.emplace(made->predump_->stopped());
  made->ready_ = made->predump_->read_machine();
  if (made->wanted_ && made->ready_) made->ready_ = made->predump_->prepare(config);
  // What would fail the dump, before CRIU overwrites its own images.
  if (made->wanted_ && made->ready_) SLUICE_TRY(made->predump_->look_for_parent());
  return made;
}

void HostPreDump::note_task(pid_t pid) {
  if (!predump_) return;
  predump_->tree().add(pid);
  tasks_.push_back(pid);
}

Result<Answer> HostPreDump::accept_map(const struct stat& st) {
  if (!predump_ || !S_ISCHR(st.st_mode)) return Answer();
  // Without the topology it is unknown whose a render node is, and CRIU would refuse to go on.
  const bool ours = predump_->tree().is_ours(st.st_rdev);
  if (!ours) return Answer();
  if (wanted_ && !std::exchange(asked_, true)) SLUICE_TRY(begin());
  return Answer(0);
}

Result<void> HostPreDump::begin() {
  Result<void> begun = ready_;
  if (begun) begun = lock_directory();
  {
    const HeldSignals::InHook hook(*signals_);
    if (begun) begun = predump_->begin();
  }
  if (predump_->queues_stand()) {
    predump_->cancel();  // retries while the processes are traced
    return begun;
  }
  if (signals_->caught()) {
    predump_->cancel();
    return Error{EINTR, "a signal ended the pre-dump; the processes keep running [SL-D61]"};
  }
  copies_ = begun && predump_->any_contents();
  if (!begun) {
    say_why_not(begun.error());
    predump_->cancel();
  } else if (copies_) {
    log_line(Level::Info, "GPU queues were paused for " + std::to_string(predump_->frozen_ns() / 1000) +
                              " us; what is in the GPUs is copied while the processes run");
  }
  return {};
}

Result<void> HostPreDump::lock_directory() {
  SLUICE_TRY_ASSIGN(lock_, DirectoryLock::take(directory_.get()));
  return {};
}

void HostPreDump::say_why_not(const Error& why) {
  log_line(
      Level::Warning,
      formatted("the pre-dump has no GPU memory: {}; the next dump writes everything [SL-D62]", why.what));
}

Result<void> HostPreDump::finish(int status) {
  if (!predump_) return {};
  if (status != 0) {
    predump_->abandon();
    if (signals_ && signals_->caught()) signals_.reset();  // a held signal acts now
    return {};
  }
  if (!copies_) {
    say_that_nothing_came();
    return {};
  }
  const auto finished = predump_->finish();
  if (!finished) say_why_not(finished.error());
  return {};
}

// Only if the host names its tasks.
void HostPreDump::say_that_nothing_came() const {
  if (!wanted_ || asked_) return;
  const bool any = std::any_of(tasks_.begin(), tasks_.end(), [this](pid_t pid) {
    const auto descriptors = proc::device_descriptors(pid, kfd_device_);
    return descriptors && !descriptors->empty();
  });
  if (!any) return;
  log_line(Level::Warning,
           "the pre-dump has no GPU memory, because CRIU asked for no GPU map (stopped processes, or none "
           "mapped); "
           "use sluice predump [SL-D63]");
}

}  // namespace sluice::plugin
