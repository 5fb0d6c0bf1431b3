// SPDX-License-Identifier: MIT
#include "plot/saved_trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kLargestTrace = 512 * kMiB;
constexpr std::size_t kMostLanes = 64;
constexpr std::size_t kMostStages = 8;
constexpr std::uint64_t kMostSlots = 65536;  // 64 GiB of staging memory in chunks of 1 MiB
constexpr std::size_t kLongestText = 64;
constexpr double kLongestMicroseconds = 1e15;  // three decades

using nlohmann::json;
using Parsed = json::parse_event_t;

// Member `name` of an event; null: it has none.
const json& member(const json& event, const char* name) {
  static const json none;
  const auto found = event.find(name);
  return found == event.end() ? none : *found;
}

Result<std::uint64_t> count(const json& event, const char* name, std::uint64_t below) {
  const json& value = member(event, name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= below)
    return Error{EINVAL, std::string(name) + " is no number below " + std::to_string(below)};
  return value.get<std::uint64_t>();
}

Result<std::uint64_t> nanoseconds(const json& event, const char* name) {
  const json& value = member(event, name);
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > kLongestMicroseconds)
    return Error{EINVAL, std::string(name) + " is no time in microseconds"};
  return static_cast<std::uint64_t>(std::llround(value.get<double>() * 1e3));
}

Result<std::string> text(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kLongestText)
    return Error{EINVAL,
                 std::string(name) + " is no text of up to " + std::to_string(kLongestText) + " bytes"};
  return value.get<std::string>();
}

Result<std::uint32_t> stage_of(SavedTrace& trace, const std::string& name) {
  const auto found = std::find(trace.stages.begin(), trace.stages.end(), name);
  const auto place = static_cast<std::uint32_t>(found - trace.stages.begin());
  if (found != trace.stages.end()) return place;
  if (place == kMostStages) return Error{EINVAL, "more than " + std::to_string(kMostStages) + " stages"};
  trace.stages.push_back(name);
  return place;
}

// A lane's name comes before its first event.
Result<void> add(SavedTrace& trace, const json& event) {
  SLUICE_TRY_ASSIGN(const std::string phase, text(event, "ph"));
  SLUICE_TRY_ASSIGN(const std::string name, text(event, "name"));
  if (phase == "M" && name == "process_name") {
    SLUICE_TRY_ASSIGN(const std::uint64_t lane, count(event, "pid", kMostLanes));
    if (lane != trace.lanes.size()) return Error{EINVAL, "pid is not the next lane's"};
    SLUICE_TRY_ASSIGN(std::string lane_name, text(member(event, "args"), "name"));
    trace.lanes.push_back({std::move(lane_name), {}});
  } else if (phase == "X") {
    SLUICE_TRY_ASSIGN(const std::uint64_t lane, count(event, "pid", trace.lanes.size()));
    SLUICE_TRY_ASSIGN(const std::uint64_t slot, count(event, "tid", kMostSlots));
    SLUICE_TRY_ASSIGN(const std::uint64_t began_ns, nanoseconds(event, "ts"));
    SLUICE_TRY_ASSIGN(const std::uint64_t lasted_ns, nanoseconds(event, "dur"));
    SLUICE_TRY_ASSIGN(const std::uint64_t chunk, count(member(event, "args"), "chunk", UINT64_MAX));
    SLUICE_TRY_ASSIGN(const std::uint32_t stage, stage_of(trace, name));
    trace.lanes[lane].events.push_back(
        {began_ns, began_ns + lasted_ns, chunk, static_cast<std::uint32_t>(slot), stage});
  }
  return {};
}

// Takes each event as it is parsed, and lets go of it: a trace of eight GPUs has two millions. Of what an
// event has only what is asked for is ever in memory.
class Reader {
 public:
  bool keep(int depth, Parsed what, const json& parsed) {
    const bool is_event =
        depth == 1 && (what == Parsed::object_end || what == Parsed::array_start || what == Parsed::value);
    if (is_event && !error_) take(parsed);
    switch (what) {
      case Parsed::key:
        return std::find(std::begin(kMembers), std::end(kMembers), parsed.get_ref<const std::string&>()) !=
               std::end(kMembers);
      case Parsed::array_start:
        return depth == 0;
      case Parsed::object_start:
        return depth <= 2;
      default:
        return !is_event;
    }
  }

  Result<SavedTrace> done() && {
    if (error_) return *error_;
    return std::move(trace_);
  }

 private:
  static constexpr const char* kMembers[] = {"ph", "name", "pid", "tid", "ts", "dur", "args", "chunk"};

  void take(const json& event) {
    if (const auto added = add(trace_, event); !added)
      error_ = explain("event " + std::to_string(events_), added.error());
    ++events_;
  }

  SavedTrace trace_;
  std::size_t events_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<SavedTrace> read_trace(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error) return make_error(error.value(), file);
  if (bytes > kLargestTrace) return Error{EFBIG, file.string() + " is larger than the 512 MiB that are read"};
  errno = 0;
  std::ifstream in(file);
  if (!in) return make_error(errno != 0 ? errno : EIO, file);
  Reader reader;
  const json rest = json::parse(
      in, [&reader](int depth, Parsed what, const json& parsed) { return reader.keep(depth, what, parsed); },
      false);
  auto trace = std::move(reader).done();
  if (!trace) return explain(file, trace.error());
  if (!rest.is_array()) return Error{EINVAL, file.string() + " is no trace of SLUICE_TRACE's"};
  return trace;
}

}  // namespace sluice::bench
