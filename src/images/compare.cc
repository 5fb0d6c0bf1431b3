// SPDX-License-Identifier: MIT
#include "images/compare.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <tuple>

#include "pipeline/checksum.h"
#include "pipeline/file_store.h"
#include "pipeline/image_file.h"
#include "pipeline/unique_fd.h"

namespace sluice {
namespace {

// A pages set, and how its like is found in the other checkpoint.
struct Set {
  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> key;  // process, GPU, 1 + minor of a render file
  int id = 0;
  DumpId dump_id{};
  PagesSet set;
  std::vector<std::uint64_t> bo_keys;  // address, or GEM handle
};

std::vector<Set> sets_of(const Checkpoint& checkpoint) {
  std::vector<Set> sets;
  for (const auto& [id, image] : checkpoint.kfd) {
    for (PagesSet& pages : pages_of(image)) {
      Set set{{image.pid, pages.gpu_id, 0}, id, image.dump_id.value_or(DumpId{}), std::move(pages), {}};
      for (const PagesBo& bo : set.set.bos) set.bo_keys.push_back(bo.va);
      sets.push_back(std::move(set));
    }
  }
  for (const auto& [id, image] : checkpoint.render) {
    if (!image.has_contents()) continue;
    Set set{{image.pid.value_or(0), image.gpu_id, image.minor + 1},
            id,
            image.dump_id.value_or(DumpId{}),
            pages_of(image),
            {}};
    for (const PagesBo& bo : set.set.bos) set.bo_keys.push_back(image.bos[bo.number].gem.handle);
    sets.push_back(std::move(set));
  }
  return sets;
}

bool same_bos(const Set& a, const Set& b) {
  return a.bo_keys == b.bo_keys &&
         std::equal(a.set.bos.begin(), a.set.bos.end(), b.set.bos.begin(), b.set.bos.end(),
                    [](const PagesBo& x, const PagesBo& y) { return x.bytes == y.bytes; });
}

// The pages files of a set, opened one at a time.
class Contents {
 public:
  Contents(int dir_fd, const Set& set, const ImageLayout& layout)
      : dir_fd_(dir_fd), set_(set), layout_(layout) {}

  // Bytes [offset, offset + into.size()) of BO `bo`.
  Result<void> read(std::uint32_t bo, std::uint64_t offset, std::span<std::byte> into) {
    const std::uint32_t file = set_.set.drm_minor ? bo : 0;
    SLUICE_TRY(open(file));
    const std::uint64_t begin = layout_.bo_begin(bo) + offset;
    for (std::size_t have = 0; have < into.size();) {
      const ssize_t got = TEMP_FAILURE_RETRY(
          ::pread(fd_.get(), into.data() + have, into.size() - have, static_cast<off_t>(begin + have)));
      if (got <= 0) {
        return make_error(got < 0 ? errno : EBADMSG, "read " + set_.set.pages_name(set_.id, file) + " at " +
                                                         std::to_string(begin + have));
      }
      have += static_cast<std::size_t>(got);
    }
    return {};
  }

