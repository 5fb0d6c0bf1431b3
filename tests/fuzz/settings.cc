// SPDX-License-Identifier: MIT
// The configuration file, and what the settings in it, or in the environment, are taken for.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <string>

#include "fuzz.h"
#include "pipeline/unique_fd.h"
#include "plugin/config.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const UniqueFd file(::memfd_create("sluice.conf", MFD_CLOEXEC));
  FUZZ_CHECK(file.get() >= 0 && ::fchmod(file.get(), 0600) == 0);
  FUZZ_CHECK(::write(file.get(), data, size) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  plugin::LogLines lines;
  const plugin::Config config =
      plugin::parse_config(plugin::environment_and_file(path.c_str(), lines), lines);
  for (unsigned lanes : {0U, 1U, 7U, 64U}) {
    const plugin::Config part = config.shared_by(lanes);
    FUZZ_CHECK(std::has_single_bit(part.chunk_bytes) && part.chunk_bytes <= config.chunk_bytes);
    FUZZ_CHECK(part.slots() >= 2 && part.staging_bytes % part.chunk_bytes == 0);
  }
  for (const auto& line : lines) FUZZ_CHECK(!line.text.empty());
  return 0;
}
