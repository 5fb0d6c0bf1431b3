// SPDX-License-Identifier: MIT
// The images of a checkpoint in an archive. It is a tar file of Podman, CRI-O or containerd, or an image
// saved with the checkpoint as a layer (`ctr images export`, `podman save`). The layer is a tar file within
// the tar file. The folder is found by its contents: images of GPU processes.
//
// The archive is read once when it is opened. Small files are kept then; of contents only their place. Each
// stream() reads it again. One limit holds for everything kept, whatever the archive claims.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cli/checkpoint/tar_reader.h"
#include "images/files/image_source.h"

namespace sluice::cli {

class ArchiveSource final : public ImageSource {
 public:
  // `on_progress` gets the bytes of the archive read so far, and their total; may be null.
  using OnProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // Reads through the regular file `fd`. Errors: ENOEXEC if it is no tar file; ENOTSUP, with the remedy, for
  // another compression or kind of archive; EBADMSG for a damaged one, with what was found before; EFBIG for
  // more metadata than any checkpoint has; those of reading.
  static Result<std::unique_ptr<ArchiveSource>> open(UniqueFd fd, const std::string& path,
                                                     const OnProgress& on_progress);

  // The folders with images of GPU processes, in words, sorted.
  std::vector<std::string> folders() const;
  // Whether there are CRIU images anywhere.
  bool has_criu_images() const { return has_criu_images_; }
  // Makes one of them the source. REQUIRES: number < folders().size(); before what follows.
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
    std::optional<std::vector<std::uint8_t>> bytes;  // if it is read completely
  };
  struct Place {
    std::string layer;   // the entry that is itself a tar file; empty: the archive
    std::string folder;  // with a trailing '/'; empty: the top
    bool operator<(const Place& other) const {
      return std::tie(layer, folder) < std::tie(other.layer, other.folder);
    }
  };
  using Folder = std::map<std::string, File>;  // by name

  ArchiveSource(UniqueFd fd, std::string path, std::uint64_t file_bytes)
      : fd_(std::move(fd)), path_(std::move(path)), file_bytes_(file_bytes) {}
  static std::string describe(const Place& place);
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
  std::string last_name_;             // of what was found, as in the archive
  std::optional<Error> layer_error_;  // from a layer in which nothing was found
};

}  // namespace sluice::cli
