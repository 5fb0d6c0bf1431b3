// SPDX-License-Identifier: MIT
// The images that the user names, opened for a command.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/unique_fd.h"
#include "cli/command.h"
#include "images/cause.h"
#include "images/checkpoint.h"
#include "images/image_source.h"

namespace sluice::cli {

struct ImageDirectory {
  std::string path;  // of the directory that has the images, or of the archive
  UniqueFd fd;       // of the directory, which the source borrows
  std::unique_ptr<ImageSource> source;
  Checkpoint checkpoint;
};

// Why there is none, and how the command ends for it.
struct NoImages {
  ExitCode exit_code = ExitCode::Failed;
  std::string message;
  std::string remedy;
  std::optional<Cause> cause;  // of what failed on the images
};
// Of an error that reading them gave: with its cause, and the remedy that fits.
NoImages no_images(const Error& error);

// With the key of the settings, if they have one, which is the process' from then on. `path`: the directory
// of the images, or the one above it. NoImages: that key, or the directory, cannot be read (Failed), or there
// is no image of the plugin (Refused).
std::variant<ImageDirectory, NoImages> open_images(const std::string& path, bool show_progress);

// Tells it: with `json` as an object on standard output, else on standard error. `command`: the subcommand's
// name.
ExitCode refuse(const char* command, bool json, const NoImages& why);

// The argument that names one, and what --help says of it.
inline constexpr const char* kImagesHelp = "the image directory of a dump (criu dump -D), or an archive";
void add_images_argument(CLI::App& command, const std::string& name, std::string& path,
                         const std::string& help);

}  // namespace sluice::cli
