// SPDX-License-Identifier: MIT
// vm-scenarios: real criu, the shipped plugin and the subject on the GPUs of the guest. Runs as root in a
// guest (settings.h says where it looks); every case is a GoogleTest case of its own.
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>

#include "process.h"
#include "settings.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // A subject that died must show as a failed check.
  (void)::signal(SIGPIPE, SIG_IGN);
  sluice::vm_test::become_subreaper();
  if (!testing::GTEST_FLAG(list_tests)) {
    const sluice::vm_test::CriuVersion& version = sluice::vm_test::criu_version();
    std::cout << "suite " << sluice::vm_test::settings().suite << ", criu " << version.major << "."
              << version.minor << "." << version.patch << "\n";
  }
  return RUN_ALL_TESTS();
}
