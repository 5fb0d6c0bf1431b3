// SPDX-License-Identifier: MIT
// What a restore has to know of all images before there is a task.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "images/metadata.h"
#include "images/unsaid_sharing.h"
#include "images/vram_need.h"
#include "kfd/topology.h"

namespace sluice::plugin {

class RestoreSurvey {
 public:
  // Reads the images, as far as they can be read: what is wrong with one, the task that needs it will say.
  // But images of two dumps, or under another's name, are nobody's: EBADMSG. So it is with a stream's index
  // that is damaged, or not made with the key; and with memory that upstream's images show twice: ENOSYS.
  static Result<RestoreSurvey> read();

  // An image that is about to be restored, for read() may not have been able to list or read it. EBADMSG: of
  // another dump, or another file's. EKEYREJECTED: with a key, where read() has not seen it, or of a stream
  // nothing: each task could be given those of another dump then, or what read() was to find out about all
  // images is not so.
  template <class Image>
  Result<void> add(const std::string& name, const Image& image) {
    SLUICE_TRY(check_that_it_was_seen(name));
    SLUICE_TRY(unsaid_sharing_.add(name, image));
    return same_dump_.add(name, image.dump_id, image.id);
  }

  // Lanes of the whole restore on a GPU, by its render minor in the images, and on all; 1 at least.
  unsigned lanes_on(std::uint32_t source_minor) const;
  std::size_t all_lanes() const;

  // Whether the process maps BOs of the GPU through several files, or may.
  bool maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const;

  // Whether the process gets a render file of the GPU, as its KFD image has it, or may.
  bool may_restore_render_file(std::uint32_t pid, const kfd::Node& source) const;

  // Files by id, with the pid of the process that restores them, where it is known.
  const std::map<int, std::uint32_t>& kfd_pids() const { return kfd_pids_; }
  const std::map<int, std::uint32_t>& render_pids() const { return render_pids_; }
  // Numbers of the memory that several files have and one of them makes.
  const std::set<std::uint32_t>& shared_numbers() const { return shared_numbers_; }
  // VRAM that all images together bring onto each GPU, by its render minor in the images.
  const VramBytes& vram() const { return vram_; }
  // What KFD processes saw: each view once, the one with the most GPUs first.
  const std::vector<kfd::Topology>& topologies() const { return topologies_; }
  // Whether a KFD image tells the size of its BO records.
  bool has_record_bytes() const { return has_record_bytes_; }
  // Why an image, or the list of them, could not be read, where one is there: what it has is not known here.
  const std::optional<Error>& unread() const { return unread_; }

 private:
  void note_unread(const Error& error);
  Result<void> check_that_it_was_seen(const std::string& name) const;

  // The files of one process through which it maps BOs of one GPU. Among them the one that KFD acquired for
  // it is `acquired`.
  struct MappedFiles {
    bool acquired = false;
    unsigned others = 0;
  };

  // Those of one kind.
  template <class Image>
  Result<void> read_images(const Result<std::vector<std::string>>& names,
                           Result<Image> (*unpack)(std::span<const std::uint8_t>, const std::string&));
  // `id`: the file's, by the image's name.
  void note(const kfd::KfdImage& image, std::optional<int> id);
  void note(const kfd::Topology& topology);
  void note(const RenderImage& image, std::optional<int> id);
  void note(const DmaBufImage&, std::optional<int>) {}  // of nobody's concern before a task asks for it

  SameDump same_dump_;
  UnsaidSharing unsaid_sharing_;
  std::set<std::string> seen_;  // images that read() has read
  bool has_record_bytes_ = false;
  std::optional<Error> unread_;  // the first
  std::map<std::uint32_t, unsigned> lanes_by_minor_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, MappedFiles> mapped_files_;  // by pid and render minor
  // Render files: the process, where it is known, and the minor.
  std::set<std::pair<std::optional<std::uint32_t>, std::uint32_t>> render_files_;
  std::set<std::uint32_t> render_gpu_ids_;  // of render files that do not tell their minor
  std::map<int, std::uint32_t> kfd_pids_;
  std::map<int, std::uint32_t> render_pids_;
  std::set<std::uint32_t> shared_numbers_;
  VramBytes vram_;
  std::vector<kfd::Topology> topologies_;
};

}  // namespace sluice::plugin
