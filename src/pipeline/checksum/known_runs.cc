// SPDX-License-Identifier: MIT
#include "pipeline/checksum/known_runs.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace sluice {

void KnownRuns::append(std::uint64_t unit, std::uint64_t bytes, const std::string& file, std::uint64_t offset,
                       std::uint64_t& end) {
  const bool goes_on = !runs.empty() && files[runs.back().file] == file &&
                       runs.back().first_unit + runs.back().units == unit && end == offset;
  if (goes_on) {
    ++runs.back().units;
  } else {
    auto known = std::find(files.begin(), files.end(), file);
    if (known == files.end()) known = files.insert(files.end(), file);
    runs.push_back({unit, 1, static_cast<std::uint32_t>(known - files.begin()), offset});
  }
  end = offset + bytes;
}

RunIndex::RunIndex(const ImageLayout& layout, const UnitIndex& units, std::uint32_t file, KnownRuns runs)
    : runs_(std::move(runs)) {
  const std::vector<KnownRun>& all = runs_.runs;
  begins_.reserve(all.size());
  if (all.empty()) return;
  each_unit(layout, units, file, [&](const SumRange& range) {
    if (begins_.size() < all.size() && all[begins_.size()].first_unit == range.index)
      begins_.push_back(range.begin);
  });
}

std::optional<RunIndex::Place> RunIndex::find(std::uint64_t unit, std::uint64_t begin) const {
  const auto after =
      std::upper_bound(runs_.runs.begin(), runs_.runs.end(), unit,
                       [](std::uint64_t wanted, const KnownRun& run) { return wanted < run.first_unit; });
  if (after == runs_.runs.begin()) return std::nullopt;
  const KnownRun& run = *std::prev(after);
  if (unit - run.first_unit >= run.units) return std::nullopt;
  const auto number = static_cast<std::size_t>(after - runs_.runs.begin() - 1);
  return Place{&runs_.files[run.file], run.offset + (begin - begins_[number])};
}

}  // namespace sluice
