// SPDX-License-Identifier: MIT
#include "images/chain/ancestor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/image_file.h"
#include "images/chain/predump_images.h"
#include "images/files/files.h"
#include "images/files/image_source.h"
#include "pipeline/store/file_reader.h"

namespace sluice {
namespace {

constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

bool is_image(const std::string& name) {
  return name.starts_with("amdgpu-") && name.ends_with(".img");
}

}  // namespace

Result<std::unique_ptr<Ancestor>> Ancestor::open(int child_dir_fd, const std::string& words,
                                                 const ImageKeys& keys) {
  UniqueFd directory(::openat(child_dir_fd, kParentLink, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return make_error(errno, "open the directory that is the " + words, Topic::Images);
  return of(std::move(directory), words, keys);
}

Result<std::unique_ptr<Ancestor>> Ancestor::of(UniqueFd directory, const std::string& words,
                                               const ImageKeys& keys) {
  std::unique_ptr<Ancestor> found(new Ancestor(words));
  found->dir_ = std::move(directory);
  SLUICE_TRY(found->check_owner());
  const auto names = list_names(found->dir_fd());
  auto done = names ? found->check_private(*names) : Result<void>(names.error());
  if (done) done = found->read(keys);
  if (!done) return explain("the " + words, done.error());
  return found;
}

Result<std::unique_ptr<Ancestor>> Ancestor::of_itself(int dir_fd, const ImageKeys& keys) {
  std::unique_ptr<Ancestor> found(new Ancestor("checkpoint"));
  found->dir_.reset(::openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!found->dir_) return make_error(errno, "open the checkpoint's directory", Topic::Images);
  SLUICE_TRY(found->read(keys));
  return found;
}

Result<void> Ancestor::check_owner() {
  struct stat status {};
  if (::fstat(dir_fd(), &status) != 0) return make_error(errno, "look at the " + words_, Topic::Images);
  identity_ = {status.st_dev, status.st_ino};
  if (status.st_uid == ::geteuid() && (status.st_mode & kWritableByOthers) == 0) return {};
  return make_error(
      EACCES,
      "the " + words_ + " is a directory that other users own, or may write into: nothing is read from it",
      Topic::Images);
}

Result<void> Ancestor::check_private(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    struct stat status {};
    if (!is_image(name)) continue;
    if (::fstatat(dir_fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !is_private(status))
      return Error{
          EACCES,
          name +
              " is a parent's file that is not this user's own with mode 0600; chown and chmod it [SL-I30]"};
    images_.emplace(name, identity_of(status));
  }
  return {};
}

Result<void> Ancestor::read(const ImageKeys& keys) {
  DirectorySource source(dir_fd());
  source.set_keys(keys);
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names, source.names());
  SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint_or_predump(source));
  if (checkpoint.predump == PreDumpState::Unfinished)
    return Error{ENODATA, std::string("the pre-dump did not end, so it lacks ") + kPreDumpMark +
                              "; make another one [SL-I31]"};
  if (!checkpoint.faults().empty()) return checkpoint.faults().front();
  for (NumberedPages& pages : pages_of(checkpoint)) {
    dump_id_ = pages.dump_id;
    SLUICE_TRY(add(source, pages.id, std::move(pages.set)));
  }
  if (const auto orphans = contents_among(names); sets_.empty() && !orphans.empty())
    return Error{ENOENT, formatted("{} is missing, without which {} means nothing; use another checkpoint "
                                   "[SL-I90]",
                                   orphans.front().second, orphans.front().first)};
  if (sets_.empty()) return Error{ENXIO, "it has no GPU contents; name another directory [SL-I32]"};
  return {};
}

Result<void> Ancestor::add(const DirectorySource& source, int id, PagesSet set) {
  SLUICE_TRY_ASSIGN(ImageLayout layout, set.layout(kSumBlockBytes));
  SLUICE_TRY_ASSIGN(std::optional<Sidecar> sums, read_sidecar(source, id, set, layout, dump_id_));
  if (!sums) return Error{ENODATA, set.sums_name(id) + " is missing; dump without this parent [SL-I35]"};
  const Needs needs = sums->needs();
  is_complete_ = is_complete_ && !needs.any();
  if (needs.parent != DumpId{}) {
    if (has_parent() && parent_dump_id_ != needs.parent)
      return Error{EBADMSG, "its images name two parents; use another checkpoint [SL-I36]"};
    parent_dump_id_ = needs.parent;
  }
  std::vector<KnownRuns> others(sums->tables.size()), parents(sums->tables.size());
  if (!sums->parents.empty()) parents = std::move(sums->parents);
  if (sums->replicas_left_out) others = std::move(sums->replicas);
  Set made{std::move(set),
           std::make_unique<const KnownFiles>(std::move(layout), std::move(sums->tables), sums->pages_files,
                                              dir_fd()),
           {},
           {}};
  for (std::uint32_t file = 0; file < sums->pages_files.size(); ++file) {
    const KnownFiles& files = *made.files;
    made.in_parent.emplace_back(files.layout, files.units, file, std::move(parents[file]));
    made.in_others.emplace_back(files.layout, files.units, file, std::move(others[file]));
    // Under all names that it can have: a child made before its parent was flattened still uses the old one.
    for (const Lacks lacks : {Lacks::Nothing, Lacks::Parents, Lacks::Replicas})
      files_.emplace(made.pages.pages_name(id, file, lacks), File{sets_.size(), file});
  }
  sets_.push_back(std::move(made));
  return {};
}

Result<void> Ancestor::check_files() const {
  for (const ExtentFile& file : pages_files()) {
    const auto image = images_.find(file.name);
    if (image == images_.end())
      return Error{ENOENT,
                   formatted("{} is missing, which the parent's contents are in; use another checkpoint "
                             "[SL-I91]",
                             file.words)};
    SLUICE_TRY(check_pages_size(file.words, static_cast<std::uint64_t>(image->second.bytes), file.bytes));
  }
  return {};
}

Result<void> Ancestor::hold(std::vector<UniqueFd>& held, std::size_t most) const {
  for (const auto& [name, identity] : images_) {
    if (held.size() == most) return {};
    SLUICE_TRY_ASSIGN(ImageFile file, open_image_file(dir_fd(), name));
    if (identity_of(file.status) != identity) return has_changed(name + " is another file");
    held.push_back(std::move(file.fd));
  }
  return {};
}

Result<void> Ancestor::check_unchanged(int dir_fd) const {
  struct stat status {};
  if (::fstat(dir_fd, &status) != 0 || std::pair(status.st_dev, status.st_ino) != identity_)
    return has_changed("its link leads to another directory");
  for (const auto& [name, identity] : images_) {
    if (::fstatat(dir_fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      return has_changed(name + " is gone");
    if (identity_of(status) != identity) return has_changed(name + " is another file");
  }
  return {};
}

Error Ancestor::has_changed(const std::string& what) const {
  return {ESTALE, formatted("the {} changed while the dump ran: {}; leave parents alone until a dump on them "
                            "has ended, and dump again [SL-I92]",
                            words_, what)};
}

Result<void> Ancestor::sync() const {
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names, list_names(dir_fd()));
  for (const std::string& name : names) {
    if (!is_image(name)) continue;
    SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(dir_fd(), name));
    if (::fdatasync(file.fd.get()) != 0) return make_error(errno, "sync " + name, Topic::Images);
  }
  return sync_directory(dir_fd());
}

std::vector<ExtentFile> Ancestor::pages_files() const {
  std::vector<ExtentFile> files;
  for (const Set& set : sets_) {
    for (std::uint32_t file = 0; file < set.files->names.size(); ++file) {
      const std::string& name = set.files->names[file];
      files.push_back({dir_fd(), name, set.files->layout.file_bytes(file), words_ + "/" + name, true});
    }
  }
  return files;
}

std::vector<KnownBo> Ancestor::bos_like(const PagesSet& pages) const {
  std::map<std::pair<std::uint64_t, std::uint64_t>, KnownBo> known;  // by key and size
  // Its own process first, then any other: a process may have come back under another pid.
  for (const bool own : {true, false}) {
    for (const Set& set : sets_) {
      const PagesSet& its = set.pages;
      if ((its.pid == pages.pid) != own || its.drm_minor != pages.drm_minor) continue;
      if (!its.drm_minor && its.gpu_id != pages.gpu_id) continue;
      for (std::uint32_t bo = 0; bo < its.bos.size(); ++bo)
        known.emplace(std::pair(its.bos[bo].key, its.bos[bo].bytes), KnownBo{set.files.get(), bo});
    }
  }
  std::vector<KnownBo> found;
  for (const PagesBo& bo : pages.bos) {
    const auto like = known.find({bo.key, bo.bytes});
    found.push_back(like != known.end() ? like->second : KnownBo{});
  }
  return found;
}

Error Ancestor::is_another(const std::string& why) const {
  return {EBADMSG, "the " + words_ + " is not the checkpoint that this one was made from: " + why};
}

Result<Ancestor::Unit> Ancestor::unit_at(const std::string& file, std::uint64_t offset, std::uint64_t length,
                                         const Sum128& sum) const {
  const auto at = files_.find(file);
  if (at == files_.end()) return is_another(file + " is not there");
  const Set& set = sets_[at->second.set];
  const std::uint32_t number = at->second.file;
  const ImageLayout& layout = set.files->layout;
  const std::uint64_t bytes = layout.file_bytes(number);
  Piece piece;
  const bool has_unit = offset >= kHeaderBytes && offset < bytes && length <= bytes - offset &&
                        layout.pieces(Chunk{0, offset, length, number}).next(piece) &&
                        set.files->units.is_begin(piece.bo, piece.bo_offset) &&
                        set.files->units.end_of(piece.bo, piece.bo_offset) - piece.bo_offset == length;
  const std::uint64_t unit = has_unit ? set.files->units.at(piece.bo, piece.bo_offset) : 0;
  if (!has_unit || set.files->tables[number].sums[static_cast<std::size_t>(unit)] != sum)
    return is_another(file + " has other contents at " + std::to_string(offset));
  return Unit{&set, number, unit};
}

Result<Ancestor::Place> Ancestor::find(const std::string& file, std::uint64_t offset, std::uint64_t length,
                                       const Sum128& sum) const {
  SLUICE_TRY_ASSIGN(const Unit at, unit_at(file, offset, length, sum));
  if (const auto in = at.set->in_parent[at.file].find(at.unit, offset))
    return Place{in->file, 0, in->offset, true};
  if (const auto in = at.set->in_others[at.file].find(at.unit, offset))
    return find_own(*in->file, in->offset, length, sum);
  return Place{&at.set->files->names[at.file], at.set->files->layout.file_bytes(at.file), offset, false};
}

Result<Ancestor::Place> Ancestor::find_own(const std::string& file, std::uint64_t offset,
                                           std::uint64_t length, const Sum128& sum) const {
  SLUICE_TRY_ASSIGN(const Unit at, unit_at(file, offset, length, sum));
  if (at.set->in_parent[at.file].find(at.unit, offset) || at.set->in_others[at.file].find(at.unit, offset))
    return is_another(file + " has nothing at " + std::to_string(offset));
  return Place{&at.set->files->names[at.file], at.set->files->layout.file_bytes(at.file), offset, false};
}

}  // namespace sluice
