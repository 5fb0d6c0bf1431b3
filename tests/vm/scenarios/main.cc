// SPDX-License-Identifier: MIT
// vm-scenarios: real criu, the shipped plugin and the subject on the GPUs of the guest. Runs as root in a
// guest (settings.h says where it looks); every case is a GoogleTest case of its own. `--list-drivers`: the
// table of drivers.h, anywhere.
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>
#include <string_view>

#include "drivers.h"
#include "process.h"
#include "settings.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "--list-drivers")
    return sluice::vm_test::list_drivers(std::cout) ? 0 : 1;
  // A subject that died must show as a failed check.
  (void)::signal(SIGPIPE, SIG_IGN);
  sluice::vm_test::become_subreaper();
  testing::GTEST_FLAG(filter) = sluice::vm_test::filter_of_driver(testing::GTEST_FLAG(filter));
  if (!testing::GTEST_FLAG(list_tests)) {
    const sluice::vm_test::CriuVersion& version = sluice::vm_test::criu_version();
    std::cout << "suite " << sluice::vm_test::settings().suite << ", criu " << version.major << "."
              << version.minor << "." << version.patch << "\n";
  }
  return RUN_ALL_TESTS();
}
