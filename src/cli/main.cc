// SPDX-License-Identifier: MIT
// The `sluice` command: an operator's tool for checkpoints of GPU processes. The plugin does not need it.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace {

using sluice::cli::ExitCode;
using sluice::cli::Run;

// What is wrong with a command line, as a sentence.
std::string fault_text(const CLI::App& app, const CLI::Error& error) {
  if (!app.get_subcommands().empty()) return error.what();
  const std::vector<std::string> words = app.remaining();
  std::string text = words.empty() ? "a command is needed" : words[0] + " is neither a command nor an option";
  const char* before = ": there are ";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += before + command->get_name();
    before = ", ";
  }
  return text;
}

ExitCode run_command(int argc, char** argv) {
  CLI::App app("Checkpoints of AMD GPU processes: the commands around the CRIU plugin", "sluice");
  app.set_version_flag(
      "--version",
      "sluice " SLUICE_VERSION
      "\nchecksums: XXH3-128 with a secret, or with a key HMAC-SHA-256; I/O: io_uring, threads where it is "
      "refused; direct "
      "where possible"
      "\nbuilt with: " SLUICE_LIBRARIES "\nplugin: " SLUICE_PLUGIN_DIRECTORY
      "/amdgpu_plugin.so, or in $CRIU_LIBS_DIR\nsettings: /etc/criu/sluice.conf and the environment");
  app.require_subcommand(1);
  app.get_formatter()->column_width(15);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.get_formatter()->label("REQUIRED", "");  // as in the usage
  app.footer(
      "Before a dump:     sluice check --dir DIR --pid PID; sluice plan FILE\n"
      "                   sluice predump PID --images-dir DIR\n"
      "After it:          sluice show DIR; sluice verify DIR\n"
      "Before a restore:  sluice map DIR\n"
      "Two dumps:         sluice diff OLDER NEWER\n"
      "Without a parent:  sluice flatten DIR\n"
      "A dump was killed: sluice unpause PID\n\n"
      "Every command has --help, with an example, and --json for programs. Progress is\n"
      "shown on terminals only.\n\n"
      "Exit status: 0 done, or the answer is yes; 1 failed, or something is damaged;\n"
      "2 wrong usage; 3 refused: the answer is no, or there is nothing to work on.");
  app.failure_message([](const CLI::App* all, const CLI::Error& error) {
    return "sluice: " + fault_text(*all, error) +
           " [SL-T14]\n  see sluice --help and sluice COMMAND --help\n";
  });

  Run run;
  sluice::cli::add_check(app, run);
  sluice::cli::add_plan(app, run);
  sluice::cli::add_show(app, run);
  sluice::cli::add_verify(app, run);
  sluice::cli::add_map(app, run);
  sluice::cli::add_diff(app, run);
  sluice::cli::add_flatten(app, run);
  sluice::cli::add_predump(app, run);
  sluice::cli::add_unpause(app, run);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) command->group("Commands");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version come this way, too, and are no errors.
    return app.exit(error) == 0 ? ExitCode::Done : ExitCode::Usage;
  }
  return run();
}

}  // namespace

int main(int argc, char** argv) {
  // A file beyond the limit of file sizes is an error of the write (EFBIG), also the one that standard output
  // goes to.
  (void)std::signal(SIGXFSZ, SIG_IGN);
  try {
    const ExitCode ended = run_command(argc, argv);
    (void)std::fflush(stdout);
    if (std::ferror(stdout) == 0) return static_cast<int>(ended);
    (void)std::fputs("sluice: standard output cannot be written, so the output is incomplete [SL-T15]\n",
                     stderr);
    return static_cast<int>(ExitCode::Failed);
  } catch (const std::bad_alloc&) {
    (void)std::fputs("sluice: out of memory; free memory, and try again [SL-T16]\n", stderr);
    return static_cast<int>(ExitCode::Failed);
  } catch (const std::exception& error) {
    // unreached: a guard
    (void)std::fprintf(stderr, "sluice: %s; report this as a bug of sluice [SL-T17]\n", error.what());
    return static_cast<int>(ExitCode::Failed);
  }
}
