// SPDX-License-Identifier: MIT
// The images that the user names, opened for a command.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/unique_fd.h"
#include "cli/command.h"
#include "images/checkpoint.h"
#include "images/files/cause.h"
#include "images/files/image_source.h"

namespace sluice::cli {

struct ImageDirectory {
  std::string path;  // the directory with the images, or the archive
  UniqueFd fd;       // the directory's, borrowed by the source
  std::unique_ptr<ImageSource> source;
  Checkpoint checkpoint;
};

// Why there is none, and the command's exit status.
struct NoImages {
  ExitCode exit_code = ExitCode::Failed;
  std::string message;
  std::string remedy;
  std::optional<Cause> cause;  // if something failed on the images
};
// For an error from reading them, with its cause and remedy.
NoImages no_images(const Error& error);

// Uses the key of `config`, if there is one. `path`: the directory of the images, or its parent; its images
// may be those of a pre-dump. NoImages: the key or the directory cannot be read (Failed), or there is no
// image of the plugin (Refused).
std::variant<ImageDirectory, NoImages> open_images(const std::string& path, const settings::Config& config,
                                                   bool show_progress);
// For commands that want a dump: what a pre-dump is.
NoImages only_a_predump(const ImageDirectory& directory);

// Reports it: with `json` as an object on standard output, else on standard error. `command`: the
// subcommand's name.
ExitCode refuse(const char* command, bool json, const NoImages& why);

// The argument that names one, and its --help text.
inline constexpr const char* kImagesHelp = "the image directory of a dump (criu dump -D), or an archive";
void add_images_argument(CLI::App& command, const std::string& name, std::string& path,
                         const std::string& help);

}  // namespace sluice::cli
