// SPDX-License-Identifier: MIT
// Which driver a scenario runs on: AMD's own on emulated cards, wherever that can show the thing, else our
// module, for a reason that is written down. The table in drivers.cc is the only place that says so:
// `vm-scenarios --list-drivers` prints it for this program's scenarios, and docs/internals/vm-drivers.md has
// that list.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace sluice::vm_test {

enum class Driver { Stock, Module };

// Of a scenario ("Suite.Name", as GoogleTest calls it) on this kernel. A guest without cards has nothing but
// our module.
Driver driver_of(std::string_view scenario);

// Of SLUICE_VM_DRIVER ("stock", "module"; without it both): GoogleTest's filter that leaves out the scenarios
// of the other driver. `filter`: what was asked for.
std::string filter_of_driver(const std::string& filter);

// Every scenario of this program that is not on AMD's driver alone, with the reason and the kernels that it
// is true for, as a table of Markdown. False when the table names a scenario that does not exist.
bool list_drivers(std::ostream& out);

}  // namespace sluice::vm_test
