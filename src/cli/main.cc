// SPDX-License-Identifier: MIT
// The `sluice` command: what an operator does by hand around checkpoints of GPU processes. The plugin does
// not need it.
#include <cstdio>
#include <exception>
#include <string>

#include "cli/commands.h"

namespace {

using sluice::cli::ExitCode;
using sluice::cli::Run;

ExitCode run_command(int argc, char** argv) {
  CLI::App app("Checkpoints of AMD GPU processes: the commands around the CRIU plugin", "sluice");
  app.set_version_flag(
      "--version",
      "sluice " SLUICE_VERSION
      "\nchecksums: XXH3-128; I/O: io_uring, threads where it is refused; direct where possible"
      "\nbuilt with: " SLUICE_LIBRARIES "\nplugin: " SLUICE_PLUGIN_DIRECTORY
      "/amdgpu_plugin.so, or in $CRIU_LIBS_DIR\nsettings: /etc/criu/sluice.conf and the environment");
  app.require_subcommand(1);
  app.footer(
      std::string("Before a dump:     sluice check --dir DIR --pid PID\n"
                  "After it:          sluice show DIR; sluice verify DIR\n"
                  "Before a restore:  sluice map DIR\n"
                  "Two dumps:         sluice diff OLDER NEWER\n"
                  "A dump was killed: sluice unpause PID\n"
                  "Every command has --help, and --json for programs. Progress is for terminals only.\n") +
      sluice::cli::kExitCodesHelp);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("sluice: ") + error.what() + "\n  sluice --help and sluice COMMAND --help tell more\n";
  });

  Run run;
  sluice::cli::add_check(app, run);
  sluice::cli::add_show(app, run);
  sluice::cli::add_verify(app, run);
  sluice::cli::add_map(app, run);
  sluice::cli::add_diff(app, run);
  sluice::cli::add_unpause(app, run);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version come this way, too, and are none.
    return app.exit(error) == 0 ? ExitCode::Done : ExitCode::Usage;
  }
  return run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return static_cast<int>(run_command(argc, argv));
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "sluice: %s\n", error.what());
    return static_cast<int>(ExitCode::Failed);
  }
}
