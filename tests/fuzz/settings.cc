// SPDX-License-Identifier: MIT
// The configuration file, and what the settings in it, or in the environment, are taken for. The input is the
// file's text, and behind a zero each the environment's NAME=value.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "fuzz.h"
#include "kfd/matching/gpu_map.h"
#include "settings/config.h"

using namespace sluice;

namespace {

fuzz::Goal from_the_file("a file of settings without a fault"),
    from_the_environment("settings of the environment without a fault");

// Settings in the environment while it lives; none of anybody else's.
class Environment {
 public:
  explicit Environment(std::string_view texts) {
    while (!texts.empty()) {
      const std::string_view text = texts.substr(0, texts.find('\0'));
      texts.remove_prefix(std::min(text.size() + 1, texts.size()));
      const std::size_t equals = text.find('=');
      const std::string name(text.substr(0, equals));
      if (equals == std::string_view::npos || !(name.starts_with("SLUICE_") || name.starts_with("KFD_")))
        continue;
      FUZZ_CHECK(::setenv(name.c_str(), std::string(text.substr(equals + 1)).c_str(), 1) == 0);
      names_.push_back(name);
    }
  }
  bool empty() const { return names_.empty(); }
  ~Environment() {
    for (const std::string& name : names_) (void)::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> names_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const UniqueFd file(::memfd_create("sluice.conf", MFD_CLOEXEC));
  FUZZ_CHECK(file.get() >= 0 && ::fchmod(file.get(), 0600) == 0);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view text = all.substr(0, all.find('\0'));
  FUZZ_CHECK(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  const Environment environment(all.substr(std::min(text.size() + 1, size)));
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  LogLines lines;
  const settings::Config config =
      settings::parse_config(settings::environment_and_file(path.c_str(), lines), lines);
  if (lines.empty() && config.staging_bytes != settings::Config().staging_bytes)
    (environment.empty() ? from_the_file : from_the_environment).reach();
  for (unsigned lanes : {0U, 1U, 7U, 64U}) {
    const settings::Config part = config.shared_by(lanes);
    FUZZ_CHECK(std::has_single_bit(part.chunk_bytes) && part.chunk_bytes <= config.chunk_bytes);
    FUZZ_CHECK(part.slots() >= 2 && part.staging_bytes % part.chunk_bytes == 0);
  }
  if (const auto map = kfd::GpuMap::parse(config.gpu_map.value_or("")); !map)
    FUZZ_CHECK(map.error().err == EINVAL && map.error().what.size() < 512);
  for (const auto& line : lines) FUZZ_CHECK(!line.text.empty());
  return 0;
}
