// SPDX-License-Identifier: MIT
// Where the images of one checkpoint are, for readers only: a directory here, an archive in
// cli/checkpoint/archive_source.h. Names are of files in one folder; they have no '/'.
//
// Small files are read completely, by name. Contents are streams, each file from begin to end, in the
// source's order: an archive has one order, and is not unpacked. Errors distinguish (images/files/cause.h)
// missing, not readable, and damaged. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "images/files/key.h"

namespace sluice {

// What is known about a file without reading it. Bytes.
struct SourceFile {
  std::uint64_t bytes = 0;
  std::uint64_t stored_bytes = 0;  // without holes: space on the disk, or in the archive before compression
};

// A file being read.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // How many of the next bytes are known to be zeros (a hole), at most `most`.
  virtual std::uint64_t zeros_ahead(std::uint64_t most) = 0;
  // Fills `into`, holes with zeros. Errors: those of reading; EBADMSG if the file ends early.
  virtual Result<void> read(std::span<std::byte> into) = 0;
  // Skips that many bytes. Errors: as read().
  virtual Result<void> skip(std::uint64_t bytes) = 0;
};

// What the metadata of a checkpoint are read from: a source, or the store of a run of CRIU.
class MetadataReader {
 public:
  virtual ~MetadataReader() = default;

  // Of all files that are known, images among them. Errors: those of listing.
  virtual Result<std::vector<std::string>> names() const = 0;
  // Payload of an image. Errors: read_image()'s.
  virtual Result<std::vector<std::uint8_t>> load(const std::string& name) const = 0;
  // What it is read with.
  virtual const ImageKeys& keys() const = 0;
};

class ImageSource : public MetadataReader {
 public:
  // The keys for reading its images. Call before reading any.
  void set_keys(ImageKeys keys) { keys_ = std::move(keys); }
  const ImageKeys& keys() const override { return keys_; }
  Result<std::vector<std::uint8_t>> load(const std::string& name) const override;
  // Errors: ENOENT; EINVAL unless it is a regular file; EFBIG for more than `most` bytes, before any memory
  // is allocated; EBADMSG; those of reading.
  virtual Result<std::vector<std::uint8_t>> read(const std::string& name, std::uint64_t most) const = 0;
  // Whether the file can be opened, and its properties. Errors: as read().
  virtual Result<SourceFile> look(const std::string& name) const = 0;
  // For a file that look() accepted: bytes known to be zeros, in holes. 0 if unknown.
  virtual std::uint64_t hole_bytes(const std::string& name) const = 0;

  // Passes each of `names` to `take`, once, in the cheapest order. `take` need not read all of a file; its
  // first error ends everything. Errors: that one; those of getting from one file to the next: later names
  // were not passed.
  using Take = std::function<Result<void>(const std::string& name, ByteStream& bytes)>;
  virtual Result<void> stream(const std::set<std::string>& names, const Take& take) const = 0;

  // If the files are files of this machine, which can be read in any order and at once: their directory.
  virtual std::optional<int> directory() const { return std::nullopt; }

 private:
  ImageKeys keys_;
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

// Payload of an image. Errors: read()'s, with a limit of kLargestImageBytes; EBADMSG if frame and file size
// disagree.
Result<std::vector<std::uint8_t>> read_image(const ImageSource& source, const std::string& name);

}  // namespace sluice