 private:
  Result<void> open(std::uint32_t file) {
    if (fd_ && file == file_) return {};
    const std::string name = set_.set.pages_name(set_.id, file);
    SLUICE_TRY_ASSIGN(ImageFile opened, open_image_file(dir_fd_, name));
    SLUICE_TRY(check_pages_file(name, opened.status, layout_.file_bytes(file)));
    fd_ = std::move(opened.fd);
    (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    file_ = file;
    return {};
  }

  int dir_fd_;
  const Set& set_;
  const ImageLayout& layout_;
  UniqueFd fd_;
  std::uint32_t file_ = 0;
};

// Adds the blocks of one file to the BOs that lie in them.
void compare_sums(const SumTable& older, const SumTable& newer, std::uint32_t file, const ImageLayout& layout,
                  ZeroSums& zero_sums, std::vector<BoDifference>& bos) {
  for (std::size_t i = 0; i < newer.sums.size(); ++i) {
    const std::uint64_t begin = i * newer.block_bytes;
    const std::uint64_t length = std::min(newer.block_bytes, newer.file_bytes - begin);
    const bool zero = newer.sums[i] == zero_sums.of(newer.method, length);
    const bool equal = older.sums[i] == newer.sums[i];
    ImageLayout::PieceCursor pieces = layout.pieces(Chunk{0, begin, length, file});
    for (Piece piece; pieces.next(piece);) {
      if (piece.is_header()) continue;
      Difference& bytes = bos[piece.bo].bytes;
      (zero ? bytes.zero : equal ? bytes.equal : bytes.changed) += piece.length;
    }
  }
}

// Whether sums decide; nothing is in `difference` otherwise.
Result<bool> try_sums(const ImagesAt& older, const Set& old_set, const ImagesAt& newer, const Set& new_set,
                      const ImageLayout& layout, SetDifference& difference) {
  if (!same_bos(old_set, new_set)) return false;
  SLUICE_TRY_ASSIGN(const ImageLayout old_layout, old_set.set.layout(kSumBlockBytes));
  const auto old_sums = read_sidecar(older.dir_fd, old_set.id, old_set.set, old_layout, old_set.dump_id);
  if (!old_sums) return old_sums.error();
  const auto new_sums = read_sidecar(newer.dir_fd, new_set.id, new_set.set, layout, new_set.dump_id);
  if (!new_sums) return new_sums.error();
  if (!*old_sums || !*new_sums) return false;
  const auto& old_tables = (*old_sums)->tables;
  const auto& new_tables = (*new_sums)->tables;
  for (std::size_t file = 0; file < new_tables.size(); ++file) {
    if (old_tables[file].block_bytes != new_tables[file].block_bytes) return false;
  }
  ZeroSums zero_sums;
  for (std::uint32_t file = 0; file < new_tables.size(); ++file)
    compare_sums(old_tables[file], new_tables[file], file, layout, zero_sums, difference.bos);
  difference.by_sums = true;
  return true;
}

// `old_bo`: nothing where the older one lacks the BO.
Result<Difference> read_and_compare(Contents& older, std::optional<std::uint32_t> old_bo, Contents& newer,
                                    std::uint32_t new_bo, std::uint64_t bytes) {
  Difference difference;
  std::vector<std::byte> before(static_cast<std::size_t>(kSumBlockBytes));
  std::vector<std::byte> after(before.size());
  for (std::uint64_t at = 0; at < bytes; at += kSumBlockBytes) {
    const std::uint64_t length = std::min(kSumBlockBytes, bytes - at);
    const auto part = [length](std::vector<std::byte>& all) {
      return std::span(all).first(static_cast<std::size_t>(length));
    };
    SLUICE_TRY(newer.read(new_bo, at, part(after)));
    if (is_zero(part(after))) {
      difference.zero += length;
      continue;
    }
    bool equal = false;
    if (old_bo) {
      SLUICE_TRY(older.read(*old_bo, at, part(before)));
      equal = std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(length), after.begin());
    }
    (equal ? difference.equal : difference.changed) += length;
  }
  return difference;
}

Result<SetDifference> compare_sets(const ImagesAt& older, const Set* old_set, const ImagesAt& newer,
                                   const Set& new_set) {
  SetDifference difference{std::get<0>(new_set.key), new_set.set.words(), false, {}, 0};
  for (const PagesBo& bo : new_set.set.bos) difference.bos.push_back({bo, old_set == nullptr, {}});
  SLUICE_TRY_ASSIGN(const ImageLayout layout, new_set.set.layout(kSumBlockBytes));
  if (old_set != nullptr) {
    SLUICE_TRY_ASSIGN(const bool done, try_sums(older, *old_set, newer, new_set, layout, difference));
    if (done) return difference;
  }
  std::map<std::uint64_t, std::uint32_t> old_bos;
  const PagesSet none;
  SLUICE_TRY_ASSIGN(const ImageLayout old_layout,
                    (old_set != nullptr ? old_set->set : none).layout(kSumBlockBytes));
  for (std::uint32_t i = 0; old_set != nullptr && i < old_set->bo_keys.size(); ++i)
    old_bos.emplace(old_set->bo_keys[i], i);
  Contents before(older.dir_fd, old_set != nullptr ? *old_set : new_set, old_layout);
  Contents after(newer.dir_fd, new_set, layout);
  for (std::uint32_t i = 0; i < new_set.set.bos.size(); ++i) {
    std::optional<std::uint32_t> old_bo;
    if (const auto found = old_bos.find(new_set.bo_keys[i]);
        found != old_bos.end() && old_set->set.bos[found->second].bytes == new_set.set.bos[i].bytes) {
      old_bo = found->second;
      old_bos.erase(found);
    }
    difference.bos[i].is_new = !old_bo;
    SLUICE_TRY_ASSIGN(difference.bos[i].bytes,
                      read_and_compare(before, old_bo, after, i, new_set.set.bos[i].bytes));
  }
  for (const auto& [key, bo] : old_bos) difference.gone_bytes += old_set->set.bos[bo].bytes;
  return difference;
}

}  // namespace

Difference& Difference::operator+=(const Difference& more) {
  equal += more.equal;
  changed += more.changed;
  zero += more.zero;
  return *this;
}

Difference SetDifference::total() const {
  Difference sum;
  for (const BoDifference& bo : bos) sum += bo.bytes;
  return sum;
}

Result<std::vector<SetDifference>> compare(const ImagesAt& older, const ImagesAt& newer) {
  std::vector<Set> old_sets = sets_of(*older.checkpoint);
  std::vector<SetDifference> differences;
  for (const Set& set : sets_of(*newer.checkpoint)) {
    const auto found = std::find_if(old_sets.begin(), old_sets.end(),
                                    [&](const Set& other) { return other.key == set.key; });
    const std::unique_ptr<Set> old_set =
        found != old_sets.end() ? std::make_unique<Set>(std::move(*found)) : nullptr;
    if (old_set) old_sets.erase(found);  // several files of one process on one device: in their order
    SLUICE_TRY_ASSIGN(SetDifference difference, compare_sets(older, old_set.get(), newer, set));
    differences.push_back(std::move(difference));
  }
  for (const Set& set : old_sets) {
    SetDifference gone{std::get<0>(set.key), set.set.words(), false, {}, 0};
    for (const PagesBo& bo : set.set.bos) gone.gone_bytes += bo.bytes;
    differences.push_back(std::move(gone));
  }
  return differences;
}

}  // namespace sluice
