// SPDX-License-Identifier: MIT
#include "cli/checkpoint/archive_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/units.h"
#include "images/files/files.h"

namespace sluice::cli {
namespace {

// Limit of everything kept from an archive: as much as for one image.
constexpr std::uint64_t kMostKeptBytes = kLargestImageBytes;
// For an entry without one of our names yet.
constexpr std::uint64_t kBytesOfAName = 256;
constexpr std::string_view kStats = "sluice-stats-";
constexpr std::uint64_t kMostStatsBytes = kMiB;

// A folder, with '/' at its end, and a name in it.
struct Split {
  std::string folder;
  std::string name;
  bool leaves = false;  // it contains ".."
};

// As if unpacked into an empty directory: "./a//b" is "a/b", "/a" is "a".
Split split(std::string_view path) {
  Split result;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path.remove_prefix(slash == path.npos ? path.size() : slash + 1);
    if (part.empty() || part == ".") continue;
    result.leaves = result.leaves || part == "..";
    if (!result.name.empty()) result.folder += result.name + '/';
    result.name = part;
  }
  return result;
}

bool is_plugin_image(std::string_view name) {
  return name.starts_with("amdgpu-") && name.ends_with(".img");
}

// Files that are read completely.
bool is_small(std::string_view name) {
  std::string of_dump(name);
  if (name.starts_with(kPreDumpPrefix)) of_dump.replace(0, kPreDumpPrefix.size(), "amdgpu-");
  return is_metadata(of_dump) || of_dump.starts_with("amdgpu-sums-") || of_dump.starts_with(kStats);
}

// Where a saved image has its layers: in blobs/sha256/DIGEST or, in old forms, in DIGEST/layer.tar and
// DIGEST.tar.
bool may_be_layer(std::string_view path) {
  constexpr std::size_t kDigits = 64;
  constexpr std::string_view kTar = ".tar";
  const auto last_is_digest = [](std::string_view text) {
    if (text.size() < kDigits) return false;
    const std::string_view folder = text.substr(0, text.size() - kDigits);
    return (folder.empty() || folder.ends_with('/')) &&
           text.substr(folder.size()).find_first_not_of("0123456789abcdef") == text.npos;
  };
  constexpr std::string_view kLayer = "/layer.tar";
  if (path.ends_with(kLayer)) return last_is_digest(path.substr(0, path.size() - kLayer.size()));
  if (path.ends_with(kTar)) return last_is_digest(path.substr(0, path.size() - kTar.size()));
  return last_is_digest(path) && path.substr(0, path.size() - kDigits).ends_with("blobs/sha256/");
}

}  // namespace

Result<std::unique_ptr<ArchiveSource>> ArchiveSource::open(UniqueFd fd, const std::string& path,
                                                           const OnProgress& on_progress) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return make_error(errno, "stat " + path);
  std::unique_ptr<ArchiveSource> source(
      new ArchiveSource(std::move(fd), path, static_cast<std::uint64_t>(status.st_size)));
  const auto reader = TarReader::open(source->input(on_progress));
  const auto scanned = reader ? source->scan(**reader, "") : Result<void>(reader.error());
  if (!scanned) return scanned.error().err == EBADMSG ? source->damaged(scanned.error()) : scanned.error();
  if (source->found_.empty() && source->layer_error_) return source->damaged(*source->layer_error_);
  return source;
}

std::unique_ptr<Input> ArchiveSource::input(const OnProgress& on_progress) const {
  std::function<void(std::uint64_t)> progress;
  if (on_progress)
    progress = [on_progress, total = file_bytes_](std::uint64_t done) { on_progress(done, total); };
  return file_input(fd_.get(), file_bytes_, path_, std::move(progress));
}

std::string ArchiveSource::describe(const Place& place) {
  const std::string folder = place.folder.empty() ? "its top" : place.folder;
  return place.layer.empty() ? folder : place.layer + ": " + folder;
}

// The findings so far tell how much is usable.
Error ArchiveSource::damaged(const Error& error) const {
  std::size_t images = 0;
  for (const auto& [place, folder] : found_) images += folder.size();
  const std::string found =
      images == 0
          ? "no images of GPU processes were found before that"
          : formatted("{} images of GPU processes were found before that, {} last", images, last_name_);
  return {EBADMSG, formatted("{} is a damaged archive: {}; {} [SL-T18]", path_, error.what, found)};
}

Result<void> ArchiveSource::keep_budget(std::uint64_t bytes) {
  kept_bytes_ += bytes;
  if (kept_bytes_ <= kMostKeptBytes) return {};
  return Error{EFBIG, path_ + " has more metadata of images than any checkpoint [SL-T19]"};
}

Result<void> ArchiveSource::scan(TarReader& reader, const std::string& layer) {
  while (true) {
    SLUICE_TRY_ASSIGN(const std::optional<TarReader::Entry> entry, reader.next());
    if (!entry) return {};
    const Split at = split(entry->name);
    has_criu_images_ = has_criu_images_ || at.name == "inventory.img";
    if (is_plugin_image(at.name) || at.name.starts_with(kStats)) {
      if (at.leaves) return make_error(EBADMSG, "name " + entry->name + " leads out of the archive");
      SLUICE_TRY(keep(reader, *entry, Place{layer, at.folder}, at.name));
    } else if (layer.empty() && entry->regular && may_be_layer(entry->name)) {
      SLUICE_TRY(scan_layer(reader, *entry));
    }
  }
}

