// SPDX-License-Identifier: MIT
// A tar file, plain or compressed by gzip or zstd, read once from its begin to its end (libarchive).
//
// Archives are untrusted input. Nothing is unpacked to the disk and no program is started. Memory does not
// grow with what an archive says of itself: data comes in parts, headers (a sparse file's map is one) have a
// bound. What breaks the format is EBADMSG; what reading gives travels as it is. One thread.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/image_source.h"

namespace sluice::cli {

// Bytes that come one after the other.
class Input {
 public:
  virtual ~Input() = default;
  // Some of the next ones, which stay until the next call; nothing at the end.
  virtual Result<std::span<const std::byte>> next() = 0;
  // Passes over up to so many, where that is cheaper than next(); how many it were.
  virtual std::uint64_t skip(std::uint64_t /*bytes*/) { return 0; }
};

// A file. Where it is read stays with the object: several can read one descriptor, which is borrowed.
// `on_progress` gets the bytes that were read, and may be null.
std::unique_ptr<Input> file_input(int fd, std::uint64_t file_bytes, std::string name,
                                  std::function<void(std::uint64_t)> on_progress);

class TarReader {
 public:
  struct Entry {
    std::string name;  // as the archive has it
    bool regular = false;
    SourceFile file;
  };

  // Finds out how the input is compressed. Errors: ENOEXEC for what is no tar file; ENOTSUP, with its name,
  // for a compression or a kind of archive that is not read here; EBADMSG for what cannot be uncompressed;
  // those of reading; ENOMEM.
  static Result<std::unique_ptr<TarReader>> open(std::unique_ptr<Input> input);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // The next entry, whatever of the last one was read; nothing behind the last. Errors: EBADMSG for a damaged
  // file, and for one that was cut; those of reading.
  Result<std::optional<Entry>> next();

  // A part of the entry's data. What lies between two parts is a hole.
  struct Block {
    std::span<const std::byte> bytes;  // until the next call
    std::uint64_t offset = 0;          // in the file
  };
  // Ascending, within the file's bytes; nothing at the end.
  Result<std::optional<Block>> next_block();

 private:
  struct Free {
    void operator()(struct archive* archive) const { (void)archive_read_free(archive); }
  };
  explicit TarReader(std::unique_ptr<Input> input);
  Error error() const;
  static la_ssize_t read(struct archive* archive, void* self, const void** buffer);
  static la_int64_t skip(struct archive* archive, void* self, la_int64_t bytes);

  std::unique_ptr<Input> input_;
  std::unique_ptr<struct archive, Free> archive_;
  std::optional<Error> input_error_;  // what ended the reading, if that was it
  bool input_ended_ = false;
  bool in_header_ = true;
  std::uint64_t header_bytes_ = 0;         // since the header began
  std::uint64_t file_bytes_ = 0;           // of the entry
  std::uint64_t at_ = 0;                   // where the next part of it begins, or later
  struct archive_entry* entry_ = nullptr;  // the archive's
};

// The entry that `reader` has come to, of so many bytes. Borrows it. Errors name `name`.
class EntryStream final : public ByteStream {
 public:
  EntryStream(TarReader& reader, std::uint64_t bytes, std::string name)
      : reader_(reader), bytes_(bytes), name_(std::move(name)) {}

  std::uint64_t zeros_ahead(std::uint64_t most) override;
  Result<void> read(std::span<std::byte> into) override;
  Result<void> skip(std::uint64_t bytes) override;

 private:
  Result<void> find_block();
  Error explain_here(const Error& error) const;

  TarReader& reader_;
  std::uint64_t bytes_;
  std::string name_;
  std::uint64_t at_ = 0;
  TarReader::Block block_;       // that has `at_`, or the first one after it
  bool ended_ = false;           // no block comes any more
  std::optional<Error> failed_;  // nor after this
};

// An entry whose data is a tar file again, as the layers of an image are. Borrows the reader.
std::unique_ptr<Input> entry_input(TarReader& reader, std::uint64_t bytes);

}  // namespace sluice::cli
