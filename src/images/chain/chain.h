// SPDX-License-Identifier: MIT
// A checkpoint's ancestors (images/chain/ancestor.h), opened one by one, and where in them each byte lies
// that the checkpoint does not have itself. Immutable after open(). Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "images/chain/ancestor.h"
#include "images/files/key.h"
#include "images/sums.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/layout.h"

namespace sluice {

// Which links are followed. An absolute one leads elsewhere in a container.
enum class LinkKind : std::uint8_t { Any, Relative };

class Chain {
 public:
  // Opens the chain of the checkpoint in `dir_fd`, whose sidecars have these `needs`, up to the first member
  // without a parent. If its files need each other, the checkpoint itself is read, too. Errors, with the
  // member's name: those of Ancestor::open(); EBADMSG for another dump than the named parent; ELOOP for a
  // directory that comes twice, or too many members; ENOSYS for an absolute link if these are not followed.
  // `words`: the first member in messages.
  static Result<std::shared_ptr<const Chain>> open(int dir_fd, const Needs& needs, const ImageKeys& keys,
                                                   LinkKind links = LinkKind::Any,
                                                   std::string words = kParentLink);

  std::span<const std::unique_ptr<Ancestor>> ancestors() const { return ancestors_; }
  // Whether contents that a sidecar's files lack are here.
  bool meets(const Needs& needs) const;

  // Descriptors of all ancestors' directories, in order, in the process that has opened the chain.
  std::vector<int> directories() const;
  // The same directories, reopened by their links from the checkpoint's own directory, for a process that has
  // a copy of the chain but no descriptors. Errors, with the member's name: those of opening; ESTALE if the
  // links now lead elsewhere.
  Result<std::vector<UniqueFd>> reopen(int dir_fd) const;

  // Where each byte of a sidecar's files is. `dir_fd` has the files, `directories` are the ancestors' in this
  // process. Both, and this chain, are borrowed while the maps are used. `shared`: files of the checkpoint
  // that several lanes read (ExtentFile::shared), also for what the sidecar's files have themselves. Errors:
  // EBADMSG.
  Result<std::vector<ExtentMap>> resolve(int dir_fd, std::span<const int> directories,
                                         const ImageLayout& layout, const Sidecar& sidecar,
                                         const std::set<std::string>& shared = {}) const;

 private:
  Result<ExtentFile> find_unit(std::span<const int> directories, const std::string& file,
                               std::uint64_t& offset, std::uint64_t length, const Sum128& sum) const;

  std::unique_ptr<Ancestor> own_;                     // null: its files do not need each other
  std::vector<std::unique_ptr<Ancestor>> ancestors_;  // the parent first
};

}  // namespace sluice
