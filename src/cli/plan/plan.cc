// SPDX-License-Identifier: MIT
#include "cli/plan/plan.h"

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"
#include "base/image_file.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/refusal.h"
#include "cli/text.h"
#include "settings/config.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGb = 1e9;
constexpr std::uint64_t kLongestText = kMiB;

// One object of the text, whose fields are taken by name; any that are left are a mistake. `place`: where it
// is, "gpus[0]"; empty: the whole text.
class Fields {
 public:
  static Result<Fields> of(const Json& value, std::string place) {
    if (!value.is_object()) return wrong(place.empty() ? "this" : place, "should be an object: {...}");
    return Fields(value, std::move(place));
  }

  // In GB/s in the text, in bytes/s here.
  Result<double> rate(const char* name, std::optional<double> otherwise = std::nullopt) {
    constexpr double kLeast = 0.001;
    constexpr double kMost = 1e6;
    SLUICE_TRY_ASSIGN(const double gbps, number(name, kLeast, kMost, "GB/s", otherwise));
    return gbps * kGb;
  }
  Result<double> share(const char* name, double otherwise) {
    return number(name, 0, 1, "of a whole", otherwise);
  }
  Result<std::uint64_t> count(const char* name, std::uint64_t most, std::optional<double> otherwise) {
    SLUICE_TRY_ASSIGN(const double value, number(name, 1, static_cast<double>(most), "pieces", otherwise));
    if (value != std::floor(value)) return wrong(place_of(name), "should be a whole number");
    return static_cast<std::uint64_t>(value);
  }
  // A number, or a size as in the settings: "192G".
  Result<std::uint64_t> bytes(const char* name) {
    const Json* const value = take(name);
    std::optional<std::uint64_t> size;
    if (value != nullptr && value->is_string()) size = settings::parse_bytes(value->get<std::string>());
    if (value != nullptr && value->is_number_unsigned()) size = value->get<std::uint64_t>();
    if (!size || *size == 0 || *size > Machine::kMostBytes)
      return wrong(place_of(name),
                   "should be a size like \"192G\", at most " + bytes_text(Machine::kMostBytes));
    return *size;
  }
  // Its elements are the caller's; they live as long as the text.
  Result<const Json*> list(const char* name) {
    const Json* const value = take(name);
    if (value == nullptr || !value->is_array() || value->empty())
      return wrong(place_of(name), "should be a list with an element or more: [...]");
    return value;
  }

  Result<void> end() const {
    for (const auto& [name, value] : value_->items()) {
      if (std::find(taken_.begin(), taken_.end(), name) == taken_.end())
        return wrong(place_of(name), "is not a known name");
    }
    return {};
  }

