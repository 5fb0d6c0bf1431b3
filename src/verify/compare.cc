// SPDX-License-Identifier: MIT
#include "verify/compare.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "images/chain/chain.h"
#include "images/chain/extent_stream.h"
#include "images/sums.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/store/file_reader.h"

namespace sluice {
namespace {

// A BO of both checkpoints, or of one, to be compared by contents.
struct BoPair {
  std::optional<std::uint32_t> old_bo;  // nothing: not in the older checkpoint
  std::vector<Sum128> old_sums;         // of its blocks
};

// A set of the newer checkpoint and its counterpart in the older one.
struct SetPair {
  std::unique_ptr<NumberedPages> older;  // null: none in the older checkpoint
  NumberedPages newer;
  SetDifference difference;
  std::vector<BoPair> bos;  // as `difference.bos`; empty where sums decided
};

// Which BOs are compared with each other.
void pair_bos(SetPair& pair) {
  std::map<std::uint64_t, std::uint32_t> old_bos;
  for (std::uint32_t i = 0; pair.older && i < pair.older->set.bos.size(); ++i)
    old_bos.emplace(pair.older->set.bos[i].key, i);
  pair.bos.resize(pair.newer.set.bos.size());
  for (std::uint32_t i = 0; i < pair.bos.size(); ++i) {
    const auto found = old_bos.find(pair.newer.set.bos[i].key);
    if (found != old_bos.end() && pair.older->set.bos[found->second].bytes == pair.newer.set.bos[i].bytes) {
      pair.bos[i].old_bo = found->second;
      old_bos.erase(found);
    }
    pair.difference.bos[i].is_new = !pair.bos[i].old_bo;
  }
  for (const auto& [key, bo] : old_bos) pair.difference.gone_bytes += pair.older->set.bos[bo].bytes;
}

// Adds the units of one file, each compared with that of the same BO in the older checkpoint. A unit cut
// elsewhere counts as changed, as in a dump.
void compare_units(const ImageLayout& old_layout, const std::vector<SumTable>& old_tables,
                   const ImageLayout& layout, const std::vector<SumTable>& new_tables, std::uint32_t file,
                   ZeroSums& zero_sums, SetPair& pair) {
  const SumTable& newer = new_tables[file];
  const UnitIndex old_units(old_layout, newer.block_bytes);
  const UnitIndex units(layout, newer.block_bytes);
  SumRangeCursor ranges(layout, units, Chunk{0, 0, newer.file_bytes, file});
  for (SumRange range; ranges.next(range);) {
    if (range.bo == Piece::kHeader) continue;
    const std::uint64_t length = range.end - range.begin;
    const Sum128& sum = newer.sums[static_cast<std::size_t>(range.index)];
    const std::optional<std::uint32_t> old_bo = pair.bos[range.bo].old_bo;
    const bool has_unit = old_bo && old_units.is_begin(*old_bo, range.bo_offset) &&
                          old_units.end_of(*old_bo, range.bo_offset) - range.bo_offset == length;
    const bool equal =
        has_unit && old_tables[old_layout.file_of(*old_bo)]
                            .sums[static_cast<std::size_t>(old_units.at(*old_bo, range.bo_offset))] == sum;
    Difference& bytes = pair.difference.bos[range.bo].bytes;
    (sum == zero_sums.of(newer.method, length) ? bytes.zero : equal ? bytes.equal : bytes.changed) += length;
  }
}

// Whether sums decide; if not, the pair's difference stays empty.
Result<bool> try_sums(const ImagesAt& older, const ImagesAt& newer, SetPair& pair) {
  const NumberedPages& old_set = *pair.older;
  const NumberedPages& new_set = pair.newer;
  SLUICE_TRY_ASSIGN(const ImageLayout layout, new_set.set.layout(kSumBlockBytes));
  SLUICE_TRY_ASSIGN(const ImageLayout old_layout, old_set.set.layout(kSumBlockBytes));
  const auto old_sums = read_sidecar(*older.source, old_set.id, old_set.set, old_layout, old_set.dump_id);
  if (!old_sums) return old_sums.error();
  const auto new_sums = read_sidecar(*newer.source, new_set.id, new_set.set, layout, new_set.dump_id);
  if (!new_sums) return new_sums.error();
  if (!*old_sums || !*new_sums) return false;
  const auto& old_tables = (*old_sums)->tables;
  const auto& new_tables = (*new_sums)->tables;
  const SumTable& old_first = old_tables.front();
  const SumTable& new_first = new_tables.front();
  if (old_first.method != new_first.method || !new_first.method.decides() ||
      old_first.block_bytes != new_first.block_bytes) {
    pair.difference.sums_differ = true;
    return false;
  }
  ZeroSums zero_sums;
  pair_bos(pair);
  for (std::uint32_t file = 0; file < new_tables.size(); ++file)
    compare_units(old_layout, old_tables, layout, new_tables, file, zero_sums, pair);
  pair.bos.clear();
  return pair.difference.by_sums = true;
}

// Calls `take` with each block of BO `bo`, in order. REQUIRES: `bytes` is at its begin.
template <class Take>
Result<void> each_block(ByteStream& bytes, std::uint64_t bo_bytes, std::vector<std::byte>& buffer,
                        Take take) {
  for (std::uint64_t at = 0; at < bo_bytes; at += kSumBlockBytes) {
    const auto length = static_cast<std::size_t>(std::min(kSumBlockBytes, bo_bytes - at));
    const std::span<std::byte> block = std::span(buffer).first(length);
    SLUICE_TRY(bytes.read(block));
    take(block);
  }
  return {};
}

// Where the bytes of a set's files are, if the files themselves do not have all of them.
struct Elsewhere {
  std::shared_ptr<const Chain> chain;
  std::vector<ExtentMap> maps;  // by file; empty: the files have all
};

Result<Elsewhere> elsewhere_of(const ImageSource& source, const NumberedPages& set,
                               const ImageLayout& layout) {
  SLUICE_TRY_ASSIGN(const auto sums, read_sidecar(source, set.id, set.set, layout, set.dump_id));
  if (!sums || !sums->needs().any()) return Elsewhere{};
  const auto directory = source.directory();
  if (!directory)
    return Error{ENOSYS,
                 set.set.sums_name(set.id) +
                     " says that other files have a part of the contents; compare the directory instead "
                     "of an archive [SL-T95]"};
  Elsewhere found;
  SLUICE_TRY_ASSIGN(found.chain, Chain::open(*directory, sums->needs(), source.keys()));
  SLUICE_TRY_ASSIGN(found.maps, found.chain->resolve(*directory, found.chain->directories(), layout, *sums));
  return found;
}

// Reads the BOs of the given sets that `wanted` selects, in the order in which `source` has their files.
// `wanted(set, bo)`; `take(set, bo, block)`; each `set` is an index into `sets`.
template <class Wanted, class Take>
Result<void> read_contents(const ImageSource& source, const std::vector<const NumberedPages*>& sets,
                           Wanted wanted, Take take) {
  struct File {
    std::size_t set = 0;
    std::uint32_t file = 0;
  };
  std::map<std::string, File> files;
  std::set<std::string> names;
  std::vector<ImageLayout> layouts;
  std::vector<Elsewhere> parents;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const PagesSet none;
    const PagesSet& set = sets[i] != nullptr ? sets[i]->set : none;
    SLUICE_TRY_ASSIGN(ImageLayout layout, set.layout(kSumBlockBytes));
    Elsewhere& parent = parents.emplace_back();
    if (sets[i] != nullptr) {
      SLUICE_TRY_ASSIGN(parent, elsewhere_of(source, *sets[i], layout));
    }
    for (std::uint32_t bo = 0; bo < set.bos.size() && parent.maps.empty(); ++bo) {
      if (!wanted(i, bo)) continue;
      const std::uint32_t file = set.drm_minor ? bo : 0;
      const std::string name = set.pages_name(sets[i]->id, file);
      if (!names.insert(name).second) continue;
      SLUICE_TRY_ASSIGN(const SourceFile found, source.look(name));
      SLUICE_TRY(check_pages_size(name, found.bytes, layout.file_bytes(file)));
      files.emplace(name, File{i, file});
    }
    layouts.push_back(std::move(layout));
  }
  std::vector<std::byte> buffer(static_cast<std::size_t>(kSumBlockBytes));
  std::size_t read = 0;
  const auto read_file = [&](std::size_t i, std::uint32_t file, ByteStream& bytes) -> Result<void> {
    const PagesSet& set = sets[i]->set;
    std::uint64_t passed = 0;
    for (std::uint32_t bo = layouts[i].first_bo(file); bo < layouts[i].end_bo(file); ++bo) {
      if (!wanted(i, bo)) continue;
      SLUICE_TRY(bytes.skip(layouts[i].bo_begin(bo) - passed));
      const auto take_block = [&](std::span<const std::byte> block) { take(i, bo, block); };
      SLUICE_TRY(each_block(bytes, set.bos[bo].bytes, buffer, take_block));
      passed = layouts[i].bo_begin(bo) + set.bos[bo].bytes;
    }
    return {};
  };
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (std::uint32_t file = 0; file < parents[i].maps.size(); ++file) {
      SLUICE_TRY_ASSIGN(ExtentStream bytes, ExtentStream::open(parents[i].maps[file]));
      SLUICE_TRY(read_file(i, file, bytes));
    }
  }
  if (names.empty()) return {};
  SLUICE_TRY(source.stream(names, [&](const std::string& name, ByteStream& bytes) {
    ++read;
    const File& at = files.at(name);
    return read_file(at.set, at.file, bytes);
  }));
  if (read == names.size()) return {};
  return Error{ENOENT, "the images changed while they were read; try again [SL-T10]"};
}

