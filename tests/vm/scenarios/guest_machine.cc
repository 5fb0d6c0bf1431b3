// SPDX-License-Identifier: MIT
#include "guest_machine.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "settings.h"

namespace sluice::vm_test {
namespace {

constexpr const char* kControlDirectory = "/sys/kernel/debug/vamdgpu";

}  // namespace

GuestMachine::~GuestMachine() {
  (void)unload();
}

void GuestMachine::load(const Strings& options) {
  Launch loader;
  loader.arguments = {(settings().programs / "vamdgpu-load").string(), "--module",
                      settings().module.string()};
  loader.arguments.insert(loader.arguments.end(), options.begin(), options.end());
  loader.output = "/dev/console";
  const std::optional<int> status = run(loader);
  if (status != 0) throw std::runtime_error("vamdgpu-load did not load the module");
  control_ = vamdgpu::Control::open(kControlDirectory);
  if (!control_) throw std::runtime_error(std::string("no control of the module: ") + std::strerror(errno));
  changes_.reset(::open((std::string(kControlDirectory) + "/changes").c_str(), O_RDONLY | O_CLOEXEC));
  if (!changes_) throw std::runtime_error(std::string("changes of the module: ") + std::strerror(errno));
  watch_for_changes(changes_.get());
}

bool GuestMachine::unload() {
  if (!loaded()) return true;
  control_.reset();
  watch_for_changes(-1);
  changes_.reset();
  Launch loader;
  loader.arguments = {(settings().programs / "vamdgpu-load").string(), "--unload"};
  loader.output = "/dev/console";
  return run(loader) == 0;
}

}  // namespace sluice::vm_test