 private:
  Fields(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  static Error wrong(const std::string& place, const std::string& what) {
    return Error{EINVAL, formatted("{} {}; see docs/measurements/planning.md [SL-T36]", place, what)};
  }
  std::string place_of(const std::string& name) const {
    return (place_.empty() ? "" : place_ + ", ") + '"' + printable(name) + '"';
  }
  const Json* take(const char* name) {
    taken_.emplace_back(name);
    const auto found = value_->find(name);
    return found == value_->end() ? nullptr : &*found;
  }
  Result<double> number(const char* name, double least, double most, const char* unit,
                        std::optional<double> otherwise) {
    const Json* const value = take(name);
    if (value == nullptr && otherwise) return *otherwise;
    const double number = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
    if (number >= least && number <= most) return number;
    std::array<char, 96> text{};
    (void)std::snprintf(text.data(), text.size(), "should be a number from %g to %g: %s", least, most, unit);
    return wrong(place_of(name), text.data());
  }

  const Json* value_;
  std::string place_;
  std::vector<std::string> taken_;
};

Result<GpuGroup> gpus_of(const Json& value, const std::string& place) {
  SLUICE_TRY_ASSIGN(Fields fields, Fields::of(value, place));
  GpuGroup group;
  SLUICE_TRY_ASSIGN(group.count, fields.count("count", Machine::kMostGpus, 1));
  SLUICE_TRY_ASSIGN(group.bytes, fields.bytes("bytes"));
  SLUICE_TRY_ASSIGN(group.zero, fields.share("zero", 0));
  SLUICE_TRY_ASSIGN(group.changed, fields.share("changed", 1));
  SLUICE_TRY_ASSIGN(group.alike, fields.share("alike", 0));
  SLUICE_TRY_ASSIGN(group.copy_rate, fields.rate("copy"));
  SLUICE_TRY_ASSIGN(group.link_rate, fields.rate("link", 0));
  SLUICE_TRY_ASSIGN(group.per_link, fields.count("gpus_per_link", Machine::kMostGpus, 1));
  SLUICE_TRY(fields.end());
  return group;
}

Result<DiskGroup> disks_of(const Json& value, const std::string& place) {
  constexpr std::uint64_t kMostDisks = 4096;
  SLUICE_TRY_ASSIGN(Fields fields, Fields::of(value, place));
  DiskGroup group;
  SLUICE_TRY_ASSIGN(group.count, fields.count("count", kMostDisks, 1));
  SLUICE_TRY_ASSIGN(group.write_rate, fields.rate("write"));
  SLUICE_TRY_ASSIGN(group.read_rate, fields.rate("read"));
  SLUICE_TRY(fields.end());
  return group;
}

template <class Group>
Result<std::vector<Group>> groups_of(Fields& machine, const char* name,
                                     Result<Group> (*group_of)(const Json&, const std::string&)) {
  SLUICE_TRY_ASSIGN(const Json* const list, machine.list(name));
  std::vector<Group> groups;
  for (const Json& value : *list) {
    const std::string place = std::string(name) + "[" + std::to_string(groups.size()) + "]";
    SLUICE_TRY_ASSIGN(Group group, group_of(value, place));
    groups.push_back(group);
  }
  return groups;
}

// One direction's forecast, and what the other parts could do.
struct Answer {
  std::string name;
  Forecast forecast;
  Forecast without_slowest;
};

Answer answer(const char* name, const Machine& machine, Direction direction, const settings::Config& config) {
  Answer result{name, forecast(machine, direction, config.chunk_bytes), {}};
  result.without_slowest = forecast(machine, direction, config.chunk_bytes, result.forecast.slowest);
  return result;
}

constexpr const char* kWithParent = "dump with a parent";

std::vector<Answer> answers_for(const Machine& machine, const settings::Config& config) {
  std::vector<Answer> answers = {answer("dump", machine.without_parent(), Direction::Dump, config)};
  if (machine.has_parent()) answers.push_back(answer(kWithParent, machine, Direction::Dump, config));
  answers.push_back(answer("restore", machine, Direction::Restore, config));
  return answers;
}

std::string text_of(const Machine& machine, const std::vector<Answer>& answers, std::uint64_t pinned) {
  std::uint64_t disks = 0;
  for (const DiskGroup& group : machine.disks) disks += group.count;
  const std::uint64_t bytes = machine.bytes();
  std::string text = count_text(machine.gpu_count(), "GPU") + " with " + bytes_text(bytes) + ", " +
                     share_text(bytes - machine.nonzero_bytes(), bytes) + " of it zero; " +
                     count_text(disks, "disk") + ", " + count_text(machine.cpus, "CPU") + "\n\n";
  std::vector<std::string> headings = {"", ">time", ">rate", "slowest"};
  for (const Part part : kParts) headings.push_back(std::string(">") + name_of(part));
  headings.insert(headings.end(), {">else", "then slowest"});
  Table table(std::move(headings));
  for (const Answer& each : answers) {
    std::vector<std::string> cells = {each.name, duration_text(each.forecast.seconds),
                                      rate_text(bytes, each.forecast.seconds),
                                      name_of(each.forecast.slowest)};
    for (const double busy : each.forecast.busy)
      cells.push_back(share_text(static_cast<std::uint64_t>(std::lround(busy * 1000)), 1000));
    cells.push_back(duration_text(each.without_slowest.seconds));
    cells.emplace_back(name_of(each.without_slowest.slowest));
    table.add(std::move(cells));
  }
  std::string needs = "\nneeds " + bytes_text(machine.nonzero_bytes()) + " on the disks, ";
  if (machine.has_parent())
    needs += bytes_text(machine.changed_bytes()) + " more for each dump with a parent, ";
  return text + table.text() + needs + bytes_text(pinned) + " of pinned staging memory\n" +
         "not included: CRIU's work for the processes themselves, and the driver's work to stop and start "
         "queues\n";
}

Json json_of(const Machine& machine, const Answer& each) {
  Json busy = Json::object();
  for (const Part part : kParts) busy[name_of(part)] = each.forecast.busy[static_cast<std::size_t>(part)];
  return {{"seconds", each.forecast.seconds},
          {"bytes_per_second", static_cast<double>(machine.bytes()) / each.forecast.seconds},
          {"slowest", name_of(each.forecast.slowest)},
          {"busy", std::move(busy)},
          {"seconds_without_slowest", each.without_slowest.seconds},
          {"then_slowest", name_of(each.without_slowest.slowest)}};
}

}  // namespace

