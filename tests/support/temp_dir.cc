// SPDX-License-Identifier: MIT
#include "support/temp_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace sluice::test {

TempDir::TempDir(const std::string& parent) {
  const char* const tmpdir = std::getenv("TMPDIR");
  path_ = !parent.empty() ? parent : tmpdir != nullptr ? tmpdir : "/tmp";
  path_ += "/sluice-test-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    std::perror(path_.c_str());
    std::exit(1);
  }
  fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TempDir::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

Bytes TempDir::read(const std::string& name) const {
  std::ifstream file(path_ + "/" + name, std::ios::binary | std::ios::ate);
  Bytes bytes(file ? static_cast<std::size_t>(file.tellg()) : 0);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

void TempDir::write(const std::string& name, const Bytes& bytes) const {
  std::ofstream file(path_ + "/" + name, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

bool TempDir::exists(const std::string& name) const {
  return ::access((path_ + "/" + name).c_str(), F_OK) == 0;
}

}  // namespace sluice::test
