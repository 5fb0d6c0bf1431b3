// SPDX-License-Identifier: MIT
// An image directory that the user names, opened for a command.
#pragma once

#include <string>
#include <variant>

#include "cli/command.h"
#include "images/checkpoint.h"
#include "pipeline/unique_fd.h"

namespace sluice::cli {

struct ImageDirectory {
  std::string path;
  UniqueFd fd;
  Checkpoint checkpoint;
};

// Why there is none, and how the command ends for it.
struct NoImages {
  ExitCode exit_code = ExitCode::Failed;
  std::string message;
  std::string remedy;
};

// With the key of the settings, if they have one, which is the process' from then on. NoImages: that key, or
// the directory, cannot be read (Failed), or there is no image of the plugin (Refused).
std::variant<ImageDirectory, NoImages> open_images(const std::string& path);

// Tells it: with `json` as an object on standard output, else on standard error. `command`: the subcommand's
// name.
ExitCode refuse(const char* command, bool json, const NoImages& why);

// The argument that names one.
void add_images_argument(CLI::App& command, const std::string& name, std::string& path,
                         const std::string& help);

}  // namespace sluice::cli
