// SPDX-License-Identifier: MIT
#include "images/chain/chain.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "base/format.h"
#include "pipeline/checksum/units.h"

namespace sluice {
namespace {

// Extends the last extent if possible.
void append(std::vector<Extent>& extents, const Extent& next) {
  if (!extents.empty()) {
    Extent& last = extents.back();
    const bool goes_on =
        last.file == next.file && (last.is_zeros() || last.offset + (last.end - last.begin) == next.offset);
    if (goes_on) {
      last.end = next.end;
      return;
    }
  }
  extents.push_back(next);
}

// Most units continue the last one.
std::uint32_t number_of(ExtentMap& map, const ExtentFile& file) {
  if (!map.extents.empty() && !map.extents.back().is_zeros() &&
      map.files[map.extents.back().file].words == file.words)
    return map.extents.back().file;
  const auto known = std::find_if(map.files.begin(), map.files.end(),
                                  [&](const ExtentFile& each) { return each.words == file.words; });
  if (known != map.files.end()) return static_cast<std::uint32_t>(known - map.files.begin());
  map.files.push_back(file);
  return static_cast<std::uint32_t>(map.files.size() - 1);
}

// Whether the link to the parent is absolute, or may be. EINVAL: it is no link.
bool leads_from_root(int dir_fd) {
  char first = 0;
  const bool is_read = ::readlinkat(dir_fd, kParentLink, &first, 1) == 1;
  return is_read ? first == '/' : errno != ENOENT && errno != EINVAL;
}

}  // namespace

Result<std::shared_ptr<const Chain>> Chain::open(int dir_fd, const Needs& needs, const ImageKeys& keys,
                                                 LinkKind links, std::string words) {
  const auto chain = std::make_shared<Chain>();
  std::set<std::pair<dev_t, ino_t>> seen;
  struct stat own {};
  if (::fstat(dir_fd, &own) == 0) seen.emplace(own.st_dev, own.st_ino);
  if (needs.replicas) {
    SLUICE_TRY_ASSIGN(chain->own_, Ancestor::of_itself(dir_fd, keys));
  }
  DumpId wanted = needs.parent;
  for (int fd = dir_fd; wanted != DumpId{}; words += std::string("/") + kParentLink) {
    if (chain->ancestors_.size() == kMostAncestors)
      return Error{
          ELOOP, formatted("the chain of parents has more than {} checkpoints; flatten one of them [SL-I37]",
                           kMostAncestors)};
    if (links == LinkKind::Relative && leads_from_root(fd)) {
      return Error{
          ENOSYS,
          formatted("the {} is an absolute link, which a restored process cannot follow with this CRIU; "
                    "make it a relative one [SL-I38]",
                    words)};
    }
    SLUICE_TRY_ASSIGN(std::unique_ptr<Ancestor> ancestor, Ancestor::open(fd, words, keys));
    if (!seen.insert(ancestor->identity()).second)
      return Error{
          ELOOP,
          formatted("the {} is in the chain of parents twice; restore the right link [SL-I39]", words)};
    if (ancestor->dump_id() != wanted)
      return Error{
          EBADMSG,
          formatted("the {} is not the dump that was the parent; put that one back [SL-I40]", words)};
    fd = ancestor->dir_fd();
    wanted = ancestor->parent_dump_id();
    chain->ancestors_.push_back(std::move(ancestor));
  }
  return std::shared_ptr<const Chain>(chain);
}

std::vector<int> Chain::directories() const {
  std::vector<int> directories;
  for (const auto& ancestor : ancestors_) directories.push_back(ancestor->dir_fd());
  return directories;
}

Result<std::vector<UniqueFd>> Chain::reopen(int dir_fd) const {
  std::vector<UniqueFd> directories;
  for (const auto& ancestor : ancestors_) {
    const std::string& words = ancestor->describe();
    UniqueFd directory(::openat(dir_fd, kParentLink, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat status {};
    if (!directory || ::fstat(directory.get(), &status) != 0)
      return make_error(errno, "open the directory that is the " + words, Topic::Images);
    if (std::pair(status.st_dev, status.st_ino) != ancestor->identity())
      return Error{ESTALE, formatted("the link to the {} leads to another directory here [SL-I41]", words)};
    dir_fd = directory.get();
    directories.push_back(std::move(directory));
  }
  return directories;
}

bool Chain::meets(const Needs& needs) const {
  if (needs.replicas && !own_) return false;
  return needs.parent == DumpId{} || (!ancestors_.empty() && ancestors_.front()->dump_id() == needs.parent);
}

// The ancestor's file that has a unit which is said to be in the parent's `file`, at `offset`, which is moved
// to the place in the found one.
Result<ExtentFile> Chain::find_unit(std::span<const int> directories, const std::string& file,
                                    std::uint64_t& offset, std::uint64_t length, const Sum128& sum) const {
  const std::string* name = &file;
  for (std::size_t i = 0; i < ancestors_.size(); ++i) {
    SLUICE_TRY_ASSIGN(const Ancestor::Place place, ancestors_[i]->find(*name, offset, length, sum));
    name = place.file;
    offset = place.offset;
    if (place.in_parent) continue;
    return ExtentFile{directories[i], *name, place.file_bytes, ancestors_[i]->describe() + "/" + *name};
  }
  return Error{
      EBADMSG,
      formatted("no checkpoint of the chain has {} at {}; put the missing one back [SL-I42]", file, offset)};
}

Result<std::vector<ExtentMap>> Chain::resolve(int dir_fd, std::span<const int> directories,
                                              const ImageLayout& layout, const Sidecar& sidecar,
                                              const std::set<std::string>& shared) const {
  const auto of_checkpoint = [&](const std::string& name, std::uint64_t bytes) {
    return ExtentFile{dir_fd, name, bytes, name, false, shared.contains(name)};
  };
  std::vector<ExtentMap> maps(layout.file_count());
  ZeroSums zero_sums;
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    const SumTable& table = sidecar.tables[file];
    const UnitIndex units(layout, table.block_bytes);
    const auto index = [&](bool has_any, const std::vector<KnownRuns>& runs) {
      return has_any ? RunIndex(layout, units, file, runs[file]) : RunIndex();
    };
    const RunIndex in_parent = index(sidecar.needs_parent(file), sidecar.parents);
    const bool left_out = sidecar.needs_others(file);
    const RunIndex in_others =
        index(left_out || (!shared.empty() && !sidecar.replicas.empty()), sidecar.replicas);
    ExtentMap& map = maps[file];
    map.files.push_back(of_checkpoint(sidecar.pages_files[file], layout.file_bytes(file)));
    const auto find = [&](const SumRange& range, const Sum128& sum) -> Result<Extent> {
      const std::uint64_t length = range.end - range.begin;
      Extent extent{range.begin, range.end, Extent::kZeros, 0};
      if (sum == zero_sums.of(table.method, length)) return extent;
      extent.file = 0;
      extent.offset = range.begin;
      if (const auto in = in_parent.find(range.index, range.begin)) {
        extent.offset = in->offset;
        SLUICE_TRY_ASSIGN(const ExtentFile its,
                          find_unit(directories, *in->file, extent.offset, length, sum));
        extent.file = number_of(map, its);
      } else if (const auto replica = in_others.find(range.index, range.begin)) {
        if (left_out) {
          SLUICE_TRY_ASSIGN(const Ancestor::Place its,
                            own_->find_own(*replica->file, replica->offset, length, sum));
          extent.offset = its.offset;
          extent.file = number_of(map, of_checkpoint(*its.file, its.file_bytes));
        } else if (shared.contains(*replica->file)) {
          extent.offset = replica->offset;
          extent.file = number_of(map, of_checkpoint(*replica->file, ExtentFile::kAnyBytes));
        }
      }
      return extent;
    };
    Result<void> done;
    each_unit(layout, units, file, [&](const SumRange& range) {
      if (!done) return;
      const auto extent = find(range, table.sums[static_cast<std::size_t>(range.index)]);
      if (extent)
        append(map.extents, *extent);
      else
        done = extent.error();
    });
    if (!done) return done.error();
  }
  return maps;
}

}  // namespace sluice
