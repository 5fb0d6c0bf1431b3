// SPDX-License-Identifier: MIT
#include "cli/checkpoint/image_directory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <vector>

#include "base/format.h"
#include "cli/checkpoint/archive_source.h"
#include "cli/progress.h"
#include "cli/refusal.h"
#include "images/chain/predump_images.h"
#include "images/files/files.h"
#include "images/files/key.h"
#include "settings/config.h"

namespace sluice::cli {

namespace {

constexpr const char* kWhatToName =
    "name the directory that was given to criu dump with --images-dir (-D), or an engine's archive; a dump "
    "that "
    "failed leaves nothing there";
constexpr const char* kNoGpu =
    "the processes of this dump used no GPU, or criu had no plugin: sluice check tells whether it finds it";

// Whether a directory has images of GPU processes, complete or not.
bool has_plugin_images(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("amdgpu-") && name.ends_with(".img");
  });
}

bool has_criu_images(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), "inventory.img") != names.end();
}

struct Below {
  std::vector<std::string> folders;  // with images of GPU processes
  std::vector<Error> closed;         // one per folder that cannot be read
};

// Engines keep CRIU's images one level below the directory that they show the user.
Below look_below(int dir_fd, const std::vector<std::string>& names) {
  constexpr std::size_t kMostFolders = 256;  // a user who names / or /home has made a mistake
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

// Goes one level down if there are no images. Nothing: there are, or none are known.
std::optional<NoImages> find_folder(ImageDirectory& directory) {
  const auto names = list_names(directory.fd.get());
  if (!names) return no_images(names.error());
  if (has_plugin_images(*names)) return std::nullopt;
  const Below below = look_below(directory.fd.get(), *names);
  if (below.folders.size() > 1) {
    return NoImages{ExitCode::Refused,
                    formatted("{} has images of GPU processes in several folders: {} [SL-T25]",
                              directory.path, list_of(below.folders)),
                    "name one of them",
                    {}};
  }
  if (below.folders.size() == 1) {
    directory.path += (directory.path.ends_with('/') ? "" : "/") + below.folders[0];
    UniqueFd fd(::openat(directory.fd.get(), below.folders[0].c_str(),
                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return no_images(make_error(errno, "open " + directory.path));  // unreached: a race
    directory.fd = std::move(fd);
    return std::nullopt;
  }
  if (has_criu_images(*names)) {
    return NoImages{ExitCode::Refused,
                    directory.path + " has images of CRIU, but none of a GPU process (amdgpu-*.img) [SL-T26]",
                    kNoGpu,
                    {}};
  }
  if (!below.closed.empty()) return no_images(explain(directory.path, below.closed.front()));
  return NoImages{ExitCode::Refused,
                  directory.path + " has no images of GPU processes (amdgpu-*.img) [SL-T27]",
                  kWhatToName,
                  {}};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// An archive of another kind, or with other compression.
NoImages not_read_here(const std::string& path, const std::string& kind) {
  const bool packed = kind == "xz" || kind == "bzip2" || kind == "lz4";
  const bool names_itself = packed || kind == "zip" || kind == "7z" || kind == "cpio";
  return NoImages{ExitCode::Refused,
                  formatted("{}{}{} [SL-T40]", path,
                            packed         ? " has an unsupported compression, "
                            : names_itself ? " is an archive of another kind: "
                                           : " is not supported: ",  // unreached: another machine
                            kind),
                  packed
                      ? "unpack it (" + kind + " -dk), or compress it with zstd or gzip"
                      : "archives are tar files, as engines make them, plain or compressed with gzip or zstd",
                  {}};
}

// Neither a directory nor a tar file: a single image, or something else.
NoImages no_archive(const std::string& path) {
  const std::string folder = folder_of(path);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto beside = fd ? list_names(fd.get()) : Result<std::vector<std::string>>(Error{});
  const bool is_beside = beside && (has_plugin_images(*beside) || has_criu_images(*beside));
  return NoImages{ExitCode::Refused,
                  path + (is_beside ? " is one file of a checkpoint [SL-T41]"
                                    : " is neither an archive (tar) nor a directory [SL-T42]"),
                  is_beside ? "name the directory that has all of them: " + folder : kWhatToName,
                  {}};
}

// Shows the progress through the archive.
class ArchiveProgress {
 public:
  explicit ArchiveProgress(bool wanted) : line_(wanted) {}
  void operator()(std::uint64_t done, std::uint64_t total) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began_;
    line_.draw(std::min(done, total), total, seconds.count());
  }
  void end() { line_.clear(); }

 private:
  ProgressLine line_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
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
    if (opened.error().err == EFBIG) {  // more metadata than one checkpoint has
      none.remedy = "name the archive of one checkpoint";
    } else if (none.cause == Cause::Damaged) {
      none.remedy = "copy it again from where it was made, or use another checkpoint";
    }
    return none;
  }
  const std::vector<std::string> folders = (*opened)->folders();
  if (folders.size() > 1) {
    return NoImages{ExitCode::Refused,
                    formatted("{} is an archive with images of GPU processes in several folders: {} [SL-T28]",
                              path, list_of(folders)),
                    "unpack the one that is meant, and name that",
                    {}};
  }
  if (folders.empty()) {
    const bool of_criu = (*opened)->has_criu_images();
    return NoImages{
        ExitCode::Refused,
        path + (of_criu
                    ? " is an archive with images of CRIU, but none of a GPU process (amdgpu-*.img) [SL-T29]"
                    : " is an archive without images of GPU processes (amdgpu-*.img) [SL-T30]"),
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

// The message says what is wrong with the key's file, or with the setting.
NoImages no_key(const Error& error) {
  const Cause cause = cause_of(error.err);
  NoImages none{ExitCode::Failed, error.what, "", {}};
  if (error.err == EACCES) none.remedy = "only the key's owner can read it: try again as root";
  if (cause == Cause::Unreadable) none.remedy = remedy_of(error.err);
  if (cause != Cause::Damaged) none.cause = cause;
  return none;
}

}  // namespace

NoImages no_images(const Error& error) {
  std::string remedy = remedy_of(error.err);
  if (remedy.empty()) remedy = remedy_in(error.what);
  return {ExitCode::Failed, error.what, std::move(remedy), cause_of(error.err)};
}

NoImages only_a_predump(const ImageDirectory& directory) {
  return {ExitCode::Refused,
          directory.path + " has a pre-dump, which dumps are built on and nothing is restored from [SL-T61]",
          "name the directory of the dump that was built on it",
          {}};
}

std::variant<ImageDirectory, NoImages> open_images(const std::string& path, const settings::Config& config,
                                                   bool show_progress) {
  ImageKeys keys(settings::read_key(config));
  if (const auto usable = keys.usable(); !usable) {
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
                    path + " is neither a directory nor a file [SL-T31]",
                    "save the archive, and name the file: an archive is read twice, and a pipe cannot be",
                    {}};
  }
  if (none) return std::move(*none);
  directory.source->set_keys(std::move(keys));
  auto checkpoint = read_checkpoint_or_predump(*directory.source);
  if (!checkpoint) return no_images(explain(directory.path, checkpoint.error()));  // unreached: a race
  if (checkpoint->predump == PreDumpState::Unfinished) {
    return NoImages{ExitCode::Failed,
                    formatted("{} has a pre-dump that has not ended: there is no {} yet [SL-T60]",
                              directory.path, kPreDumpMark),
                    "wait if it still runs; if not, make another one: no dump can be built on this",
                    Cause::Missing};
  }
  if (checkpoint->empty()) {
    return NoImages{
        ExitCode::Refused,
        directory.path + " has contents of GPU processes, but none of their images (amdgpu-*.img) [SL-T32]",
        "use another checkpoint, or copy what is missing to its place", Cause::Missing};
  }
  directory.checkpoint = std::move(*checkpoint);
  return directory;
}

ExitCode refuse(const char* command, bool json, const NoImages& why) {
  return refuse(command, json, why.exit_code, why.message + (has_id(why.message) ? "" : " [SL-T24]"),
                why.remedy, why.cause ? word_of(*why.cause) : nullptr);
}

void add_images_argument(CLI::App& command, const std::string& name, std::string& path,
                         const std::string& help) {
  command.add_option(name, path, help)->required()->type_name("");
}

}  // namespace sluice::cli
