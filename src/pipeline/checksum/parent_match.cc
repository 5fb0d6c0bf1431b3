// SPDX-License-Identifier: MIT
#include "pipeline/checksum/parent_match.h"

#include <algorithm>
#include <cassert>

namespace sluice {
namespace {

std::uint64_t first_part(const SumRange& range) {
  return range.begin / kZeroUnitBytes;
}
std::uint64_t end_part(const SumRange& range) {
  return div_ceil(range.end, kZeroUnitBytes);
}

}  // namespace

ParentMatch::ParentMatch(const ImageLayout& layout, std::span<const SumTable> tables,
                         std::vector<ParentBo> bos, std::uint64_t clone_block_bytes)
    : layout_(layout),
      units_(layout, tables.front().block_bytes),
      method_(tables.front().method),
      bos_(std::move(bos)),
      clone_block_bytes_(clone_block_bytes) {
  assert(tables.size() == layout.file_count() && bos_.size() == layout.bo_count());
  for (const SumTable& table : tables) {
    is_parents_.emplace_back(table.sums.size());
    if (shares_extents()) is_cloned_.emplace_back(div_ceil(table.file_bytes, kZeroUnitBytes));
  }
}

const Sum128* ParentMatch::sum_of(const SumRange& range) const {
  if (range.bo == Piece::kHeader) return nullptr;
  const auto& [files, bo] = bos_[range.bo];
  if (files == nullptr || range.bo_offset >= files->layout.bo_bytes(bo)) return nullptr;
  const std::uint64_t length = range.end - range.begin;
  if (!files->units.is_begin(bo, range.bo_offset) ||
      files->units.end_of(bo, range.bo_offset) - range.bo_offset != length)
    return nullptr;
  const SumTable& table = files->tables[files->layout.file_of(bo)];
  if (table.method != method_) return nullptr;
  return &table.sums[static_cast<std::size_t>(files->units.at(bo, range.bo_offset))];
}

ParentMatch::Source ParentMatch::source_of(const SumRange& range, std::uint64_t begin) const {
  const auto& [files, bo] = bos_[range.bo];
  const std::uint64_t offset = files->layout.bo_begin(bo) + range.bo_offset;
  return {files, files->layout.file_of(bo), static_cast<std::int64_t>(offset - begin)};
}

// Keeps those parts of the parent's that are one stretch of one of its files, at block boundaries. The rest
// is written from the slot.
void ParentMatch::keep_cloneable(Slot& slot) {
  const Chunk& chunk = slot.chunk;
  std::vector<bool>& parts = slot.parent_units;
  if (layout_.file_bytes(chunk.file) <= kLargestUncloned) parts.assign(parts.size(), false);
  if (chunk.length % kZeroUnitBytes != 0)
    parts[static_cast<std::size_t>(chunk.length / kZeroUnitBytes)] = false;
  Source before;
  SumRange range;
  for (SumRangeCursor ranges(layout_, units_, chunk); ranges.next(range);) {
    Source source;
    if (is_parents_[chunk.file][static_cast<std::size_t>(range.index)] != 0)
      source = source_of(range, chunk.file_offset + range.begin);
    const bool can_be = source.files != nullptr &&
                        source.files->layout.file_bytes(source.file) > kLargestUncloned &&
                        source.further % static_cast<std::int64_t>(clone_block_bytes_) == 0;
    const bool goes_on = range.begin % kZeroUnitBytes == 0 || source == before;
    if (!goes_on) parts[static_cast<std::size_t>(first_part(range))] = false;
    for (std::uint64_t part = first_part(range); part < end_part(range) && !can_be; ++part)
      parts[static_cast<std::size_t>(part)] = false;
    before = source;
  }
  for (std::uint64_t begin = 0; begin < chunk.length; begin += kZeroUnitBytes) {
    const auto part = static_cast<std::size_t>(begin / kZeroUnitBytes);
    is_cloned_[chunk.file][static_cast<std::size_t>(chunk.file_offset / kZeroUnitBytes) + part] =
        parts[part] && !slot.zero_units[part] ? 1 : 0;
  }
}

void ParentMatch::take(Slot& slot, const SumTable& table) {
  std::vector<std::uint8_t>& is_parents = is_parents_[slot.chunk.file];
  std::fill(slot.parent_units.begin(), slot.parent_units.end(), true);
  SumRange range;
  for (SumRangeCursor ranges(layout_, units_, slot.chunk); ranges.next(range);) {
    const auto index = static_cast<std::size_t>(range.index);
    const Sum128* const before = sum_of(range);
    is_parents[index] = before != nullptr && *before == table.sums[index] ? 1 : 0;
    if (is_parents[index] != 0) continue;
    for (std::uint64_t part = first_part(range); part < end_part(range); ++part)
      slot.parent_units[static_cast<std::size_t>(part)] = false;
  }
  if (shares_extents()) keep_cloneable(slot);
  // Data that is written anyway, or a hole, is this dump's own.
  for (SumRangeCursor ranges(layout_, units_, slot.chunk); ranges.next(range);) {
    bool is_left_out = false;
    for (std::uint64_t part = first_part(range); part < end_part(range); ++part) {
      const auto at = static_cast<std::size_t>(part);
      is_left_out = is_left_out || (slot.parent_units[at] && !slot.zero_units[at]);
    }
    if (!is_left_out) is_parents[static_cast<std::size_t>(range.index)] = 0;
  }
  for (std::uint64_t begin = 0; begin < slot.chunk.length; begin += kZeroUnitBytes) {
    const auto at = static_cast<std::size_t>(begin / kZeroUnitBytes);
    if (slot.parent_units[at] && !slot.zero_units[at])
      bytes_ += std::min(kZeroUnitBytes, slot.chunk.length - begin);
  }
}

ParentRuns ParentMatch::runs(std::uint32_t file) const {
  ParentRuns found;
  std::vector<std::string>& names = found.files;
  std::vector<ParentRun>& runs = found.runs;
  std::uint64_t next_offset = 0;  // end of the last run, in the parent's file
  each_unit(layout_, units_, file, [&](const SumRange& range) {
    if (is_parents_[file][static_cast<std::size_t>(range.index)] == 0) return;
    const auto& [files, bo] = bos_[range.bo];
    const std::string& name = files->names[files->layout.file_of(bo)];
    const std::uint64_t offset = files->layout.bo_begin(bo) + range.bo_offset;
    const bool goes_on = !runs.empty() && names[runs.back().file] == name &&
                         runs.back().first_unit + runs.back().units == range.index && next_offset == offset;
    if (goes_on) {
      ++runs.back().units;
    } else {
      auto known = std::find(names.begin(), names.end(), name);
      if (known == names.end()) known = names.insert(names.end(), name);
      runs.push_back({range.index, 1, static_cast<std::uint32_t>(known - names.begin()), offset});
    }
    next_offset = offset + range.end - range.begin;
  });
  return found;
}

CloneRuns ParentMatch::clones(std::uint32_t file) const {
  CloneRuns found;
  const std::vector<std::uint8_t>& is_cloned = is_cloned_[file];
  const ParentFiles* files = nullptr;  // those of the last file of `found`, ...
  std::uint32_t number = 0;            // ... and their index there
  each_unit(layout_, units_, file, [&](const SumRange& range) {
    // Parts that begin in the unit: they continue where it does.
    for (std::uint64_t part = div_ceil(range.begin, kZeroUnitBytes); part * kZeroUnitBytes < range.end;
         ++part) {
      if (is_cloned[static_cast<std::size_t>(part)] == 0) continue;
      const Source source = source_of(range, range.begin);
      if (source.files != files || source.file != number) {
        files = source.files;
        number = source.file;
        const std::string& name = files->names[number];
        found.files.push_back(
            {files->dir_fd, name, files->layout.file_bytes(number), "the parent's " + name, true});
      }
      const std::uint64_t begin = part * kZeroUnitBytes;
      found.append({begin, kZeroUnitBytes, static_cast<std::uint32_t>(found.files.size() - 1),
                    begin + static_cast<std::uint64_t>(source.further)});
    }
  });
  return found;
}

}  // namespace sluice
