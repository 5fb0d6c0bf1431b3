// SPDX-License-Identifier: MIT
// The explanation for the user when GPUs cannot be matched.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kfd/matching/matching.h"

namespace sluice::kfd {
namespace {

std::string describe(const std::vector<Mismatch>& mismatches) {
  if (mismatches.empty()) return "fits by itself";
  std::string text;
  for (const Mismatch& mismatch : mismatches) {
    text += text.empty() ? "" : "; ";
    text += mismatch.property + " " + mismatch.source + " in the image, " + mismatch.local + " here";
    if (mismatch.variable != nullptr) text += std::string(" (") + mismatch.variable + "=0 allows this)";
  }
  return text;
}

}  // namespace

std::vector<SharedReason> Refusal::reasons() const {
  std::vector<SharedReason> all;
  for (auto first = pairs.begin(); first != pairs.end();) {
    const std::uint32_t source = first->pair.user_gpu_id;
    const auto last = std::find_if(
        first, pairs.end(), [source](const PairReport& report) { return report.pair.user_gpu_id != source; });
    std::vector<SharedReason> of_source;
    for (; first != last; ++first) {
      const auto known = std::find_if(of_source.begin(), of_source.end(), [&](const SharedReason& reason) {
        return reason.mismatches == first->mismatches;
      });
      if (known == of_source.end()) {
        of_source.push_back({{source}, {first->pair.actual_gpu_id}, first->mismatches});
      } else {
        known->locals.push_back(first->pair.actual_gpu_id);
      }
    }
    for (SharedReason& reason : of_source) {
      const auto known = std::find_if(all.begin(), all.end(), [&](const SharedReason& other) {
        return other.locals == reason.locals && other.mismatches == reason.mismatches;
      });
      if (known == all.end()) {
        all.push_back(std::move(reason));
      } else {
        known->sources.push_back(source);
      }
    }
  }
  return all;
}

std::string Refusal::text() const {
  const auto names = [](const std::vector<std::uint32_t>& gpu_ids) {
    std::string list;
    for (const std::uint32_t gpu_id : gpu_ids) list += (list.empty() ? "" : ", ") + gpu_id_text(gpu_id);
    return list;
  };
  std::string text = sentence;
  for (const SharedReason& reason : reasons()) {
    text += "\n  GPU " + names(reason.sources) + " on local GPU " + names(reason.locals) + ": " +
            describe(reason.mismatches);
  }
  return text;
}

}  // namespace sluice::kfd
