// SPDX-License-Identifier: MIT
// A scenario's own directory, with a descriptor of it; removed with its contents.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::bench {

class Place {
 public:
  // A new directory in `parent`. Errors: those of mkdtemp and open.
  static Result<Place> make(const std::filesystem::path& parent);
  Place(Place&& other) noexcept = default;
  Place& operator=(Place&&) = delete;
  ~Place();

  int fd() const { return fd_.get(); }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  // Writes back dirty data of earlier work, so that no later run pays for it.
  void settle() const;

 private:
  Place(std::filesystem::path path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace sluice::bench
