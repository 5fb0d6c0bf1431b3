// SPDX-License-Identifier: MIT
// A checkpoint's parent, its parent's parent, and so on: directories behind links called `parent`, as CRIU
// makes them (--prev-images-dir). Read once, without contents.
//
// A planted parent would make root read the wrong files. So each directory belongs to this user, and nobody
// else can write there. Each file in it is the user's, of mode 0600, and all images have our digests. A
// sidecar names its parent dump and its units' sums; both are compared. A directory that comes twice is
// refused, and a chain has at most kMostAncestors members.
//
// A member may be a pre-dump (predump_mark.h), which has only contents. If a checkpoint is in the same
// directory, the checkpoint counts.
//
// Immutable after open(). Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/image_file.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "images/files/image_source.h"
#include "images/files/key.h"
#include "images/pages.h"
#include "images/sums.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/extents/extent_reader.h"

namespace sluice {

inline constexpr const char* kParentLink = "parent";
inline constexpr std::size_t kMostAncestors = 32;

// One checkpoint of a chain.
class Ancestor {
 public:
  // The pages files of one sidecar.
  struct Set {
    PagesSet pages;
    std::unique_ptr<const KnownFiles> files;
    // By file: what it leaves to the parent, and to other files of the dump.
    std::vector<RunIndex> in_parent, in_others;
  };

  // Opens the directory that kParentLink of `child_dir_fd` leads to. `words`: its name in messages. Errors:
  // ENOENT if there is none; EACCES for a file or directory that others can change; EBADMSG; those of
  // reading. Two errors mean that it cannot be a parent. ENODATA: no sums, some sums by blocks, or an
  // unfinished pre-dump. ENXIO: no GPU contents.
  static Result<std::unique_ptr<Ancestor>> open(int child_dir_fd, const std::string& words,
                                                const ImageKeys& keys);

  // The directory itself. Errors: the same.
  static Result<std::unique_ptr<Ancestor>> of(UniqueFd directory, const std::string& words,
                                              const ImageKeys& keys);

  // The checkpoint itself, whose files need each other. Nobody is asked whose it is, as for any checkpoint.
  // Errors: the same, except EACCES for what others can change.
  static Result<std::unique_ptr<Ancestor>> of_itself(int dir_fd, const ImageKeys& keys);

  int dir_fd() const { return dir_.get(); }
  const std::string& describe() const { return words_; }
  // The directory's identity.
  std::pair<dev_t, ino_t> identity() const { return identity_; }
  const DumpId& dump_id() const { return dump_id_; }
  // The dump that is its own parent; all zero: it is complete by itself.
  const DumpId& parent_dump_id() const { return parent_dump_id_; }
  bool has_parent() const { return parent_dump_id_ != DumpId{}; }
  // Whether each of its files has all of its contents.
  bool is_complete() const { return is_complete_; }
  // Of its sums. A dump that builds on it uses the same, because only then sums can be compared.
  const SumMethod& sum_method() const { return sets_.front().files->tables.front().method; }

  // Checks that each pages file is here and as long as its BO table says. Errors: ENOENT, EBADMSG, named.
  Result<void> check_files() const;
  // Opens its images, until `held` has `most`: no other file gets the identity of one that is open. Errors:
  // those of open_image_file(); ESTALE for one that has changed.
  Result<void> hold(std::vector<UniqueFd>& held, std::size_t most) const;
  // Whether `dir_fd` is this directory, and its images are still those that were read. Errors: ESTALE, named.
  Result<void> check_unchanged(int dir_fd) const;

  // Makes it durable, with all its files, if it was dumped without. Files that are durable cost the disk
  // nothing. Errors: those of opening and syncing.
  Result<void> sync() const;

  // Its pages files.
  std::vector<ExtentFile> pages_files() const;
  // For each BO of `pages`, the one here that may be the same, judged without contents. It is on the same
  // GPU, in the same kind of file, with the same key and size, and from the same process if possible.
  std::vector<KnownBo> bos_like(const PagesSet& pages) const;

  // Where a unit is that another dump, or another file of this one, says is here: in this checkpoint's file,
  // or in its parent's.
  struct Place {
    const std::string* file = nullptr;
    std::uint64_t file_bytes = 0;
    std::uint64_t offset = 0;
    bool in_parent = false;
  };
  // Errors: EBADMSG if there is no such unit, or it has another sum.
  Result<Place> find(const std::string& file, std::uint64_t offset, std::uint64_t length,
                     const Sum128& sum) const;
  // The same for a unit that is in the file itself. Errors: EBADMSG, also if it is left out there.
  Result<Place> find_own(const std::string& file, std::uint64_t offset, std::uint64_t length,
                         const Sum128& sum) const;

 private:
  struct File {
    std::size_t set = 0;
    std::uint32_t file = 0;
  };
  struct Unit {
    const Set* set = nullptr;
    std::uint32_t file = 0;
    std::uint64_t unit = 0;
  };
  Result<Unit> unit_at(const std::string& file, std::uint64_t offset, std::uint64_t length,
                       const Sum128& sum) const;
  explicit Ancestor(std::string words) : words_(std::move(words)) {}
  Result<void> check_owner();
  Result<void> check_private(const std::vector<std::string>& names);
  Result<void> read(const ImageKeys& keys);
  Result<void> add(const DirectorySource& source, int id, PagesSet set);
  Error is_another(const std::string& why) const;
  Error has_changed(const std::string& what) const;

  std::string words_;
  UniqueFd dir_;
  std::pair<dev_t, ino_t> identity_;
  std::map<std::string, FileIdentity> images_;  // before they were read
  DumpId dump_id_{};
  DumpId parent_dump_id_{};
  bool is_complete_ = true;
  std::vector<Set> sets_;
  std::map<std::string, File> files_;  // by name: complete files, and files with parts left out
};

}  // namespace sluice
