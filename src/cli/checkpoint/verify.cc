// SPDX-License-Identifier: MIT
// sluice verify IMAGES: reads all contents of a checkpoint and compares them with their sums. verify/verify.h
// does that; this prints.
#include "verify/verify.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "base/format.h"
#include "base/printable.h"
#include "cli/checkpoint/image_directory.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "images/files/key.h"
#include "settings/config.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostLines = 100;  // lines of text: one damaged disk can cause millions of problems

struct VerifyArguments {
  std::string images;
  bool json = false;
};

// The results.
struct VerifyResults {
  std::vector<VerifyProblem> problems;  // except those beyond the limit
  VerifyTotals totals;
  double seconds = 0;
  bool of_archive = false;
  bool keyed = false;
  bool of_predump = false;

  bool damaged() const {
    return totals.problems > totals.missing + totals.unread + totals.unsupported + totals.unsigned_images;
  }
  // Nothing shows whether it is whole.
  bool unverifiable() const { return totals.unverified_bytes > 0 || totals.unsigned_images > 0; }
  ExitCode exit_code() const {
    if (totals.problems > totals.unsigned_images) return ExitCode::Failed;
    return unverifiable() ? ExitCode::Refused : ExitCode::Done;
  }
};

const char* word_of(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::BadBlock:
      return "bad-block";
    case ProblemKind::BadFile:
      return "bad-file";
    case ProblemKind::BadSums:
      return "bad-sums";
    case ProblemKind::Missing:
      return "missing";
    case ProblemKind::NotAllowed:
      return "not-allowed";
    case ProblemKind::Unsupported:
      return "unsupported";
    case ProblemKind::Unsigned:
      return "unsigned";
    case ProblemKind::Unreadable:
      break;
  }
  return "unreadable";
}

// `blocks`: how many bad ones it stands for.
std::string text_of(const VerifyProblem& problem, std::uint64_t blocks = 1) {
  std::string with_id = has_id(problem.what) ? problem.what : problem.what + " [SL-T62]";
  if (problem.length == 0) return with_id;
  const std::string place = problem.owner + " " + problem.place.describe();
  if (problem.kind == ProblemKind::BadBlock)
    return formatted("{}: {} [{}, {}): {} [SL-T48]",
                     blocks == 1 ? "bad block" : std::to_string(blocks) + " bad blocks", problem.file,
                     problem.file_offset, problem.file_offset + problem.length, place);
  std::string text = with_id;
  return text.insert(id_begin(text), ": " + place);
}

// A long line is broken after the file and its range, and if that is not enough before "and 2 more BOs".
std::string in_lines(std::string line) {
  const std::size_t range = line.find("): ");
  if (line.size() <= kColumns || range == std::string::npos) return line;
  line.replace(range + 2, 1, "\n    ");
  const std::size_t rest = range + 3, more = line.find(" and ", rest);
  if (line.size() - rest > kColumns && more != std::string::npos) line.replace(more, 1, "\n    ");
  return line;
}

Json json_of(const VerifyProblem& problem) {
  const PagesPlace& place = problem.place;
  return {{"kind", word_of(problem.kind)},
          {"file", problem.file},
          {"file_offset", problem.file_offset},
          {"length", problem.length},
          {"of", problem.owner},
          {"bo", place.bo ? Json(place.bo->number) : Json()},
          {"bo_address", place.bo ? Json(place.bo->va) : Json()},
          {"bo_offset", place.bo ? Json(place.bo_offset) : Json()},
          {"more_bos", place.more_bos},
          {"message", text_of(problem)}};
}

// Whether `next` is the bad block after those of `problem`, in the same BO.
bool continues(const VerifyProblem& problem, const VerifyProblem& next) {
  if (problem.kind != ProblemKind::BadBlock || next.kind != ProblemKind::BadBlock) return false;
  const auto& [bo, other] = std::tie(problem.place.bo, next.place.bo);
  return problem.file == next.file && problem.file_offset + problem.length == next.file_offset &&
         bo.has_value() == other.has_value() && (!bo || bo->number == other->number);
}

// Prints problems as they come, up to a limit; bad blocks in a row are one line.
class ProblemLines {
 public:
  void add(const std::vector<VerifyProblem>& problems) {
    for (auto at = problems.begin(); at != problems.end();) {
      VerifyProblem all = *at;
      std::uint64_t blocks = 1;
      for (++at; at != problems.end() && continues(all, *at); ++at, ++blocks) all.length += at->length;
      if (++lines_ > kMostLines) continue;
      printed_ += blocks;
      (void)std::fprintf(stdout, "%s\n", in_lines(printable(text_of(all, blocks))).c_str());
    }
    (void)std::fflush(stdout);
  }
  // `all`: their total.
  void end(std::uint64_t all) const {
    if (all > printed_)
      (void)std::fprintf(stdout, "... and %" PRIu64 " more: --json lists up to %zu\n", all - printed_,
                         kMostProblems);
  }

