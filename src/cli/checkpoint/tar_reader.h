// SPDX-License-Identifier: MIT
// A tar file, plain or compressed by gzip or zstd, read once from begin to end (libarchive).
//
// Archives are untrusted input. Nothing is unpacked to the disk and no program is started. Memory does not
// grow with an archive's claims: data comes in parts, and headers (such as a sparse file's map) are limited.
// A format error is EBADMSG; errors of reading are passed on. One thread.
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
#include "cli/checkpoint/unpacked_input.h"
#include "images/files/image_source.h"

namespace sluice::cli {

// A file. The object has its own position: several can read one descriptor, which is borrowed. `on_progress`
// gets the bytes read so far, and may be null.
std::unique_ptr<Input> file_input(int fd, std::uint64_t file_bytes, std::string name,
                                  std::function<void(std::uint64_t)> on_progress);

class TarReader {
 public:
  struct Entry {
    std::string name;  // as in the archive
    bool regular = false;
    SourceFile file;
  };

  // Detects the compression. Errors: ENOEXEC if it is no tar file; ENOTSUP, with its name, for an unsupported
  // compression or kind of archive; EBADMSG if it cannot be uncompressed; those of reading; ENOMEM.
  static Result<std::unique_ptr<TarReader>> open(std::unique_ptr<Input> input);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // The next entry, however much of the last one was read; nothing after the last, and then a compression was
  // read to its end. Errors: EBADMSG for a damaged or truncated file; those of reading.
  Result<std::optional<Entry>> next();

  // A part of the entry's data. Between two parts there is a hole.
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
  explicit TarReader(Unpacked bytes);
  Error error() const;
  Error contradiction() const;
  Result<void> pass_entry();
  Result<void> pass_rest();
  static la_ssize_t read(struct archive* archive, void* self, const void** buffer);
  static la_int64_t skip(struct archive* archive, void* self, la_int64_t bytes);

  std::unique_ptr<Input> input_;
  bool packed_;
  std::unique_ptr<struct archive, Free> archive_;
  std::optional<Error> input_error_;  // the error that ended the reading, if any
  bool input_ended_ = false;
  bool in_header_ = true;
  std::uint64_t header_bytes_ = 0;           // since the header began
  std::uint64_t file_bytes_ = 0;             // of the entry
  std::uint64_t at_ = 0;                     // where its next part begins, or later
  std::string name_;                         // the entry's; empty before the first one
  la_int64_t data_begin_ = 0;                // where its data begins, in the archive
  std::optional<std::uint64_t> data_bytes_;  // how much the archive must have of it; nothing: it is no file
  bool data_is_read_ = false;                // or has begun to be
  struct archive_entry* entry_ = nullptr;    // the archive's
};

// The current entry of `reader`, of that many bytes. Borrows it. Errors name `name`.
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
  TarReader::Block block_;       // with `at_`, or the first one after it
  bool ended_ = false;           // no more blocks come
  std::optional<Error> failed_;  // nor after this error
};

// An entry that is itself a tar file, such as an image's layer. Borrows the reader.
std::unique_ptr<Input> entry_input(TarReader& reader, std::uint64_t bytes);

}  // namespace sluice::cli
