// SPDX-License-Identifier: MIT
// What AMD's driver answers to some seven hundred questions, on this kernel: as the list says
// (tests/vamdgpu/questions), or the list is not true any more.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "questions.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

using vamdgpu::questions::Asked;
using vamdgpu::questions::Linux;

// The kernels of the suites; a newer one answers as the newest does, or shows here what is new.
Linux linux_of(const KernelVersion& kernel) {
  if (kernel >= KernelVersion{7, 2}) return Linux::k72;
  return kernel >= KernelVersion{6, 12} ? Linux::k612 : Linux::k61;
}

class Questions : public Scenario {};

TEST_F(Questions, AreAnsweredAsTheListSays) {
  if (Card::have_dies()) GTEST_SKIP() << "the list has an MI210's answers";
  if (driver_is_given()) GTEST_SKIP() << "the list has the answers of Linux's own driver";
  load({.number = 1, .vram_mib = 256});
  const std::vector<Asked> asked =
      vamdgpu::questions::ask_everything(linux_of(kernel_version()), vamdgpu::questions::Who::Driver);
  forgive_kernel_log();  // the driver says why it refuses
  EXPECT_GT(asked.size(), 650U);
  for (const std::string& line : vamdgpu::questions::surprises(asked)) ADD_FAILURE() << line;
}

}  // namespace
}  // namespace sluice::vm_test