Result<void> ArchiveSource::scan_layer(TarReader& reader, const TarReader::Entry& entry) {
  const auto inner = TarReader::open(entry_input(reader, entry.file.bytes));
  const auto scanned = inner ? scan(**inner, entry.name) : Result<void>(inner.error());
  if (scanned) return {};
  const int err = scanned.error().err;
  const bool not_a_tar = err == ENOEXEC || err == ENOTSUP;  // a manifest, a configuration
  if (not_a_tar) return {};
  const bool has_some = std::any_of(found_.begin(), found_.end(),
                                    [&](const auto& each) { return each.first.layer == entry.name; });
  if (has_some || err != EBADMSG) return scanned.error();
  layer_error_ = explain(entry.name, scanned.error());
  return {};
}

Result<void> ArchiveSource::keep(TarReader& reader, const TarReader::Entry& entry, const Place& place,
                                 const std::string& name) {
  SLUICE_TRY(keep_budget(kBytesOfAName + name.size() + place.folder.size() + place.layer.size()));
  const auto [at, is_new] = found_[place].try_emplace(name, File{entry.file, entry.regular, false, {}});
  File& file = at->second;
  last_name_ = entry.name;
  if (!is_new) {
    file.twice = true;
    return {};
  }
  const std::uint64_t most = name.starts_with(kStats) ? kMostStatsBytes : kLargestImageBytes;
  if (!is_small(name) || !entry.regular || entry.file.bytes > most) return {};
  SLUICE_TRY(keep_budget(entry.file.bytes));
  // As the data comes: an archive may claim more than it has.
  std::vector<std::uint8_t> bytes;
  EntryStream stream(reader, entry.file.bytes, entry.name);
  constexpr std::uint64_t kPart = kMiB;
  while (bytes.size() < entry.file.bytes) {
    const std::size_t begin = bytes.size();
    bytes.resize(begin + static_cast<std::size_t>(std::min(kPart, entry.file.bytes - begin)));
    SLUICE_TRY(stream.read(std::as_writable_bytes(std::span(bytes).subspan(begin))));
  }
  file.bytes = std::move(bytes);
  return {};
}

std::vector<std::string> ArchiveSource::folders() const {
  std::vector<std::string> all;
  for (const auto& [place, folder] : found_) {
    if (std::any_of(folder.begin(), folder.end(),
                    [](const auto& file) { return is_plugin_image(file.first); }))
      all.push_back(describe(place));
  }
  return all;
}

void ArchiveSource::choose(std::size_t number) {
  const std::string chosen = folders().at(number);
  for (const auto& [place, folder] : found_) {
    if (describe(place) == chosen) chosen_ = place;
  }
}

Result<std::vector<std::string>> ArchiveSource::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : found_.at(chosen_)) all.push_back(name);
  return all;
}

Result<const ArchiveSource::File*> ArchiveSource::find(const std::string& name) const {
  const Folder& folder = found_.at(chosen_);
  const auto at = folder.find(name);
  if (at == folder.end()) return make_error(ENOENT, "open " + name);
  if (at->second.twice)
    return Error{EBADMSG, name + " is in the archive more than once; make the archive anew [SL-T20]"};
  if (!at->second.regular)
    return Error{EINVAL, name + " is not a regular file in the archive; make the archive anew [SL-T21]"};
  return &at->second;
}

Result<std::vector<std::uint8_t>> ArchiveSource::read(const std::string& name, std::uint64_t most) const {
  SLUICE_TRY_ASSIGN(const File* const file, find(name));
  if (!file->bytes || file->bytes->size() > most)
    return Error{
        EFBIG,
        name + " of the archive is too large for an image of metadata; use another checkpoint [SL-T22]"};
  return *file->bytes;
}

Result<SourceFile> ArchiveSource::look(const std::string& name) const {
  SLUICE_TRY_ASSIGN(const File* const file, find(name));
  return file->facts;
}

std::uint64_t ArchiveSource::hole_bytes(const std::string& name) const {
  const auto file = find(name);
  return file ? (*file)->facts.bytes - (*file)->facts.stored_bytes : 0;
}

Result<void> ArchiveSource::stream(const std::set<std::string>& names, const Take& take) const {
  std::set<std::string> left = names;
  if (left.empty()) return {};
  SLUICE_TRY_ASSIGN(const std::unique_ptr<TarReader> reader, TarReader::open(input(nullptr)));
  if (chosen_.layer.empty()) return stream_from(*reader, left, take);
  while (true) {
    SLUICE_TRY_ASSIGN(const std::optional<TarReader::Entry> entry, reader->next());
    if (!entry) return {};  // unreached: a guard
    if (entry->name != chosen_.layer || !entry->regular) continue;
    SLUICE_TRY_ASSIGN(const std::unique_ptr<TarReader> inner,
                      TarReader::open(entry_input(*reader, entry->file.bytes)));
    return stream_from(*inner, left, take);
  }
}

Result<void> ArchiveSource::stream_from(TarReader& reader, std::set<std::string>& left,
                                        const Take& take) const {
  while (!left.empty()) {
    SLUICE_TRY_ASSIGN(const std::optional<TarReader::Entry> entry, reader.next());
    if (!entry) return {};  // unreached: a guard
    const Split at = split(entry->name);
    if (at.leaves || at.folder != chosen_.folder || left.erase(at.name) == 0) continue;
    SLUICE_TRY_ASSIGN(const SourceFile known, look(at.name));
    if (!entry->regular || entry->file.bytes != known.bytes)
      // unreached: a race
      return Error{EBADMSG, "the archive changed while it was read; try again [SL-T23]"};
    EntryStream bytes(reader, entry->file.bytes, at.name);
    SLUICE_TRY(take(at.name, bytes));
  }
  return {};
}

}  // namespace sluice::cli
