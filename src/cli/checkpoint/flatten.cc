// SPDX-License-Identifier: MIT
// sluice flatten DIR: makes a checkpoint with a parent complete by itself. flatten/flatten.h does the work;
// this prints.
#include "flatten/flatten.h"

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "cli/checkpoint/image_directory.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "pipeline/lane_thread.h"
#include "settings/config.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct FlattenArguments {
  std::string images;
  bool json = false;
};

NoImages failed(const Error& error) {
  NoImages why = no_images(error);
  if (error.err == ENOSPC || error.err == EDQUOT) {
    why.remedy = "the checkpoint is as it was: free space there and run this again, it goes on";
  } else if (error.err == EFBIG && !has_id(error.what)) {  // of a write; what an image is has an id
    why.remedy = "the checkpoint is as it was: raise the limit of file sizes (ulimit -f) and run this again";
    why.cause = Cause::Unreadable;
  } else if (error.err == EBUSY) {
    why.remedy = "wait for its end";
  }
  return why;
}

void tell(const FlattenTotals& totals, double seconds) {
  if (totals.files == 0) {
    (void)std::fputs(totals.renamed ? "flat: it had all contents, and its images got their usual names\n"
                                    : "flat: it was complete by itself, nothing was to be done\n",
                     stdout);
    return;
  }
  std::array<char, 64> time{};
  (void)std::snprintf(time.data(), time.size(), " in %.2f s\n", seconds);
  const std::string text = "flat: " + bytes_text(totals.bytes) + " in " + count_text(totals.files, "file") +
                           ", " + bytes_text(totals.written_bytes) + " written, " +
                           bytes_text(totals.cloned_bytes) + " shared with older checkpoints" + time.data() +
                           "No GPU memory of it is in its parent any more.\n";
  (void)std::fputs(text.c_str(), stdout);
}

ExitCode flatten(const FlattenArguments& arguments) {
  const settings::Config config = read_settings("flatten");
  const auto opened = open_images(arguments.images, config, !arguments.json);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("flatten", arguments.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);
  if (directory.checkpoint.is_predump()) return refuse("flatten", arguments.json, only_a_predump(directory));
  if (!directory.source->directory()) {
    return refuse("flatten", arguments.json,
                  {ExitCode::Refused, directory.path + " is an archive, not a directory [SL-T55]",
                   "unpack it first", std::nullopt});
  }
  const settings::Config standard;  // as much memory as for a restore
  const auto began = Clock::now();
  const auto seconds = [began] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  ProgressLine progress(!arguments.json);
  FlattenTotals totals;
  auto thread = LaneThread::start("sluice-flatten", [&]() -> Result<void> {
    const FlattenOptions options{
        .chunk_bytes = standard.chunk_bytes,
        .staging_bytes = standard.staging_bytes,
        .progress = [&](std::uint64_t done, std::uint64_t total) { progress.draw(done, total, seconds()); }};
    SLUICE_TRY_ASSIGN(totals, sluice::flatten(*directory.source, directory.checkpoint, options));
    return {};
  });
  const Result<void> done = thread ? thread->join() : Result<void>(thread.error());
  progress.clear();
  if (!done) return refuse("flatten", arguments.json, failed(done.error()));
  if (!arguments.json) {
    tell(totals, seconds());
    return ExitCode::Done;
  }
  print_json({{"command", "flatten"},
              {"images", directory.path},
              {"result", "flat"},
              {"files", totals.files},
              {"bytes", totals.bytes},
              {"written_bytes", totals.written_bytes},
              {"shared_bytes", totals.cloned_bytes},
              {"seconds", seconds()}});
  return ExitCode::Done;
}

}  // namespace

void add_flatten(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<FlattenArguments>();
  CLI::App* command = app.add_subcommand("flatten", "Make a checkpoint with a parent complete by itself");
  add_images_argument(*command, "DIR", arguments->images, "the image directory of a dump (criu dump -D)");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Brings what older checkpoints have into this one, after comparing all of it with\n"
      "its checksums. Shares extents with them where the file system can. It stays the\n"
      "same dump, and what is built on it stays whole. Nothing is lost when it is\n"
      "killed, or the power fails: run again it goes on. Do not restore or dump from\n"
      "the directory meanwhile. CRIU's own images are left as they are: after a dump\n"
      "with --track-mem they need the parent's.\n\n"
      "Example: sluice flatten /var/lib/checkpoints/job/7\n\n"
      "Exit status: 0 it is complete by itself, 1 something is damaged, missing or\n"
      "cannot be written, and the checkpoint is as it was, 2 wrong usage, 3 an archive,\n"
      "or no images of the plugin.");
  command->callback([arguments, &run] { run = [arguments] { return flatten(*arguments); }; });
}

}  // namespace sluice::cli
