// SPDX-License-Identifier: MIT
#include "pipeline/checksum/content_match.h"

#include <algorithm>
#include <array>
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

ContentMatch::ContentMatch(const ImageLayout& layout, std::span<const SumTable> tables,
                           std::vector<KnownBo> bos, std::uint64_t clone_block_bytes,
                           std::vector<Leader> leaders)
    : layout_(layout),
      units_(layout, tables.front().block_bytes),
      method_(tables.front().method),
      bos_(std::move(bos)),
      leaders_(std::move(leaders)),
      last_leader_(leaders_.size()),
      clone_block_bytes_(clone_block_bytes) {
  assert(tables.size() == layout.file_count() && bos_.size() == layout.bo_count());
  assert(leaders_.size() <= kMostLeaders);
  for (const SumTable& table : tables) {
    owners_.emplace_back(table.sums.size());
    if (shares_extents()) is_cloned_.emplace_back(div_ceil(table.file_bytes, kZeroUnitBytes));
  }
}

KnownBo ContentMatch::known_bo(Owner owner, std::uint32_t bo) const {
  if (owner == kParent) return bos_[bo];
  const Leader& leader = leaders_[owner - kFirstLeader];
  return leader.bos[bo] == Leader::kNoBo ? KnownBo{} : KnownBo{&leader.lane->files, leader.bos[bo]};
}

const Sum128* ContentMatch::sum_of(const SumRange& range, Owner owner) const {
  if (range.bo == Piece::kHeader) return nullptr;
  const auto [files, bo] = known_bo(owner, range.bo);
  if (files == nullptr || range.bo_offset >= files->layout.bo_bytes(bo)) return nullptr;
  const std::uint64_t length = range.end - range.begin;
  if (!files->units.is_begin(bo, range.bo_offset) ||
      files->units.end_of(bo, range.bo_offset) - range.bo_offset != length)
    return nullptr;
  if (owner >= kFirstLeader &&
      !leaders_[owner - kFirstLeader].lane->has(files->layout.bo_begin(bo) + range.bo_offset, length))
    return nullptr;
  const SumTable& table = files->tables[files->layout.file_of(bo)];
  if (table.method != method_) return nullptr;
  return &table.sums[static_cast<std::size_t>(files->units.at(bo, range.bo_offset))];
}

ContentMatch::Owner ContentMatch::owner_of(const SumRange& range, const Sum128& sum) {
  const auto has = [&](Owner owner) {
    const Sum128* const its = sum_of(range, owner);
    return its != nullptr && *its == sum;
  };
  if (has(kParent)) return kParent;
  const std::size_t last = last_leader_.load(std::memory_order_relaxed);
  if (last < leaders_.size() && has(leader(last))) return leader(last);
  if (range.bo_offset % kMiB != 0) return kNobody;
  for (std::size_t i = 0; i < leaders_.size(); ++i) {
    if (i == last || !has(leader(i))) continue;
    last_leader_.store(i, std::memory_order_relaxed);
    return leader(i);
  }
  return kNobody;
}

// Only one is waited for: it has waited for its own leader, and that one for the next.
std::optional<ContentMatch::Wait> ContentMatch::waits_for(const Chunk& chunk) const {
  const std::size_t last = last_leader_.load(std::memory_order_relaxed);
  ImageLayout::PieceCursor pieces = layout_.pieces(chunk);
  for (Piece piece; pieces.next(piece);) {
    if (piece.is_header()) continue;
    const auto has = [&piece](const Leader& one) { return one.bos[piece.bo] != Leader::kNoBo; };
    auto one = leaders_.begin() + static_cast<std::ptrdiff_t>(last);
    if (one == leaders_.end() || !has(*one)) one = std::find_if(leaders_.begin(), leaders_.end(), has);
    if (one == leaders_.end() || !one->in_step) continue;
    const std::uint64_t offset = one->lane->files.layout.bo_begin(one->bos[piece.bo]) + piece.bo_offset;
    if (const auto its = one->lane->unsettled(offset, piece.length)) return Wait{one->lane.get(), *its};
  }
  return std::nullopt;
}

ContentMatch::Source ContentMatch::source_of(const SumRange& range, std::uint64_t begin, Owner owner) const {
  const auto [files, bo] = known_bo(owner, range.bo);
  const std::uint64_t offset = files->layout.bo_begin(bo) + range.bo_offset;
  return {files, files->layout.file_of(bo),
          static_cast<std::int64_t>(offset) - static_cast<std::int64_t>(begin)};
}

bool ContentMatch::is_hole(const Slot& slot, const SumRange& range) {
  for (std::uint64_t part = first_part(range); part < end_part(range); ++part)
    if (!slot.zero_units[static_cast<std::size_t>(part)]) return false;
  return true;
}

