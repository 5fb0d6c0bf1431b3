// SPDX-License-Identifier: MIT
#include "cli/checkpoint/image_directory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/printable.h"
#include "cli/checkpoint/archive_source.h"
#include "cli/progress.h"
#include "images/files.h"
#include "images/key.h"
#include "settings/config.h"

namespace sluice::cli {

namespace {

constexpr const char* kWhatToName =
    "name the directory that criu dump was given with --images-dir (-D), or the archive that an engine made; "
    "of a dump that failed, nothing is left there";
constexpr const char* kNoGpu =
    "the processes of this dump used no GPU, or criu had no plugin: sluice check tells whether it finds it";

// What a directory is told by that has images of GPU processes, whole or not.
bool has_plugin_images(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("amdgpu-") && name.ends_with(".img");
  });
}

bool has_criu_images(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), "inventory.img") != names.end();
}

struct Below {
  std::vector<std::string> folders;  // that have images of GPU processes
  std::vector<Error> closed;         // for each that cannot be looked into
};

// Engines keep CRIU's images one below what they tell the user.
Below look_below(int dir_fd, const std::vector<std::string>& names) {
  constexpr std::size_t kMostFolders = 256;  // who names / or /home has made a mistake
  Below below;
  std::size_t looked_into = 0;
  for (const std::string& name : names) {
    if (name == "." || name == "..") continue;
    const UniqueFd fd(::openat(dir_fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd && (errno == ENOTDIR || errno == ELOOP || errno == ENOENT)) continue;
    if (++looked_into > kMostFolders) return {};
    const auto inside =
        fd ? list_names(fd.get()) : Result<std::vector<std::string>>(make_error(errno, "open " + name));
    if (!inside) {
      below.closed.push_back(inside.error());
    } else if (has_plugin_images(*inside)) {
      below.folders.push_back(name);
    }
  }
  std::sort(below.folders.begin(), below.folders.end());
  return below;
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMost; ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kMost ? text + ", ..." : text;
}

// Goes one below where there are no images. Nothing: there are, or nobody knows of any.
std::optional<NoImages> find_folder(ImageDirectory& directory) {
  const auto names = list_names(directory.fd.get());
  if (!names) return no_images(names.error());
  if (has_plugin_images(*names)) return std::nullopt;
  const Below below = look_below(directory.fd.get(), *names);
  if (below.folders.size() > 1) {
    return NoImages{
        ExitCode::Refused,
        directory.path + " has images of GPU processes in several folders: " + list_of(below.folders),
        "name one of them",
        {}};
  }
  if (below.folders.size() == 1) {
    directory.path += (directory.path.ends_with('/') ? "" : "/") + below.folders[0];
    UniqueFd fd(::openat(directory.fd.get(), below.folders[0].c_str(),
                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return no_images(make_error(errno, "open " + directory.path));
    directory.fd = std::move(fd);
    return std::nullopt;
  }
  if (has_criu_images(*names)) {
    return NoImages{
        ExitCode::Refused,
        directory.path + " has images of CRIU, but none of a GPU process (amdgpu-*.img)",
        "the processes of this dump used no GPU, or criu had no plugin: sluice check tells whether "
        "it finds it",
        {}};
  }
  if (!below.closed.empty()) return no_images(explain(directory.path, below.closed.front()));
  return NoImages{
      ExitCode::Refused, directory.path + " has no images of GPU processes (amdgpu-*.img)", kWhatToName, {}};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// An archive of another kind, or packed in another way.
NoImages not_read_here(const std::string& path, const std::string& kind) {
  const bool packed = kind == "xz" || kind == "bzip2" || kind == "lz4";
  const bool names_itself = packed || kind == "zip" || kind == "7z" || kind == "cpio";
  return NoImages{ExitCode::Refused,
                  path + (!names_itself ? ": " + kind
                          : packed      ? " is compressed with " + kind + ", which is not read here"
                                        : " is an archive of another kind: " + kind),
                  packed
                      ? "unpack it (" + kind + " -dk), or compress it with zstd or gzip"
                      : "archives are tar files, as engines make them, plain or compressed with gzip or zstd",
                  {}};
}

// What no directory is, and no tar file: an image beside others, or something else.
NoImages no_archive(const std::string& path) {
  const std::string folder = folder_of(path);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto beside = fd ? list_names(fd.get()) : Result<std::vector<std::string>>(Error{});
  const bool is_beside = beside && (has_plugin_images(*beside) || has_criu_images(*beside));
  return NoImages{
      ExitCode::Refused,
      path + (is_beside ? " is one file of a checkpoint" : " is no archive (tar) and no directory"),
      is_beside ? "name the directory that has all of them: " + folder : kWhatToName,
      {}};
}

// Draws how far the archive was gone through, five times a second.
class ArchiveProgress {
 public:
  explicit ArchiveProgress(bool wanted) : line_(wanted) {}
  void operator()(std::uint64_t done, std::uint64_t total) {
    using namespace std::chrono_literals;
    const auto now = std::chrono::steady_clock::now();
    if (now - drawn_ < 200ms) return;
    drawn_ = now;
    line_.draw(std::min(done, total), total, std::chrono::duration<double>(now - began_).count());
  }
  void end() { line_.clear(); }

 private:
  ProgressLine line_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_ = began_;
};

std::optional<NoImages> open_archive(ImageDirectory& archive, UniqueFd fd, bool show_progress) {
  const std::string& path = archive.path;
  ArchiveProgress progress(show_progress);
  auto opened = ArchiveSource::open(std::move(fd), path, std::ref(progress));
  progress.end();
  if (!opened && opened.error().err == ENOEXEC) return no_archive(path);
  if (!opened && opened.error().err == ENOTSUP) return not_read_here(path, opened.error().what);
  if (!opened) {
    NoImages none = no_images(opened.error());
    if (none.cause == Cause::Damaged)
      none.remedy = "copy it again from where it was made, or use another checkpoint";
    return none;
  }
  const std::vector<std::string> folders = (*opened)->folders();
  if (folders.size() > 1) {
    return NoImages{ExitCode::Refused,
                    path + " has images of GPU processes in several folders: " + list_of(folders),
                    "unpack the one that is meant, and name that",
                    {}};
  }
  if (folders.empty()) {
    const bool of_criu = (*opened)->has_criu_images();
    return NoImages{ExitCode::Refused,
                    path + (of_criu ? " has images of CRIU, but none of a GPU process (amdgpu-*.img)"
                                    : " is an archive without images of GPU processes (amdgpu-*.img)"),
                    of_criu ? kNoGpu : "name the archive that the engine made of a checkpoint",
                    {}};
  }
  (*opened)->choose(0);
  archive.source = std::move(*opened);
  return std::nullopt;
}

std::optional<NoImages> open_directory(ImageDirectory& directory) {
  directory.fd.reset(::open(directory.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.fd) return no_images(make_error(errno, "open " + directory.path));
  if (auto none = find_folder(directory)) return none;
  directory.source = std::make_unique<DirectorySource>(directory.fd.get());
  return std::nullopt;
}

std::optional<NoImages> open_file(ImageDirectory& file, bool show_progress) {
  const std::string& path = file.path;
  if (path.ends_with(".img")) return no_archive(path);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return no_images(make_error(errno, "open " + path));
  return open_archive(file, std::move(fd), show_progress);
}

// What is wrong with the key's file, or with the setting, the message says.
NoImages no_key(const Error& error) {
  const Cause cause = cause_of(error.err);
  NoImages none{ExitCode::Failed, error.what, "", {}};
  if (error.err == EACCES) none.remedy = "the key is its owner's alone to read: try again as root";
  if (cause == Cause::Unreadable) none.remedy = remedy_of(error.err);
  if (cause != Cause::Damaged) none.cause = cause;
  return none;
}

}  // namespace

NoImages no_images(const Error& error) {
  return {ExitCode::Failed, error.what, remedy_of(error.err), cause_of(error.err)};
}

std::variant<ImageDirectory, NoImages> open_images(const std::string& path, bool show_progress) {
  LogLines warnings;  // `sluice check` tells them
  use_image_key(plugin::read_key(
      plugin::parse_config(plugin::environment_and_file(plugin::kConfigFile, warnings), warnings)));
  if (const auto usable = image_key_is_usable(); !usable) {
    return no_key(usable.error());
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    const int err = errno;
    NoImages why = no_images(make_error(err, "open " + path));
    if (err == ENOENT) why.remedy = kWhatToName;
    if (err == ENOTDIR)
      why.remedy =
          "a part of this path is a file: of an archive name the file, its folder of images is found";
    return why;
  }
  ImageDirectory directory{path, {}, {}, {}};
  std::optional<NoImages> none;
  if (S_ISDIR(status.st_mode)) {
    none = open_directory(directory);
  } else if (S_ISREG(status.st_mode)) {
    none = open_file(directory, show_progress);
  } else {
    none = NoImages{ExitCode::Refused,
                    path + " is neither a directory nor a file",
                    "an archive is read twice, which a pipe cannot be: save it, and name the file",
                    {}};
  }
  if (none) return std::move(*none);
  auto checkpoint = read_checkpoint(*directory.source);
  if (!checkpoint) return no_images(explain(directory.path, checkpoint.error()));
  if (checkpoint->empty()) {
    return NoImages{ExitCode::Refused,
                    directory.path + " has no images of GPU processes (amdgpu-*.img), but contents of some",
                    "use another checkpoint, or copy what is missing to its place", Cause::Missing};
  }
  directory.checkpoint = std::move(*checkpoint);
  return directory;
}

ExitCode refuse(const char* command, bool json, const NoImages& why) {
  if (json) {
    nlohmann::ordered_json object = {{"command", command},
                                     {"result", why.exit_code == ExitCode::Refused ? "refused" : "failed"},
                                     {"message", why.message},
                                     {"remedy", why.remedy}};
    if (why.cause) object["cause"] = word_of(*why.cause);
    print_json(object);
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
