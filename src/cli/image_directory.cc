// SPDX-License-Identifier: MIT
#include "cli/image_directory.h"

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "images/key.h"
#include "pipeline/printable.h"
#include "plugin/config.h"

namespace sluice::cli {

std::variant<ImageDirectory, NoImages> open_images(const std::string& path) {
  plugin::LogLines warnings;  // `sluice check` tells them
  use_image_key(plugin::read_key(
      plugin::parse_config(plugin::environment_and_file(plugin::kConfigFile, warnings), warnings)));
  if (const auto usable = image_key_is_usable(); !usable) {
    return NoImages{
        ExitCode::Failed, usable.error().what,
        usable.error().err == EACCES ? "the key is its owner's alone to read: try again as root" : ""};
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) {
    const int err = errno;
    return NoImages{ExitCode::Failed, make_error(err, "open " + path).what,
                    err == EACCES ? "images are readable by their owner only: try again as root" : ""};
  }
  auto checkpoint = read_checkpoint(fd.get());
  if (!checkpoint) return NoImages{ExitCode::Failed, path + ": " + checkpoint.error().what, ""};
  if (checkpoint->empty()) {
    return NoImages{
        ExitCode::Refused, path + " has no images of GPU processes (amdgpu-*.img)",
        "name the directory that criu dump was given with --images-dir (-D); of a dump that failed, "
        "nothing is left there"};
  }
  return ImageDirectory{path, std::move(fd), std::move(*checkpoint)};
}

ExitCode refuse(const char* command, bool json, const NoImages& why) {
  if (json) {
    print_json({{"command", command},
                {"result", why.exit_code == ExitCode::Refused ? "refused" : "failed"},
                {"message", why.message},
                {"remedy", why.remedy}});
  } else {
    (void)std::fprintf(stderr, "sluice %s: %s\n", command, printable(why.message).c_str());
    if (!why.remedy.empty()) (void)std::fprintf(stderr, "  %s\n", printable(why.remedy).c_str());
  }
  return why.exit_code;
}

void add_images_argument(CLI::App& command, const std::string& name, std::string& path,
                         const std::string& help) {
  command.add_option(name, path, help)->required()->type_name("");
}

}  // namespace sluice::cli