// What sums did not decide.
Result<void> compare_contents(const ImagesAt& older, const ImagesAt& newer, std::vector<SetPair>& pairs) {
  std::vector<const NumberedPages*> old_sets;
  std::vector<const NumberedPages*> new_sets;
  std::vector<std::map<std::uint32_t, std::uint32_t>> new_bo_of;  // by set, by number of the older one's BO
  for (const SetPair& pair : pairs) {
    old_sets.push_back(pair.bos.empty() ? nullptr : pair.older.get());
    new_sets.push_back(pair.bos.empty() ? nullptr : &pair.newer);
    auto& by_old_bo = new_bo_of.emplace_back();
    for (std::uint32_t i = 0; i < pair.bos.size(); ++i) {
      if (pair.bos[i].old_bo) by_old_bo.emplace(*pair.bos[i].old_bo, i);
    }
  }
  SLUICE_TRY_ASSIGN(const SumMethod method, new_sum_method({}));  // whatever the images' sums use
  SLUICE_TRY(read_contents(
      *older.source, old_sets,
      [&](std::size_t set, std::uint32_t old_bo) { return new_bo_of[set].contains(old_bo); },
      [&](std::size_t set, std::uint32_t old_bo, std::span<const std::byte> block) {
        pairs[set].bos[new_bo_of[set].at(old_bo)].old_sums.push_back(method.of(block));
      }));
  std::vector<std::vector<std::size_t>> next_block;
  for (const SetPair& pair : pairs) next_block.emplace_back(pair.bos.size());
  return read_contents(
      *newer.source, new_sets, [](std::size_t, std::uint32_t) { return true; },
      [&](std::size_t set, std::uint32_t bo, std::span<const std::byte> block) {
        Difference& bytes = pairs[set].difference.bos[bo].bytes;
        const std::vector<Sum128>& before = pairs[set].bos[bo].old_sums;
        const std::size_t at = next_block[set][bo]++;
        const bool zero = is_zero(block);
        const bool equal = !zero && at < before.size() && before[at] == method.of(block);
        (zero ? bytes.zero : equal ? bytes.equal : bytes.changed) += block.size();
      });
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
  std::vector<NumberedPages> old_sets = pages_of(*older.checkpoint);
  std::vector<SetPair> pairs;
  for (NumberedPages& set : pages_of(*newer.checkpoint)) {
    const auto found = std::find_if(old_sets.begin(), old_sets.end(), [&](const NumberedPages& other) {
      return other.set.pid == set.set.pid && PagesOwner(other.set) == PagesOwner(set.set);
    });
    std::unique_ptr<NumberedPages> old_set =
        found != old_sets.end() ? std::make_unique<NumberedPages>(std::move(*found)) : nullptr;
    if (old_set) old_sets.erase(found);  // several files of one process on one device: in order
    SetPair pair{std::move(old_set), std::move(set), {}, {}};
    pair.difference = {pair.newer.set.pid, pair.newer.set.describe(), false, {}, 0};
    for (const PagesBo& bo : pair.newer.set.bos)
      pair.difference.bos.push_back({bo, pair.older == nullptr, {}});
    bool decided = false;
    if (pair.older) {
      SLUICE_TRY_ASSIGN(decided, try_sums(older, newer, pair));
    }
    if (!decided) pair_bos(pair);
    pairs.push_back(std::move(pair));
  }
  SLUICE_TRY(compare_contents(older, newer, pairs));
  std::vector<SetDifference> differences;
  for (SetPair& pair : pairs) differences.push_back(std::move(pair.difference));
  for (const NumberedPages& set : old_sets) {
    SetDifference gone{set.set.pid, set.set.describe(), false, {}, 0};
    for (const PagesBo& bo : set.set.bos) gone.gone_bytes += bo.bytes;
    differences.push_back(std::move(gone));
  }
  return differences;
}

}  // namespace sluice
