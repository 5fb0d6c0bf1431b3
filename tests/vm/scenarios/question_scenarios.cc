// SPDX-License-Identifier: MIT
// What AMD's driver answers to some seven hundred questions, on this kernel: as the list says
// (tests/vamdgpu/questions), or the list is not true any more. Our module answers alike, except where
// the list explains.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "drivers.h"
#include "questions.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

using vamdgpu::questions::Asked;
using vamdgpu::questions::Linux;
using vamdgpu::questions::Who;

// The kernels of the suites; a newer one answers as the newest does, or shows here what is new.
Linux linux_of(const KernelVersion& kernel) {
  if (kernel >= KernelVersion{7, 2}) return Linux::k72;
  return kernel >= KernelVersion{6, 12} ? Linux::k612 : Linux::k61;
}

const char* name_of(Linux version) {
  return version == Linux::k72 ? "7.2" : version == Linux::k612 ? "6.12" : "6.1";
}

class Questions : public Scenario {
 protected:
  void expect_the_lists_answers(Who who) {
    Gpus one;
    one.number = 1;
    one.vram_mib = 256;
    one.ours_too = {"--linux", name_of(linux_of(kernel_version()))};
    ASSERT_NO_FATAL_FAILURE(load(one));
    const std::vector<Asked> asked = vamdgpu::questions::ask_everything(linux_of(kernel_version()), who);
    forgive_kernel_log();  // the drivers say why they refuse
    EXPECT_GT(asked.size(), 650U);
    for (const std::string& line : vamdgpu::questions::surprises(asked)) ADD_FAILURE() << line;
  }
};

TEST_F(Questions, AreAnsweredAsTheListSays) {
  const bool stock = driver_of("Questions.AreAnsweredAsTheListSays") == Driver::Stock;
  expect_the_lists_answers(stock ? vamdgpu::questions::kDriver : vamdgpu::questions::kModule);
}

class QuestionsToOurModule : public Questions {};

TEST_F(QuestionsToOurModule, AreAnsweredAsTheListSays) {
  expect_the_lists_answers(vamdgpu::questions::kModule);
}

}  // namespace
}  // namespace sluice::vm_test