 private:
  std::size_t lines_ = 0;
  std::uint64_t printed_ = 0;  // problems
};

// The remedy for the first problem that is no damage.
std::string remedy_of(const VerifyResults& found) {
  const auto first =
      std::find_if(found.problems.begin(), found.problems.end(), [](const VerifyProblem& each) {
        return each.kind == ProblemKind::NotAllowed || each.kind == ProblemKind::Unreadable ||
               each.kind == ProblemKind::Unsupported;
      });
  return first == found.problems.end() ? "" : sluice::remedy_of(first->err);
}

std::string read_text(const VerifyResults& found) {
  const VerifyTotals& totals = found.totals;
  if (totals.files == 0 && totals.problems > 0) return "";  // nothing was read
  std::string text = bytes_text(totals.bytes) + " in " + count_text(totals.files, "file");
  if (totals.hole_bytes > 0) text += ", " + bytes_text(totals.hole_bytes) + " of it holes";
  std::array<char, 64> time{};
  (void)std::snprintf(time.data(), time.size(), ", read in %.2f s", found.seconds);
  text += time.data();
  text += ", " + rate_text(totals.bytes - totals.hole_bytes, found.seconds);
  if (!totals.direct)
    text += found.of_archive ? ", through the page cache" : ", partly through the page cache";
  return text + '\n';
}

// The worst that was found. Contents that could not be read may be intact.
struct Verdict {
  const char* result = "";  // in the JSON
  std::string words;
  std::string remedy;  // empty: nothing to do
};

std::string unread_text(const VerifyTotals& totals) {
  return count_text(totals.unread, "file or range", "files or ranges") + " could not be read";
}

Verdict verdict_on(const VerifyResults& found) {
  const VerifyTotals& totals = found.totals;
  const std::string consequence =
      found.of_predump ? "no dump can be built on it" : "a restore from here is refused";
  const std::string other = found.of_predump ? "make another one" : "use another checkpoint";
  if (found.damaged()) {
    std::string words =
        "DAMAGED: " + count_text(totals.bad_blocks, "bad block") + " of " + std::to_string(totals.blocks);
    if (totals.problems > totals.bad_blocks)
      words += ", " + count_text(totals.problems - totals.bad_blocks, "other fault");
    return {"damaged", words + "; " + consequence + (found.of_predump ? "" : " or wrong"), other};
  }
  if (totals.missing > 0)
    return {"incomplete",
            "INCOMPLETE: " + count_text(totals.missing, "file") + (totals.missing == 1 ? " is" : " are") +
                " missing" + (totals.unread > 0 ? ", " + unread_text(totals) : "") + "; " + consequence,
            "copy what is missing to its place or " + other};
  if (totals.unread > 0)
    return {"unreadable", "UNREADABLE: " + unread_text(totals) + ", so their contents are unknown",
            remedy_of(found)};
  if (totals.unsupported > 0)
    return {"unsupported",
            "UNSUPPORTED: " + count_text(totals.unsupported, "image") +
                (totals.unsupported == 1 ? " is" : " are") + " of a form that this plugin does not restore",
            remedy_of(found)};
  if (totals.unsigned_images > 0)
    return {"unverifiable",
            "NOT VERIFIED: " + count_text(totals.unsigned_images, "image") +
                (totals.unsigned_images == 1 ? " was" : " were") +
                " made without the key of SLUICE_KEY_FILE, so nothing shows who made them",
            "set SLUICE_KEY_FILE=none to compare them with their own checksums"};
  if (totals.unverified_bytes > 0)
    return {
        "unverifiable",
        "NOT VERIFIED: " + bytes_text(totals.unverified_bytes) +
            " have no checksums (amdgpu-sums-*.img) to compare with; every file has its size and could be "
            "read",
        ""};
  return {"verified",
          "verified: all " + std::to_string(totals.blocks) + " blocks are as they were written" +
              (found.keyed ? ", with the key" : ""),
          ""};
}

void tell(const VerifyResults& found) {
  const Verdict verdict = verdict_on(found);
  std::string text = read_text(found);
  if (found.of_predump) text += "a pre-dump: a dump can be built on it, and nothing is restored from it\n";
  text += verdict.words + '\n';
  if (!verdict.remedy.empty()) text += "  " + verdict.remedy + '\n';
  (void)std::fputs(text.c_str(), stdout);
}

