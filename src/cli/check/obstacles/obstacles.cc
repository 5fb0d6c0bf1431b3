// SPDX-License-Identifier: MIT
#include "cli/check/obstacles/obstacles.h"

#include <algorithm>

#include "base/units.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMostOfAKind = 8;  // reasons that are named; others are added to the last one's count

std::string limit_text(std::uint64_t bytes) {
  return std::to_string((bytes + kMiB - 1) / kMiB) + "M";
}

}  // namespace

void Obstacles::add(const ObstacleKind& kind, const std::string& text, const std::string& group,
                    const std::string& argument) {
  const std::string option = kind.option;
  if (!option.empty() && needed_.insert(option + ' ' + argument).second &&
      option != obstacle::kDeletedFile.option) {
    options_.push_back(option);
    if (!argument.empty()) options_.push_back(argument);
  }
  const auto [place, is_new] = places_.try_emplace({&kind, group}, reasons_.size());
  if (!is_new) {
    ++reasons_[place->second].more;
    return;
  }
  if (++of_a_kind_[&kind] > kMostOfAKind) {
    const auto last = std::find_if(reasons_.rbegin(), reasons_.rend(),
                                   [&kind](const Reason& reason) { return reason.kind == &kind; });
    ++last->more;
    place->second = static_cast<std::size_t>(reasons_.rend() - last) - 1;
    return;
  }
  reasons_.push_back({&kind, text, 0});
}

void Obstacles::add_deleted_file(const std::string& text, std::uint64_t bytes) {
  ghost_limit_ = std::max(ghost_limit_, bytes);
  add(obstacle::kDeletedFile, text);
}

Findings Obstacles::findings() const {
  Findings found;
  for (const Reason& reason : reasons_) {
    std::string text = reason.text + ", " + reason.kind->why;
    if (reason.more > 0) text += "; and " + std::to_string(reason.more) + " more";
    std::string remedy = reason.kind->remedy;
    if (reason.kind->weight == Weight::Option) remedy.insert(0, std::string(reason.kind->option) + ": ");
    found.push_back(
        {reason.kind->weight, reason.kind->subject, std::move(text), std::move(remedy), reason.kind->code});
  }
  return found;
}

std::vector<std::string> Obstacles::options() const {
  std::vector<std::string> all = options_;
  if (ghost_limit_ > 0) {
    all.emplace_back(obstacle::kDeletedFile.option);
    all.push_back(limit_text(ghost_limit_));
  }
  return all;
}

}  // namespace sluice::cli
