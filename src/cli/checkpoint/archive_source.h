// SPDX-License-Identifier: MIT
// The images of a checkpoint that lies in an archive: a tar file of Podman, CRI-O or containerd, or an image
// that was saved with the checkpoint as a layer (`ctr images export`, `podman save`), in which that layer is
// a tar file in the tar file. Which folder it is, its contents say: the one that has images of GPU processes.
//
// The archive is gone through once when it is opened: what is small is kept then, of contents only where they
// are. Each stream() goes through it again. A bound holds for all that is kept, whatever the archive says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cli/checkpoint/tar_reader.h"
#include "images/image_source.h"

namespace sluice::cli {

class ArchiveSource final : public ImageSource {
 public:
  // `on_progress` gets the bytes of the archive that were read, and those of all of it; may be null.
  using OnProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // Goes through the regular file `fd`. Errors: ENOEXEC for what is no tar file, ENOTSUP, with the way, for
  // another compression or kind of archive; EBADMSG for a damaged one, with what was found until there; EFBIG
  // for more metadata than any checkpoint has; those of reading.
  static Result<std::unique_ptr<ArchiveSource>> open(UniqueFd fd, const std::string& path,
                                                     const OnProgress& on_progress);

  // Those that have images of GPU processes, in words, sorted.
  std::vector<std::string> folders() const;
  // Whether there are images of CRIU anywhere.
  bool has_criu_images() const { return has_criu_images_; }
  // Makes this the source of one of them. REQUIRES: number < folders().size(); before what follows.
  void choose(std::size_t number);

  Result<std::vector<std::string>> names() const override;
  Result<std::vector<std::uint8_t>> read(const std::string& name, std::uint64_t most) const override;
  Result<SourceFile> look(const std::string& name) const override;
  std::uint64_t hole_bytes(const std::string& name) const override;
  Result<void> stream(const std::set<std::string>& names, const Take& take) const override;

 private:
  struct File {
    SourceFile facts;
    bool regular = false;
    bool twice = false;
    std::optional<std::vector<std::uint8_t>> bytes;  // of what is read whole
  };
  struct Place {
    std::string layer;   // the entry that is a tar file itself; empty: the archive
    std::string folder;  // with a '/' at its end; empty: the top
    auto operator<=>(const Place&) const = default;
  };
  using Folder = std::map<std::string, File>;  // by name

  ArchiveSource(UniqueFd fd, std::string path, std::uint64_t file_bytes)
      : fd_(std::move(fd)), path_(std::move(path)), file_bytes_(file_bytes) {}
  static std::string words(const Place& place);
  std::unique_ptr<Input> input(const OnProgress& on_progress) const;
  Result<void> scan(TarReader& reader, const std::string& layer);
  Result<void> scan_layer(TarReader& reader, const TarReader::Entry& entry);
  Result<void> keep(TarReader& reader, const TarReader::Entry& entry, const Place& place,
                    const std::string& name);
  Result<void> keep_budget(std::uint64_t bytes);
  Error damaged(const Error& error) const;
  Result<const File*> find(const std::string& name) const;
  Result<void> stream_from(TarReader& reader, std::set<std::string>& left, const Take& take) const;

  UniqueFd fd_;
  std::string path_;
  std::uint64_t file_bytes_;
  std::map<Place, Folder> found_;
  Place chosen_;
  bool has_criu_images_ = false;
  std::uint64_t kept_bytes_ = 0;
  std::string last_name_;             // of what was found, as the archive has it
  std::optional<Error> layer_error_;  // of a layer in which nothing was found
};

}  // namespace sluice::cli
