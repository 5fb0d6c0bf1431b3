// SPDX-License-Identifier: MIT
#include "failure_points.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace sluice::plugin_test {

namespace {

// Of a place that a run comes to `turns` times. Loops go over what is alike.
std::set<std::uint32_t> turns_to_try(std::uint32_t turns, Turns wanted) {
  constexpr std::uint32_t kEach = 16;
  std::set<std::uint32_t> tried{1, turns / 2 + 1};
  if (wanted == Turns::FirstAndMiddle) return tried;
  tried.insert(turns);
  for (std::uint32_t turn = 1; turn <= turns; turn = turn < kEach ? turn + 1 : turn * 2) tried.insert(turn);
  return tried;
}

}  // namespace

bool all_are_wanted() {
  const char* const share = std::getenv("SLUICE_FAULT_SHARE");
  return share != nullptr && std::strcmp(share, "all") == 0;
}

bool one_is_wanted() {
  return std::getenv("SLUICE_FAULT_POINT") != nullptr;
}

std::uint64_t wanted_share(std::uint64_t usual) {
  const std::uint64_t share = test::number_from("SLUICE_FAULT_SHARE", usual);
  if (share == 0) throw std::invalid_argument("SLUICE_FAULT_SHARE is 0: nothing would fail");
  return share;
}

std::string Failure::name() const {
  const char* const word = kind == seam::kError   ? "error"
                           : kind == seam::kShort ? "short"
                           : kind == seam::kKill  ? "kill"
                           : kind == seam::kHang  ? "hang"
                                                  : "signal";
  std::ostringstream text;
  text << word << ' ' << std::hex << place << ' ' << std::dec << turn;
  return text.str();
}

std::string LostJob::name() const {
  return std::string(hangs ? "hang " : "fence ") + std::to_string(gpu) + " " + std::to_string(number);
}

FailurePlan::FailurePlan(const std::filesystem::path& file) : plan_(seam::map_plan(file.c_str(), true)) {
  if (plan_ == nullptr) throw std::system_error(errno, std::generic_category(), file.string());
}

FailurePlan::~FailurePlan() {
  (void)::munmap(plan_, sizeof(seam::Plan));
}

void FailurePlan::arm(const Failure& failure) {
  std::memset(static_cast<void*>(plan_), 0, sizeof(seam::Plan));
  plan_->kind = failure.kind;
  plan_->place = failure.place;
  plan_->turn = failure.turn;
}

std::optional<std::chrono::steady_clock::time_point> FailurePlan::signalled() const {
  const std::int64_t ns = plan_->signalled_ns;
  if (ns == 0) return std::nullopt;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

std::string FailurePlan::call() const {
  const auto place = std::find_if(plan_->places.begin(), plan_->places.end(),
                                  [this](const seam::Place& each) { return each.id == plan_->place; });
  return place != plan_->places.end() ? place->call.data() : "";
}

std::uint32_t FailurePlan::turns_at(const std::string& call) const {
  std::uint32_t turns = 0;
  for (const seam::Place& place : plan_->places) {
    if (call == place.call.data()) turns += place.turns - (place.id == plan_->place ? 1U : 0U);
  }
  return turns;
}

std::vector<Failure> FailurePlan::failures(std::uint32_t kinds, Turns turns, std::size_t* places) const {
  if (plan_->full) throw std::length_error("the seam has no room for so many places");
  std::vector<Failure> all;
  for (const seam::Place& place : plan_->places) {
    if (place.id == 0) continue;
    ++*places;
    std::ostringstream way;
    std::uint32_t outermost = 0;
    for (const std::uint32_t frame : place.way) {
      if (frame == 0) break;
      way << std::hex << " 0x" << frame;
      outermost = frame;
    }
    for (const std::uint32_t turn : turns_to_try(place.turns, turns)) {
      for (const seam::Kind kind : {seam::kError, seam::kShort, seam::kKill, seam::kSignal, seam::kHang}) {
        if ((place.kinds & kinds & kind) != 0 && turn <= place.turns)
          all.push_back({kind, place.id, turn, place.call.data(), way.str(), outermost});
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const Failure& a, const Failure& b) { return a.name() < b.name(); });
  return all;
}

}  // namespace sluice::plugin_test