// Keeps those parts that are one stretch of one other file, at block boundaries. The rest is written from the
// slot.
void ContentMatch::keep_cloneable(Slot& slot) {
  const Chunk& chunk = slot.chunk;
  std::vector<bool>& parts = slot.known_units;
  if (layout_.file_bytes(chunk.file) <= kLargestUncloned) parts.assign(parts.size(), false);
  if (chunk.length % kZeroUnitBytes != 0)
    parts[static_cast<std::size_t>(chunk.length / kZeroUnitBytes)] = false;
  Source before;
  SumRange range;
  for (SumRangeCursor ranges(layout_, units_, chunk); ranges.next(range);) {
    Source source;
    const Owner owner = owners_[chunk.file][static_cast<std::size_t>(range.index)];
    if (owner != kNobody) source = source_of(range, chunk.file_offset + range.begin, owner);
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

void ContentMatch::take(Slot& slot, const SumTable& table) {
  std::vector<Owner>& owners = owners_[slot.chunk.file];
  std::fill(slot.known_units.begin(), slot.known_units.end(), true);
  SumRange range;
  for (SumRangeCursor ranges(layout_, units_, slot.chunk); ranges.next(range);) {
    const auto index = static_cast<std::size_t>(range.index);
    owners[index] = is_hole(slot, range) ? kNobody : owner_of(range, table.sums[index]);
    if (owners[index] != kNobody) continue;
    for (std::uint64_t part = first_part(range); part < end_part(range); ++part)
      slot.known_units[static_cast<std::size_t>(part)] = false;
  }
  if (shares_extents()) keep_cloneable(slot);
  // Data that is written anyway, or a hole, is this dump's own.
  for (SumRangeCursor ranges(layout_, units_, slot.chunk); ranges.next(range);) {
    Owner& owner = owners[static_cast<std::size_t>(range.index)];
    bool is_left_out = false;
    for (std::uint64_t part = first_part(range); part < end_part(range); ++part) {
      const auto at = static_cast<std::size_t>(part);
      if (!slot.known_units[at] || slot.zero_units[at]) continue;
      is_left_out = true;
      // Each part counts for the unit that it begins in.
      if (part * kZeroUnitBytes >= range.begin)
        (owner == kParent ? parent_bytes_ : replica_bytes_) +=
            std::min(kZeroUnitBytes, slot.chunk.length - part * kZeroUnitBytes);
    }
    if (!is_left_out) owner = kNobody;
  }
}

Result<void> ContentMatch::wait_for_leaders(const std::function<bool()>& gives_up) const {
  std::array<bool, kMostLeaders> have{};
  for (const std::vector<Owner>& owners : owners_)
    for (const Owner owner : owners)
      if (owner >= kFirstLeader) have[owner - kFirstLeader] = true;
  for (std::size_t i = 0; i < leaders_.size(); ++i)
    if (have[i]) SLUICE_TRY(leaders_[i].lane->wait_for_end(gives_up));
  return {};
}

ContentMatch::RunPlace ContentMatch::run_place_of(const SumRange& range, Owner owner) const {
  const auto [files, bo] = known_bo(owner, range.bo);
  const std::uint64_t offset = files->layout.bo_begin(bo) + range.bo_offset;
  if (owner != kParent) {
    const LeaderLane& lane = *leaders_[owner - kFirstLeader].lane;
    const std::uint64_t unit = files->units.at(bo, range.bo_offset);
    if (const auto its = lane.in_parent().find(unit, offset)) return {its->file, its->offset, true};
    if (const auto its = lane.in_leaders().find(unit, offset)) return {its->file, its->offset, false};
  }
  return {&files->names[files->layout.file_of(bo)], offset, owner == kParent};
}

FoundRuns ContentMatch::runs(std::uint32_t file) const {
  FoundRuns found;
  std::uint64_t parents_end = 0, replicas_end = 0;
  each_unit(layout_, units_, file, [&](const SumRange& range) {
    const Owner owner = owners_[file][static_cast<std::size_t>(range.index)];
    if (owner == kNobody) return;
    const RunPlace place = run_place_of(range, owner);
    (place.in_parent ? found.parents : found.replicas)
        .append(range.index, range.end - range.begin, *place.file, place.offset,
                place.in_parent ? parents_end : replicas_end);
  });
  return found;
}

CloneRuns ContentMatch::clones(std::uint32_t file) const {
  CloneRuns found;
  const std::vector<std::uint8_t>& is_cloned = is_cloned_[file];
  const KnownFiles* files = nullptr;  // those of the last file of `found`, ...
  std::uint32_t number = 0;           // ... and their index there
  each_unit(layout_, units_, file, [&](const SumRange& range) {
    // Parts that begin in the unit: they continue where it does.
    for (std::uint64_t part = div_ceil(range.begin, kZeroUnitBytes); part * kZeroUnitBytes < range.end;
         ++part) {
      if (is_cloned[static_cast<std::size_t>(part)] == 0) continue;
      const Owner owner = owners_[file][static_cast<std::size_t>(range.index)];
      const Source source = source_of(range, range.begin, owner);
      if (source.files != files || source.file != number) {
        files = source.files;
        number = source.file;
        const std::string& name = files->names[number];
        const bool is_parents = owner == kParent;
        found.files.push_back({.dir_fd = files->dir_fd,
                               .name = name,
                               .bytes = files->layout.file_bytes(number),
                               .words = is_parents ? "the parent's " + name : name,
                               .open_fd = is_parents ? -1 : leaders_[owner - kFirstLeader].lane->file()});
      }
      const std::uint64_t begin = part * kZeroUnitBytes;
      found.append({begin, kZeroUnitBytes, static_cast<std::uint32_t>(found.files.size() - 1),
                    begin + static_cast<std::uint64_t>(source.further)});
    }
  });
  return found;
}

}  // namespace sluice
