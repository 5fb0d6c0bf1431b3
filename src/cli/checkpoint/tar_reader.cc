// SPDX-License-Identifier: MIT
#include "cli/checkpoint/tar_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/units.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kReadBytes = kMiB;
// For one entry's headers. The longest is a sparse file's map, with some 24 bytes per run of data: enough for
// 700 000 runs. The shortest possible runs, of 4 bytes, then take libarchive 200 MiB.
constexpr std::uint64_t kMostHeaderBytes = 16 * kMiB;

class FileInput final : public Input {
 public:
  FileInput(int fd, std::uint64_t file_bytes, std::string name,
            std::function<void(std::uint64_t)> on_progress)
      : fd_(fd), file_bytes_(file_bytes), name_(std::move(name)), on_progress_(std::move(on_progress)) {}

  Result<std::span<const std::byte>> next() override {
    const ssize_t got =
        TEMP_FAILURE_RETRY(::pread(fd_, buffer_.data(), buffer_.size(), static_cast<off_t>(at_)));
    if (got < 0) return make_error(errno, "read " + name_ + " at " + std::to_string(at_));
    at_ += static_cast<std::uint64_t>(got);
    if (on_progress_) on_progress_(at_);
    return std::span<const std::byte>(buffer_).first(static_cast<std::size_t>(got));
  }
  // Never beyond the end, because then a truncated file would go unnoticed.
  std::uint64_t skip(std::uint64_t bytes) override {
    const std::uint64_t passed = std::min(bytes, file_bytes_ - std::min(at_, file_bytes_));
    at_ += passed;
    return passed;
  }

 private:
  int fd_;
  std::uint64_t file_bytes_;
  std::string name_;
  std::function<void(std::uint64_t)> on_progress_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes);
};

class EntryInput final : public Input {
 public:
  EntryInput(TarReader& reader, std::uint64_t bytes) : bytes_(bytes), stream_(reader, bytes, "") {}

  Result<std::span<const std::byte>> next() override {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), bytes_ - at_));
    const std::span<std::byte> part = std::span(buffer_).first(length);
    if (part.empty()) return std::span<const std::byte>();
    SLUICE_TRY(stream_.read(part));
    at_ += length;
    return std::span<const std::byte>(part);
  }

 private:
  std::uint64_t bytes_;
  EntryStream stream_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(256 * kKiB);
};

// An archive's message, for a sentence of ours.
std::string describe(struct archive* archive) {
  const char* const text = archive_error_string(archive);
  return text != nullptr ? text : "libarchive does not say why";
}

// ARCHIVE_RETRY, too, is a failure: of a header that was damaged, which libarchive would pass over.
bool is_failure(int result) {
  return result != ARCHIVE_OK && result != ARCHIVE_WARN;
}

}  // namespace

std::unique_ptr<Input> file_input(int fd, std::uint64_t file_bytes, std::string name,
                                  std::function<void(std::uint64_t)> on_progress) {
  return std::make_unique<FileInput>(fd, file_bytes, std::move(name), std::move(on_progress));
}

std::unique_ptr<Input> entry_input(TarReader& reader, std::uint64_t bytes) {
  return std::make_unique<EntryInput>(reader, bytes);
}

Result<std::unique_ptr<TarReader>> TarReader::open(std::unique_ptr<Input> input) {
  SLUICE_TRY_ASSIGN(Unpacked bytes, unpacked(std::move(input)));
  std::unique_ptr<TarReader> reader(new TarReader(std::move(bytes)));
  struct archive* const tar = reader->archive_.get();
  if (tar == nullptr || archive_read_support_format_tar(tar) != ARCHIVE_OK)
    return Error{ENOMEM, "out of memory"};
  if (archive_read_open2(tar, reader.get(), nullptr, read, skip, nullptr) == ARCHIVE_OK) return reader;
  // A file of no known format is not called damaged.
  const Error error = reader->error();
  return error.err != EBADMSG || reader->input_error_ ? error : Error{ENOEXEC, "no tar"};
}

TarReader::TarReader(Unpacked bytes)
    : input_(std::move(bytes.input)), packed_(bytes.was_packed), archive_(archive_read_new()) {}

TarReader::~TarReader() = default;

la_ssize_t TarReader::read(struct archive* archive, void* self, const void** buffer) {
  auto& reader = *static_cast<TarReader*>(self);
  auto part = reader.input_->next();
  if (part && reader.in_header_ && (reader.header_bytes_ += part->size()) > kMostHeaderBytes)
    part = make_error(EBADMSG, "headers of an entry have no end");
  if (part) {
    reader.input_ended_ = part->empty();
    *buffer = part->data();
    return static_cast<la_ssize_t>(part->size());
  }
  reader.input_error_ = part.error();
  archive_set_error(archive, part.error().err, "%s", part.error().what.c_str());
  return -1;
}

la_int64_t TarReader::skip(struct archive* /*archive*/, void* self, la_int64_t bytes) {
  auto& reader = *static_cast<TarReader*>(self);
  return static_cast<la_int64_t>(
      reader.input_->skip(static_cast<std::uint64_t>(std::max<la_int64_t>(bytes, 0))));
}

Error TarReader::error() const {
  if (input_error_) return *input_error_;
  const bool memory = archive_errno(archive_.get()) == ENOMEM;
  return Error{memory ? ENOMEM : EBADMSG, describe(archive_.get())};
}

