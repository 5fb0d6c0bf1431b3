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
std::string words_of(struct archive* archive) {
  const char* const text = archive_error_string(archive);
  return text != nullptr ? text : "libarchive does not say why";
}

// ARCHIVE_RETRY, too, is a failure: of a header that was damaged, which libarchive would pass over.
bool is_failure(int result) {
  return result != ARCHIVE_OK && result != ARCHIVE_WARN;
}

enum class Packing : std::uint8_t { None, Gzip, Zstd };

// Takes the compression off.
class Unpacker final : public Input {
 public:
  static Result<std::unique_ptr<Input>> make(std::unique_ptr<Input> packed, Packing packing) {
    std::unique_ptr<Unpacker> unpacker(new Unpacker(std::move(packed)));
    struct archive* const raw = unpacker->archive_.get();
    if (raw == nullptr) return Error{ENOMEM, "out of memory"};
    // A warning means that an external program would do it.
    const int filter = packing == Packing::Gzip ? archive_read_support_filter_gzip(raw)
                                                : archive_read_support_filter_zstd(raw);
    if (filter != ARCHIVE_OK)
      // unreached: another machine
      return Error{ENOTSUP, formatted("{} is missing in this libarchive [SL-T43]",
                                      packing == Packing::Gzip ? "gzip" : "zstd")};
    struct archive_entry* entry = nullptr;
    if (archive_read_support_format_raw(raw) != ARCHIVE_OK ||
        archive_read_support_format_empty(raw) != ARCHIVE_OK ||
        archive_read_open2(raw, unpacker.get(), nullptr, read, nullptr, nullptr) != ARCHIVE_OK)
      return unpacker->error();
    const int began = archive_read_next_header(raw, &entry);
    if (began == ARCHIVE_EOF) unpacker->ended_ = true;
    if (began != ARCHIVE_EOF && began != ARCHIVE_OK) return unpacker->error();  // unreached: a guard
    return std::unique_ptr<Input>(std::move(unpacker));
  }

  Result<std::span<const std::byte>> next() override {
    const void* bytes = nullptr;
    std::size_t length = 0;
    la_int64_t offset = 0;
    while (!ended_ && length == 0) {
      const int got = archive_read_data_block(archive_.get(), &bytes, &length, &offset);
      if (got == ARCHIVE_EOF) ended_ = true;
      if (got != ARCHIVE_EOF && got != ARCHIVE_OK) return error();
    }
    if (ended_) return std::span<const std::byte>();
    return std::span(static_cast<const std::byte*>(bytes), length);
  }

 private:
  struct Free {
    void operator()(struct archive* archive) const { (void)archive_read_free(archive); }
  };
  explicit Unpacker(std::unique_ptr<Input> packed)
      : packed_(std::move(packed)), archive_(archive_read_new()) {}

  static la_ssize_t read(struct archive* archive, void* self, const void** buffer) {
    auto& unpacker = *static_cast<Unpacker*>(self);
    auto part = unpacker.packed_->next();
    if (part) {
      *buffer = part->data();
      return static_cast<la_ssize_t>(part->size());
    }
    unpacker.packed_error_ = part.error();
    archive_set_error(archive, part.error().err, "%s", part.error().what.c_str());
    return -1;
  }
  Error error() const {
    if (packed_error_) return *packed_error_;
    const bool memory = archive_errno(archive_.get()) == ENOMEM;
    return Error{memory ? ENOMEM : EBADMSG, words_of(archive_.get())};
  }

  std::unique_ptr<Input> packed_;
  std::optional<Error> packed_error_;
  std::unique_ptr<struct archive, Free> archive_;
  bool ended_ = false;
};

// An input whose first bytes have been read already.
class LookedAt final : public Input {
 public:
  LookedAt(std::unique_ptr<Input> input, std::span<const std::byte> first)
      : input_(std::move(input)), first_(first) {}

  Result<std::span<const std::byte>> next() override {
    return first_.empty() ? input_->next() : std::exchange(first_, {});
  }
  std::uint64_t skip(std::uint64_t bytes) override { return first_.empty() ? input_->skip(bytes) : 0; }

 private:
  std::unique_ptr<Input> input_;
  std::span<const std::byte> first_;  // the input's own
};

Result<Packing> packing_of(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (text.starts_with("\x1f\x8b")) return Packing::Gzip;
  if (text.starts_with("\x28\xb5\x2f\xfd")) return Packing::Zstd;
  using namespace std::string_view_literals;
  struct Other {
    std::string_view magic;
    const char* name;
  };
  static constexpr std::array<Other, 6> kOthers{{{"\xfd"
                                                  "7zXZ\0"sv,
                                                  "xz"},
                                                 {"BZh"sv, "bzip2"},
                                                 {"\x04\x22\x4d\x18"sv, "lz4"},
                                                 {"PK\x03\x04"sv, "zip"},
                                                 {"7z\xbc\xaf\x27\x1c"sv, "7z"},
                                                 {"070701"sv, "cpio"}}};
  for (const Other& other : kOthers) {
    if (text.starts_with(other.magic)) return Error{ENOTSUP, other.name};
  }
  return Packing::None;
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
  SLUICE_TRY_ASSIGN(const std::span<const std::byte> first, input->next());
  SLUICE_TRY_ASSIGN(const Packing packing, packing_of(first));
  std::unique_ptr<Input> bytes = std::make_unique<LookedAt>(std::move(input), first);
  if (packing != Packing::None) {
    SLUICE_TRY_ASSIGN(bytes, Unpacker::make(std::move(bytes), packing));
  }
  std::unique_ptr<TarReader> reader(new TarReader(std::move(bytes)));
  struct archive* const tar = reader->archive_.get();
  if (tar == nullptr || archive_read_support_format_tar(tar) != ARCHIVE_OK)
    return Error{ENOMEM, "out of memory"};
  if (archive_read_open2(tar, reader.get(), nullptr, read, skip, nullptr) == ARCHIVE_OK) return reader;
  // A file of no known format is not called damaged.
  const Error error = reader->error();
  return error.err != EBADMSG || reader->input_error_ ? error : Error{ENOEXEC, "no tar"};
}

TarReader::TarReader(std::unique_ptr<Input> input) : input_(std::move(input)), archive_(archive_read_new()) {}

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
  return Error{memory ? ENOMEM : EBADMSG, words_of(archive_.get())};
}

Result<std::optional<TarReader::Entry>> TarReader::next() {
  struct archive* const tar = archive_.get();
  SLUICE_TRY(pass_entry());
  in_header_ = true;
  header_bytes_ = 0;
  const int got = archive_read_next_header(tar, &entry_);
  in_header_ = false;
  if (got == ARCHIVE_EOF) {
    if (!input_ended_) return std::optional<Entry>();
    return make_error(EBADMSG, "the end mark of a tar file is missing, as in a file that was cut");
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

Result<std::optional<TarReader::Block>> TarReader::next_block() {
  data_is_read_ = true;
  while (true) {
    const void* bytes = nullptr;
    std::size_t length = 0;
    la_int64_t offset = 0;
    const int got = archive_read_data_block(archive_.get(), &bytes, &length, &offset);
    if (got == ARCHIVE_EOF) return std::optional<Block>();
    if (is_failure(got)) return error();
    if (length == 0) continue;  // unreached: no test
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
  // unreached: no test
  if (!find_block()) return 0;  // read() meets the error again
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
