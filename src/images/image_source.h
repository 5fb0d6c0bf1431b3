// SPDX-License-Identifier: MIT
// Where the images of one checkpoint lie, for who only looks at them: a directory here, an archive in
// cli/archive_source.h. Names are of files in one folder; they have no '/'.
//
// What is small is read whole, by name. Contents come as streams, each file from its begin to its end, in
// whatever order the source has them: an archive has one order, and is not unpacked. Errors tell apart
// (images/cause.h) what is not there, what may not be read, and what is damaged. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

// What is known of a file without reading it. Bytes.
struct SourceFile {
  std::uint64_t bytes = 0;
  std::uint64_t stored_bytes = 0;  // without holes: what it takes on the disk, or in the archive before that
                                   // was compressed
};

// A file under way.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // How many of the next bytes are known to be zeros, at most `most`: a hole.
  virtual std::uint64_t zeros_ahead(std::uint64_t most) = 0;
  // Fills `into`, holes with zeros. Errors: those of reading; EBADMSG where the file ends before.
  virtual Result<void> read(std::span<std::byte> into) = 0;
  // Passes over so many. Errors: as read().
  virtual Result<void> skip(std::uint64_t bytes) = 0;
};

class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual Result<std::vector<std::string>> names() const = 0;
  // Errors: ENOENT; EINVAL for what is no regular file; EFBIG, before there is memory for it, for more than
  // `most` bytes; EBADMSG; those of reading.
  virtual Result<std::vector<std::uint8_t>> read(const std::string& name, std::uint64_t most) const = 0;
  // Whether the file can be opened, and what is told of it. Errors: as read().
  virtual Result<SourceFile> look(const std::string& name) const = 0;
  // Of a file that look() was good for: bytes that are known to be zeros, in holes. 0 where nobody tells.
  virtual std::uint64_t hole_bytes(const std::string& name) const = 0;

  // Hands each of `names` to `take`, once, in the order that costs least. It need not read all of a file, and
  // ends everything with its first error. Errors: that one; those of getting from one file to the next: the
  // names that come then were not handed over.
  using Take = std::function<Result<void>(const std::string& name, ByteStream& bytes)>;
  virtual Result<void> stream(const std::set<std::string>& names, const Take& take) const = 0;

  // Where the files are files of this machine, which may be read in any order and at once: their directory.
  virtual std::optional<int> directory() const { return std::nullopt; }
};

// Borrows the descriptor.
class DirectorySource final : public ImageSource {
 public:
  explicit DirectorySource(int dir_fd) : dir_fd_(dir_fd) {}

  Result<std::vector<std::string>> names() const override;
  Result<std::vector<std::uint8_t>> read(const std::string& name, std::uint64_t most) const override;
  Result<SourceFile> look(const std::string& name) const override;
  std::uint64_t hole_bytes(const std::string& name) const override;
  Result<void> stream(const std::set<std::string>& names, const Take& take) const override;
  std::optional<int> directory() const override { return dir_fd_; }

 private:
  int dir_fd_;
};

// Payload of an image. Errors: read()'s, of more than kLargestImageBytes; EBADMSG when frame and file size
// disagree.
Result<std::vector<std::uint8_t>> read_image(const ImageSource& source, const std::string& name);

}  // namespace sluice
