// SPDX-License-Identifier: MIT
// sluice-stats-*.json, and what `sluice show --stats` prints of it, with --json and without.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cli/command.h"
#include "cli/show/show_statistics.h"
#include "fuzz.h"

using namespace sluice;

namespace {

fuzz::Goal some("statistics");

constexpr const char* kName = "sluice-stats-restore-1.json";

// One for the process, which the fuzzer ends without a destructor.
int folder() {
  static const UniqueFd fd = [] {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz-statistics-XXXXXX").string();
    FUZZ_CHECK(::mkdtemp(name.data()) != nullptr);
    return UniqueFd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }();
  return fd.get();
}

void write_file(const std::uint8_t* data, std::size_t size) {
  const UniqueFd file(::openat(folder(), kName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  FUZZ_CHECK(file && ::write(file.get(), data, size) == static_cast<ssize_t>(size));
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  write_file(data, size);
  std::vector<Error> faults;
  const std::vector<cli::Statistics> all = cli::read_statistics(DirectorySource(folder()), faults);
  FUZZ_CHECK(all.size() + faults.size() == 1);
  for (const Error& fault : faults) FUZZ_CHECK(!fault.what.empty() && is_printable(fault.what));
  const std::string text = cli::statistics_text(all);
  FUZZ_CHECK(is_printable(text) && text.ends_with('\n'));
  for (const cli::Statistics& one : all) {
    some.reach();
    const std::string line = cli::json_line(one.content);
    FUZZ_CHECK(is_printable(line) && line.find('\n') == std::string::npos);
    FUZZ_CHECK(nlohmann::ordered_json::parse(line) == one.content);
  }
  return 0;
}
