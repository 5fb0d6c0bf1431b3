// SPDX-License-Identifier: MIT
// sluice diff A B: what changed between two checkpoints of the same processes. verify/compare.h compares;
// this prints.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/checkpoint/image_directory.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "verify/compare.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DiffArguments {
  std::string older;
  std::string newer;
  bool bos = false;
  bool json = false;
};

Json json_of(const Difference& bytes) {
  return {{"bytes", bytes.bytes()}, {"equal", bytes.equal}, {"changed", bytes.changed}, {"zero", bytes.zero}};
}

void print_as_json(const DiffArguments& arguments, const std::vector<SetDifference>& differences,
                   const Difference& total) {
  Json sets = Json::array();
  for (const SetDifference& set : differences) {
    Json bos = Json::array();
    for (const BoDifference& bo : set.bos) {
      Json object = {{"bo", bo.bo.number}, {"address", bo.bo.va}, {"new", bo.is_new}};
      object.update(json_of(bo.bytes));
      bos.push_back(std::move(object));
    }
    Json object = {{"pid", set.pid},
                   {"of", set.owner},
                   {"by_sums", set.by_sums},
                   {"sums_differ", set.sums_differ},
                   {"gone_bytes", set.gone_bytes}};
    object.update(json_of(set.total()));
    object["bos"] = std::move(bos);
    sets.push_back(std::move(object));
  }
  Json object = {{"command", "diff"},
                 {"older", arguments.older},
                 {"newer", arguments.newer},
                 {"result", total.changed == 0 ? "equal" : "changed"}};
  object.update(json_of(total));
  object["sets"] = std::move(sets);
  print_json(object);
}

void print_as_text(const DiffArguments& arguments, const std::vector<SetDifference>& differences,
                   const Difference& total) {
  Table table({">process", "of", ">bytes", ">equal", ">changed", ">zero", ">gone", "by"});
  Table bos({">process", "of", ">BO", "address", ">bytes", ">equal", ">changed", ">zero", ""});
  for (const SetDifference& set : differences) {
    const Difference sum = set.total();
    table.add({std::to_string(set.pid), set.owner, bytes_text(sum.bytes()), bytes_text(sum.equal),
               bytes_text(sum.changed), bytes_text(sum.zero),
               set.gone_bytes > 0 ? bytes_text(set.gone_bytes) : "",
               set.bos.empty() ? ""
               : set.by_sums   ? "sums"
                               : "contents"});
    for (const BoDifference& bo : set.bos) {
      bos.add({std::to_string(set.pid), set.owner, std::to_string(bo.bo.number), hex(bo.bo.va),
               std::to_string(bo.bytes.bytes()), std::to_string(bo.bytes.equal),
               std::to_string(bo.bytes.changed), std::to_string(bo.bytes.zero), bo.is_new ? "new" : ""});
    }
  }
  std::string text = table.text("");
  if (arguments.bos) text += "\nBOs\n" + bos.text();
  const std::uint64_t full = total.equal + total.changed;
  if (std::any_of(differences.begin(), differences.end(),
                  [](const SetDifference& set) { return set.sums_differ; }))
    text +=
        "\nContents were read where checksums cannot be compared. Dumps that are not of one chain have\n"
        "different secrets, and those of sluice 0.2 have none.\n";
  text += "\nA dump of what changed would write " + bytes_text(total.changed) + " instead of " +
          bytes_text(full) + (full > 0 ? ": it saves " + share_text(total.equal, full) : "") + '\n';
  (void)std::fputs(text.c_str(), stdout);
}

ExitCode diff(const DiffArguments& arguments) {
  const settings::Config config = read_settings("diff");
  const auto older = open_images(arguments.older, config, !arguments.json);
  if (const auto* none = std::get_if<NoImages>(&older)) return refuse("diff", arguments.json, *none);
  const auto newer = open_images(arguments.newer, config, !arguments.json);
  if (const auto* none = std::get_if<NoImages>(&newer)) return refuse("diff", arguments.json, *none);
  const auto& a = std::get<ImageDirectory>(older);
  const auto& b = std::get<ImageDirectory>(newer);
  for (const ImageDirectory* directory : {&a, &b}) {
    if (directory->checkpoint.faults().empty()) continue;
    NoImages why = no_images(explain(directory->path, directory->checkpoint.faults().front()));
    if (why.cause == Cause::Damaged || why.cause == Cause::Missing)
      why.remedy = "sluice verify tells what else is damaged or missing there";
    return refuse("diff", arguments.json, why);
  }
  const auto differences = compare({a.source.get(), &a.checkpoint}, {b.source.get(), &b.checkpoint});
  if (!differences) {
    NoImages why = no_images(differences.error());
    if (why.cause == Cause::Damaged) why.remedy = "sluice verify tells what is damaged";
    return refuse("diff", arguments.json, why);
  }
  Difference total;
  for (const SetDifference& set : *differences) total += set.total();
  if (arguments.json) {
    print_as_json(arguments, *differences, total);
  } else {
    print_as_text(arguments, *differences, total);
  }
  return ExitCode::Done;
}

}  // namespace

void add_diff(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = app.add_subcommand("diff", "What changed between two checkpoints, by GPU and BO");
  add_images_argument(*command, "A", arguments->older,
                      "the image directory of the older dump, or an archive");
  add_images_argument(*command, "B", arguments->newer, "that of the newer one");
  command->add_flag("--bos", arguments->bos, "list every BO");
  add_json_flag(*command, arguments->json);
  command->footer(
      "From the checksums alone, of 64 KiB of a BO each, if both are of one chain of\n"
      "dumps, or have the same key. Otherwise the secrets of the checksums differ, and\n"
      "it reads and compares contents in blocks of 1 MiB. Zeros are counted apart,\n"
      "because a dump does not write them.\n\n"
      "Example: sluice diff /var/lib/checkpoints/monday /var/lib/checkpoints/tuesday\n\n"
      "Exit status: 0 compared, whether equal or not, 1 one is damaged or unreadable,\n"
      "2 wrong usage, 3 one has no images.");
  command->callback([arguments, &run] { run = [arguments] { return diff(*arguments); }; });
}

}  // namespace sluice::cli