Result<std::optional<TarReader::Entry>> TarReader::next() {
  struct archive* const tar = archive_.get();
  SLUICE_TRY(pass_entry());
  in_header_ = true;
  header_bytes_ = 0;
  const int got = archive_read_next_header(tar, &entry_);
  in_header_ = false;
  if (got == ARCHIVE_EOF) {
    if (input_ended_)
      return make_error(EBADMSG, "the end mark of a tar file is missing, as in a file that was cut");
    SLUICE_TRY(pass_rest());
    return std::optional<Entry>();
  }
  if (got == ARCHIVE_RETRY && !input_error_)
    return make_error(EBADMSG, name_.empty() ? "its first header is damaged"
                                             : "what follows " + name_ + " is no header of a tar file");
  if (is_failure(got)) return error();
  Entry entry;
  // The second call knows names that this locale cannot spell; ours are all ASCII.
  const char* name = archive_entry_pathname(entry_);
  if (name == nullptr) name = archive_entry_pathname_utf8(entry_);
  if (name != nullptr) entry.name = name;
  entry.regular = archive_entry_filetype(entry_) == AE_IFREG && archive_entry_hardlink(entry_) == nullptr;
  const la_int64_t bytes = archive_entry_size(entry_);
  if (bytes < 0) return make_error(EBADMSG, entry.name + " has a size below zero");
  name_ = entry.name;
  file_bytes_ = static_cast<std::uint64_t>(bytes);
  at_ = 0;
  entry.file.bytes = file_bytes_;
  entry.file.stored_bytes = file_bytes_;
  if (archive_entry_sparse_reset(entry_) > 0) {
    entry.file.stored_bytes = 0;
    la_int64_t offset = 0;
    la_int64_t length = 0;
    while (archive_entry_sparse_next(entry_, &offset, &length) == ARCHIVE_OK)
      entry.file.stored_bytes += static_cast<std::uint64_t>(std::max<la_int64_t>(length, 0));
    entry.file.stored_bytes = std::min(entry.file.stored_bytes, file_bytes_);
  }
  data_begin_ = archive_filter_bytes(tar, 0);
  data_bytes_ = entry.regular ? std::optional(entry.file.stored_bytes) : std::nullopt;
  data_is_read_ = false;
  return std::optional(std::move(entry));
}

Error TarReader::contradiction() const {
  return make_error(EBADMSG, "the map of holes of " + name_ + " does not fit its size or its data");
}

// libarchive leaves out runs of a map of holes that contradict the file's size, and does not say so. Here the
// first run is looked at, if nobody has read it, and all of them must be as long as the data, in blocks. What
// is shorter than a block is found with the data.
Result<void> TarReader::pass_entry() {
  constexpr std::uint64_t kBlockBytes = 512;
  struct archive* const tar = archive_.get();
  if (entry_ == nullptr) return {};
  if (data_bytes_ && !data_is_read_) SLUICE_TRY(next_block());
  if (is_failure(archive_read_data_skip(tar))) return error();
  const auto passed = static_cast<std::uint64_t>(archive_filter_bytes(tar, 0) - data_begin_);
  if (data_bytes_ && passed != align_up(*data_bytes_, kBlockBytes)) return contradiction();
  return {};
}

// The checksum of a compression comes last.
Result<void> TarReader::pass_rest() {
  while (packed_ && !input_ended_) {
    SLUICE_TRY_ASSIGN(const std::span<const std::byte> part, input_->next());
    input_ended_ = part.empty();
  }
  return {};
}

Result<std::optional<TarReader::Block>> TarReader::next_block() {
  data_is_read_ = true;
  while (true) {
    const void* bytes = nullptr;
    std::size_t length = 0;
    la_int64_t offset = 0;
    const int got = archive_read_data_block(archive_.get(), &bytes, &length, &offset);
    if (got == ARCHIVE_EOF) return std::optional<Block>();
    if (is_failure(got)) return error();
    const auto begin = static_cast<std::uint64_t>(offset);
    if (offset < 0 || begin < at_ || begin > file_bytes_ || length > file_bytes_ - begin)
      return contradiction();
    at_ = begin + length;
    return std::optional(Block{{static_cast<const std::byte*>(bytes), length}, begin});
  }
}

// Makes `block_` the block with `at_`, or the next one.
Result<void> EntryStream::find_block() {
  while (!failed_ && !ended_ && at_ >= block_.offset + block_.bytes.size()) {
    const auto next = reader_.next_block();
    if (!next) {
      failed_ = next.error();
    } else if (*next) {
      block_ = **next;
    } else {
      ended_ = true;
    }
  }
  return failed_ ? Result<void>(*failed_) : Result<void>();
}

Error EntryStream::explain_here(const Error& error) const {
  return name_.empty() ? error : explain(formatted("read {} at {}", name_, at_), error);
}

std::uint64_t EntryStream::zeros_ahead(std::uint64_t most) {
  (void)find_block();  // read() meets an error again
  const std::uint64_t data = ended_ ? bytes_ : block_.offset;
  return std::min(most, data - std::min(at_, data));
}

Result<void> EntryStream::read(std::span<std::byte> into) {
  if (into.size() > bytes_ - at_) return explain_here({EBADMSG, "the file ends early"});
  while (!into.empty()) {
    if (auto found = find_block(); !found) return explain_here(found.error());
    const std::uint64_t zeros = zeros_ahead(into.size());
    std::size_t length = static_cast<std::size_t>(zeros);
    if (zeros > 0) {
      std::memset(into.data(), 0, length);
    } else {
      const auto from = block_.bytes.subspan(static_cast<std::size_t>(at_ - block_.offset));
      length = std::min(from.size(), into.size());
      std::memcpy(into.data(), from.data(), length);
    }
    into = into.subspan(length);
    at_ += length;
  }
  return {};
}

Result<void> EntryStream::skip(std::uint64_t bytes) {
  if (bytes > bytes_ - at_) return explain_here({EBADMSG, "the file ends early"});  // unreached: a guard
  at_ += bytes;
  if (auto found = find_block(); !found) return explain_here(found.error());  // unreached: no test
  return {};
}

}  // namespace sluice::cli
