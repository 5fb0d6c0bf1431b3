// SPDX-License-Identifier: MIT
#include "cli/show/show_statistics.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "base/printable.h"
#include "cli/text.h"
#include "images/files/cause.h"
#include "images/files/files.h"
#include "kfd/topology.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

// Untrusted: a member that is missing, or of another type, is 0 or "".
template <class Value>
Value member(const Json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return {};
  const Json& value = object[name];
  if constexpr (std::is_same_v<Value, std::string>) {
    return value.is_string() ? value.get<std::string>() : "";
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value.is_boolean() && value.get<bool>();
  } else if constexpr (std::is_integral_v<Value>) {
    return value.is_number_unsigned() ? value.get<Value>() : 0;
  } else {
    return value.is_number() ? value.get<Value>() : 0;
  }
}

}  // namespace

std::vector<Statistics> read_statistics(const ImageSource& source, std::vector<Error>& faults) {
  constexpr std::size_t kMostBytes = 64
                                     << 10;  // 64 GPUs need half of it; the parser's time grows quadratically
  constexpr int kDeepest = 8;
  std::vector<Statistics> all;
  auto names = source.names();
  if (!names) {
    faults.push_back(names.error());
    return all;
  }
  keep_stats(*names);
  for (const std::string& name : *names) {
    const auto text = source.read(name, kMostBytes);
    if (!text && cause_of(text.error().err) != Cause::Damaged) {
      faults.push_back(text.error());
      continue;
    }
    Json content;
    if (text) {  // deeper nesting than ours would overflow the stack when printed
      content = Json::parse(
          *text, [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; }, false);
    }
    if (!content.is_object() || !content.contains("gpus") || !content["gpus"].is_array()) {
      faults.push_back({EBADMSG, name + " does not hold statistics of sluice; remove it [SL-T34]"});
      continue;
    }
    all.push_back({name, std::move(content)});
  }
  return all;
}

std::string statistics_text(const std::vector<Statistics>& all) {
  std::string frozen;
  Table table(
      {"run", "GPU", ">BOs", ">bytes", ">holes", ">parent", ">shared", ">s", ">rate", "I/O", "slowest"});
  for (const Statistics& one : all) {
    const std::size_t begin = sizeof("sluice-stats-") - 1;
    const std::string run = one.name.substr(begin, one.name.rfind('.') - begin);  // "dump-1"
    if (const auto seconds = member<double>(one.content, "frozen_seconds"); seconds > 0) {
      std::array<char, 64> text{};
      (void)std::snprintf(text.data(), text.size(), ": the queues were paused for %.3f s\n", seconds);
      frozen += printable(run) + text.data();
    }
    for (const Json& gpu : one.content["gpus"]) {
      const auto bytes = member<std::uint64_t>(gpu, "bytes");
      const auto seconds = member<double>(gpu, "seconds");
      std::array<char, 32> time{};
      (void)std::snprintf(time.data(), time.size(), "%.3f", seconds);
      table.add({run, kfd::gpu_id_text(member<std::uint32_t>(gpu, "gpu_id")),
                 std::to_string(member<std::uint64_t>(gpu, "bos")), bytes_text(bytes),
                 share_text(member<std::uint64_t>(gpu, "zero_bytes"), bytes),
                 share_text(member<std::uint64_t>(gpu, "parent_bytes"), bytes),
                 share_text(member<std::uint64_t>(gpu, "replica_bytes"), bytes), time.data(),
                 rate_text(member<std::uint64_t>(gpu, "io_bytes"), seconds),
                 std::string(member<bool>(gpu, "direct_io") ? "direct" : "buffered") +
                     (member<bool>(gpu, "verified") ? "+verified" : ""),
                 printable(member<std::string>(gpu, "slowest_stage"))});
    }
  }
  return table.empty()
             ? "no statistics beside these images: a dump or restore by CRIU's own plugin leaves none\n"
             : table.text("") + frozen;
}

}  // namespace sluice::cli