void print_as_json(const std::string& images, const VerifyResults& found) {
  const Verdict verdict = verdict_on(found);
  Json problems = Json::array();
  for (const VerifyProblem& problem : found.problems) problems.push_back(json_of(problem));
  print_json({{"command", "verify"},
              {"images", images},
              {"result", verdict.result},
              {"message", verdict.words},
              {"remedy", verdict.remedy},
              {"keyed", found.keyed},
              {"predump", found.of_predump},
              {"files", found.totals.files},
              {"bytes", found.totals.bytes},
              {"hole_bytes", found.totals.hole_bytes},
              {"unverified_bytes", found.totals.unverified_bytes},
              {"blocks", found.totals.blocks},
              {"bad_blocks", found.totals.bad_blocks},
              {"seconds", found.seconds},
              {"direct_io", found.totals.direct},
              {"problems", std::move(problems)},
              {"problems_not_listed", found.totals.problems - found.problems.size()}});
}

ExitCode verify(const VerifyArguments& arguments) {
  const settings::Config config = read_settings("verify");
  const auto opened = open_images(arguments.images, config, !arguments.json);
  if (const auto* none = std::get_if<NoImages>(&opened)) return refuse("verify", arguments.json, *none);
  const auto& directory = std::get<ImageDirectory>(opened);

  VerifyResults found;
  found.of_predump = directory.checkpoint.is_predump();
  ProblemLines lines;
  const auto take = [&](std::vector<VerifyProblem> problems) {
    if (!arguments.json) lines.add(problems);
    std::move(problems.begin(), problems.end(), std::back_inserter(found.problems));
  };
  std::vector<VerifyProblem> of_metadata;
  VerifyTotals totals_of_metadata;
  for (const Error& error : directory.checkpoint.faults()) {
    of_metadata.push_back(
        {.kind = problem_kind(error.err, ProblemKind::BadFile), .what = error.what, .err = error.err});
    totals_of_metadata.add(of_metadata.back().kind);
  }
  take(std::move(of_metadata));

  const settings::Config standard;  // as much memory as for a restore
  const auto began = Clock::now();
  const auto seconds = [began] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  const auto started = Verification::start(*directory.source, directory.checkpoint,
                                           {standard.chunk_bytes, standard.staging_bytes});
  if (!started) return refuse("verify", arguments.json, no_images(started.error()));
  Verification& verification = **started;
  ProgressLine progress(!arguments.json);
  for (bool ended = false; !ended;) {
    progress.draw(verification.bytes_done(), verification.bytes_total(), seconds());
    ended = verification.wait_for(kProgressPeriod);
    std::vector<VerifyProblem> problems = verification.take_problems();
    if (!problems.empty()) progress.clear();
    take(std::move(problems));
  }
  progress.clear();
  found.seconds = seconds();
  found.of_archive = !directory.source->directory();
  found.keyed = directory.source->keys().any();
  found.totals = verification.totals();
  found.totals.problems += totals_of_metadata.problems;
  found.totals.missing += totals_of_metadata.missing;
  found.totals.unsupported += totals_of_metadata.unsupported;
  found.totals.unsigned_images += totals_of_metadata.unsigned_images;
  found.totals.unread += totals_of_metadata.unread;
  for (const std::string& note : verification.take_notes())
    (void)std::fprintf(stderr, "sluice verify: %s\n", note.c_str());
  if (arguments.json) {
    std::sort(found.problems.begin(), found.problems.end(),
              [](const VerifyProblem& a, const VerifyProblem& b) {
                return std::tie(a.file, a.file_offset) < std::tie(b.file, b.file_offset);
              });
    print_as_json(directory.path, found);
  } else {
    lines.end(found.totals.problems);
    tell(found);
  }
  return found.exit_code();
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  const auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command =
      app.add_subcommand("verify", "Read all of a checkpoint and compare it with its checksums");
  add_images_argument(*command, "IMAGES", arguments->images, kImagesHelp);
  add_json_flag(*command, arguments->json);
  command->footer(
      "Reads from the disk, past the page cache where the file system has direct I/O.\n"
      "Names every bad block, with its BO. Needs no GPU. An archive (tar, also with\n"
      "gzip or zstd) is read twice and not unpacked.\n\n"
      "Example: sluice verify /var/lib/checkpoints/job\n"
      "         sluice verify job.tar.zst\n\n"
      "Exit status: 0 every block is as it was written, 1 something is damaged, missing\n"
      "or unreadable (the last line and the JSON's result say which), 2 wrong usage,\n"
      "3 nothing bad was found, but contents have no checksums or images not the key's\n"
      "digests, or there are no images.");
  command->callback([arguments, &run] { run = [arguments] { return verify(*arguments); }; });
}

}  // namespace sluice::cli
