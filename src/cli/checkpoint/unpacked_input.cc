// SPDX-License-Identifier: MIT
#include "cli/checkpoint/unpacked_input.h"

#include <archive.h>
#include <archive_entry.h>
#define ZLIB_CONST  // input is not written
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"

namespace sluice::cli {
namespace {

enum class Packing : std::uint8_t { None, Gzip, Zstd };

// Takes gzip off (zlib: libarchive neither compares a member's checksum nor minds what follows the last one).
class GzipInput final : public Input {
 public:
  static Result<std::unique_ptr<Input>> make(std::unique_ptr<Input> packed) {
    constexpr int kGzipOnly = MAX_WBITS + 16;  // as zlib wants it said
    std::unique_ptr<GzipInput> input(new GzipInput(std::move(packed)));
    if (::inflateInit2(&input->stream_, kGzipOnly) != Z_OK) return Error{ENOMEM, "out of memory"};
    return std::unique_ptr<Input>(std::move(input));
  }
  ~GzipInput() override { (void)::inflateEnd(&stream_); }
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  Result<std::span<const std::byte>> next() override {
    while (true) {
      SLUICE_TRY_ASSIGN(const bool more, fill());
      if (!more) return std::span<const std::byte>();
      stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_out = static_cast<uInt>(buffer_.size());
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) in_member_ = false;
      if (result == Z_MEM_ERROR) return Error{ENOMEM, "out of memory"};
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return Error{EBADMSG, std::string("gzip: ") + (stream_.msg != nullptr ? stream_.msg : "damaged")};
      if (const std::size_t made = buffer_.size() - stream_.avail_out; made > 0)
        return std::span<const std::byte>(buffer_).first(made);
    }
  }

 private:
  explicit GzipInput(std::unique_ptr<Input> packed) : packed_(std::move(packed)) {}

  // Whether there is something to inflate: false at the end.
  Result<bool> fill() {
    while (true) {
      if (stream_.avail_in == 0) {
        SLUICE_TRY_ASSIGN(const std::span<const std::byte> part, packed_->next());
        if (part.empty() && in_member_) return make_error(EBADMSG, "truncated gzip input");
        if (part.empty()) return false;
        stream_.next_in = reinterpret_cast<const Bytef*>(part.data());
        stream_.avail_in = static_cast<uInt>(part.size());
      }
      if (!in_member_ && !in_padding_) {
        in_padding_ = *stream_.next_in == 0;
        in_member_ = !in_padding_;
        (void)::inflateReset(&stream_);
      }
      if (in_member_) return true;
      const std::span<const Bytef> part(stream_.next_in, std::exchange(stream_.avail_in, 0));
      if (std::any_of(part.begin(), part.end(), [](Bytef byte) { return byte != 0; }))
        return make_error(EBADMSG, "garbage follows the end of gzip");
    }
  }

  std::unique_ptr<Input> packed_;
  z_stream stream_{};
  bool in_member_ = true;
  bool in_padding_ = false;  // zeros after the last member, as on tapes; nothing else may follow
  std::vector<std::byte> buffer_ = std::vector<std::byte>(256 * kKiB);
};

// Takes zstd off (libarchive, which has it compare all checksums).
class ZstdInput final : public Input {
 public:
  static Result<std::unique_ptr<Input>> make(std::unique_ptr<Input> packed) {
    std::unique_ptr<ZstdInput> unpacker(new ZstdInput(std::move(packed)));
    struct archive* const raw = unpacker->archive_.get();
    if (raw == nullptr) return Error{ENOMEM, "out of memory"};
    // A warning means that an external program would do it.
    if (archive_read_support_filter_zstd(raw) != ARCHIVE_OK)
      return Error{ENOTSUP, "zstd is missing in this libarchive [SL-T43]"};  // unreached: another machine
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
  explicit ZstdInput(std::unique_ptr<Input> packed)
      : packed_(std::move(packed)), archive_(archive_read_new()) {}

  static la_ssize_t read(struct archive* archive, void* self, const void** buffer) {
    auto& unpacker = *static_cast<ZstdInput*>(self);
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
    const char* text = archive_error_string(archive_.get());
    if (text == nullptr) text = "libarchive does not say why";
    return Error{memory ? ENOMEM : EBADMSG, text};
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
  if (text.starts_with("\x1f\x8b\x08")) return Packing::Gzip;
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

Result<Unpacked> unpacked(std::unique_ptr<Input> input) {
  SLUICE_TRY_ASSIGN(const std::span<const std::byte> first, input->next());
  SLUICE_TRY_ASSIGN(const Packing packing, packing_of(first));
  auto bytes = std::make_unique<LookedAt>(std::move(input), first);
  if (packing == Packing::None) return Unpacked{std::move(bytes), false};
  SLUICE_TRY_ASSIGN(std::unique_ptr<Input> inside, packing == Packing::Gzip
                                                       ? GzipInput::make(std::move(bytes))
                                                       : ZstdInput::make(std::move(bytes)));
  return Unpacked{std::move(inside), true};
}

}  // namespace sluice::cli
