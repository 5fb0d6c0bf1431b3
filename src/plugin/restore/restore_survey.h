// SPDX-License-Identifier: MIT
// What a restore has to know of all images before there are tasks.
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
#include "images/checkpoint.h"
#include "images/metadata.h"
#include "images/undeclared_sharing.h"
#include "images/vram_need.h"
#include "kfd/topology.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

class RestoreSurvey {
 public:
  // Reads all readable images of `store`, which is borrowed; faults of one are reported by the task that
  // needs it. Errors: EBADMSG for images of two dumps, under another's name or under two names, and for a
  // stream's index that is damaged or made without the key. ENOSYS for memory that upstream's images show
  // twice. If contents are in a parent, faults of sums are errors here, because only sums tell which parent.
  static Result<RestoreSurvey> read(ImageStore& store);

  // Checks an image about to be restored, which read() may not have been able to list or read. EBADMSG: of
  // another dump, or another file's. EKEYREJECTED, only with a key: read() has not seen it, or no index of a
  // stream. Then each task could be given another dump's images, and what read() found out might not hold.
  template <class Image>
  Result<void> add(const std::string& name, const Image& image) {
    SLUICE_TRY(check_that_it_was_seen(name));
    SLUICE_TRY(undeclared_sharing_.add(name, image));
    return same_dump_.add(name, image.dump_id, image.id);
  }

  // Lanes of the whole restore on a GPU, by its render minor in the images, and on all GPUs; at least 1.
  unsigned lanes_on(std::uint32_t source_minor) const;
  std::size_t all_lanes() const;

  // Whether the process maps BOs of the GPU through several files, or may.
  bool maps_several_files(std::uint32_t pid, std::uint32_t source_minor) const;

  // Whether the process gets, or may get, a render file of the GPU, named as in its KFD image.
  bool may_restore_render_file(std::uint32_t pid, const kfd::Node& source) const;

  // Files by id, with the pid of the process that restores them, if known.
  const std::map<int, std::uint32_t>& kfd_pids() const { return kfd_pids_; }
  const std::map<int, std::uint32_t>& render_pids() const { return render_pids_; }
  // Numbers of the shared memory that one of the files makes.
  const std::set<std::uint32_t>& shared_numbers() const { return shared_numbers_; }
  // VRAM that all images together need on each GPU, by its render minor in the images.
  const VramBytes& vram() const { return vram_; }
  // The topologies that KFD processes saw, without duplicates, the one with the most GPUs first.
  const std::vector<kfd::Topology>& topologies() const { return topologies_; }
  // The records of the driver that made the KFD images.
  const DriverRecords& records() const { return records_; }
  // The dump that has contents missing in these images; all zero if there is none.
  const DumpId& parent_dump_id() const { return parent_dump_id_; }
  // Why an existing image, or the list of images, could not be read: its contents are unknown here.
  const std::optional<Error>& unread() const { return unread_; }

 private:
  Result<void> check_that_it_was_seen(const std::string& name) const;

  // The files through which one process maps BOs of one GPU. `acquired`: the one that KFD acquired for it.
  struct MappedFiles {
    bool acquired = false;
    unsigned others = 0;
  };

  // All images of one kind.
  template <class Image>
  Result<void> note_all(ImageStore& store, const Checkpoint& checkpoint,
                        const std::vector<NumberedImage<Image>>& images, std::string (*name_of)(int id));
  void note(const kfd::KfdImage& image, int id);
  void note(const RenderImage& image, int id);
  Result<void> note_parent(ImageStore& store, const kfd::KfdImage& image, int id);
  Result<void> note_parent(ImageStore& store, const RenderImage& image, int id);
  Result<void> note_parent(ImageStore&, const DmaBufImage&, int) { return {}; }
  void note(const DmaBufImage&, int) {}  // irrelevant until a task asks for it

  const ImageStore* store_ = nullptr;  // the store that read() has used
  SameDump same_dump_;
  UndeclaredSharing undeclared_sharing_;
  std::set<std::string> seen_;  // images that read() has read
  DriverRecords records_;       // of the first image that tells
  bool has_deltas_ = false;     // some files have part of their contents in a parent
  DumpId parent_dump_id_{};
  std::optional<Error> unread_;  // the first
  std::map<std::uint32_t, unsigned> lanes_by_minor_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, MappedFiles> mapped_files_;  // by pid and render minor
  // Render files: the process, if known, and the minor.
  std::set<std::pair<std::optional<std::uint32_t>, std::uint32_t>> render_files_;
  std::set<std::uint32_t> render_gpu_ids_;  // of render files whose minor is unknown
  std::map<int, std::uint32_t> kfd_pids_;
  std::map<int, std::uint32_t> render_pids_;
  std::set<std::uint32_t> shared_numbers_;
  VramBytes vram_;
  std::vector<kfd::Topology> topologies_;
};

}  // namespace sluice::plugin