Result<Machine> parse_machine(std::string_view text) {
  const Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded())
    return Error{EINVAL, "the text is not JSON; see docs/measurements/planning.md [SL-T37]"};
  SLUICE_TRY_ASSIGN(Fields fields, Fields::of(value, ""));
  Machine machine;
  SLUICE_TRY_ASSIGN(machine.gpus, groups_of(fields, "gpus", gpus_of));
  SLUICE_TRY_ASSIGN(machine.disks, groups_of(fields, "disks", disks_of));
  constexpr std::uint64_t kMostCpus = 65536;
  SLUICE_TRY_ASSIGN(machine.cpus, fields.count("cpus", kMostCpus, std::nullopt));
  SLUICE_TRY_ASSIGN(machine.checksum_rate, fields.rate("checksum"));
  SLUICE_TRY(fields.end());
  if (machine.gpu_count() > Machine::kMostGpus)
    return Error{EINVAL, formatted("\"gpus\" are more than {}; describe fewer [SL-T38]", Machine::kMostGpus)};
  return machine;
}

Result<Machine> read_machine(const std::string& path) {
  const auto read = [&path]() -> Result<std::vector<std::uint8_t>> {
    SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(AT_FDCWD, path));
    return read_whole(file, kLongestText, path);
  };
  const auto bytes = read();
  if (!bytes) return with_remedy(bytes.error(), " [SL-T39]");
  auto machine = parse_machine({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!machine) return Error{machine.error().err, path + ": " + machine.error().what};
  return machine;
}

ExitCode refuse_machine(const char* command, bool json, const Error& error) {
  return refuse(command, json, ExitCode::Failed, error.what,
                "name a readable file in the form of docs/measurements/planning.md");
}

namespace {

struct PlanArguments {
  std::string file;
  bool json = false;
};

ExitCode plan(const PlanArguments& arguments) {
  const settings::Config config = read_settings("plan");
  const auto machine = read_machine(arguments.file);
  if (!machine) return refuse_machine("plan", arguments.json, machine.error());
  const std::vector<Answer> answers = answers_for(*machine, config);
  const std::uint64_t pinned = staging_bytes_of(config, machine->gpu_count());
  if (arguments.json) {
    Json object = {{"command", "plan"},
                   {"result", "done"},
                   {"gpus", machine->gpu_count()},
                   {"gpu_bytes", machine->bytes()},
                   {"image_bytes", machine->nonzero_bytes()},
                   {"pinned_bytes", pinned}};
    if (machine->has_parent()) object["changed_bytes"] = machine->changed_bytes();
    for (const Answer& each : answers)
      object[each.name == kWithParent ? "dump_with_parent" : each.name] = json_of(*machine, each);
    print_json(object);
  } else {
    (void)std::fputs(text_of(*machine, answers, pinned).c_str(), stdout);
  }
  return ExitCode::Done;
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("plan", "How long dump and restore take on a machine that FILE describes");
  command->add_option("FILE", arguments->file, "the machine; docs/measurements/planning.md has the format")
      ->required()
      ->type_name("");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Computes, and measures nothing. FILE describes the machine by the rates of its\n"
      "GPUs, links, CPUs and disks. The answer says which of them sets the pace.\n\n"
      "Example: sluice plan node.json\n\n"
      "Exit status: 0 done, 1 FILE cannot be read or does not describe a machine,\n"
      "2 wrong usage.");
  command->callback([arguments, &run] { run = [arguments] { return plan(*arguments); }; });
}

}  // namespace sluice::cli
