// SPDX-License-Identifier: MIT
#include "images/chain/extent_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/image_file.h"
#include "pipeline/store/file_reader.h"

namespace sluice {

Result<ExtentStream> ExtentStream::open(const ExtentMap& map) {
  ExtentStream stream(map);
  for (const ExtentFile& file : map.files) {
    auto opened = open_image_file(file.dir_fd, file.name);
    if (!opened) return explain(file.words, opened.error());
    SLUICE_TRY(check_pages_file(file.words, opened->status, file.bytes));
    stream.fds_.push_back(std::move(opened->fd));
  }
  return stream;
}

std::uint64_t ExtentStream::zeros_ahead(std::uint64_t most) {
  if (at_ >= end()) return 0;
  const Extent& extent = map_->at(at_);
  return extent.is_zeros() ? std::min(most, extent.end - at_) : 0;
}

Result<void> ExtentStream::read(std::span<std::byte> into) {
  while (!into.empty()) {
    if (at_ >= end())
      return make_error(EBADMSG, "read " + map_->files.front().words + ": the file ends early");
    const Extent& extent = map_->at(at_);
    const auto part =
        into.first(static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), extent.end - at_)));
    if (extent.is_zeros()) {
      std::fill(part.begin(), part.end(), std::byte{0});
    } else {
      const std::uint64_t offset = extent.offset + (at_ - extent.begin);
      for (std::size_t done = 0; done < part.size();) {
        const ssize_t got = TEMP_FAILURE_RETRY(::pread(
            fds_[extent.file].get(), &part[done], part.size() - done, static_cast<off_t>(offset + done)));
        if (got <= 0)
          return make_error(got < 0 ? errno : EBADMSG, "read " + map_->files[extent.file].words + " at " +
                                                           std::to_string(offset + done));
        done += static_cast<std::size_t>(got);
      }
    }
    at_ += part.size();
    into = into.subspan(part.size());
  }
  return {};
}

Result<void> ExtentStream::skip(std::uint64_t bytes) {
  at_ += bytes;
  return {};
}

}  // namespace sluice
