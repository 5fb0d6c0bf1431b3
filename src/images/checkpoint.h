// SPDX-License-Identifier: MIT
// All metadata images of one checkpoint, or of a pre-dump, without contents.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files/image_source.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "images/pages.h"

namespace sluice {

// An image under CRIU's id of the open file.
template <class Image>
struct NumberedImage {
  int id = 0;
  Image image;
};

// nullptr: none has that id.
template <class Image>
const Image* with_id(const std::vector<NumberedImage<Image>>& images, int id) {
  for (const NumberedImage<Image>& each : images) {
    if (each.id == id) return &each.image;
  }
  return nullptr;
}

// Whether the images are a pre-dump's (images/chain/predump_mark.h), and whether it has ended.
enum class PreDumpState : std::uint8_t { None, Unfinished, Finished };

struct Checkpoint {
  PreDumpState predump = PreDumpState::None;
  std::vector<NumberedImage<KfdImage>> kfd;  // each by id, ascending
  std::vector<NumberedImage<RenderImage>> render;
  std::vector<NumberedImage<DmaBufImage>> dmabufs;
  std::set<std::string> partial_names;  // of images that have a partial_name()
  // The first image that is there and cannot be read: what it says is unknown. Damage aside.
  std::optional<Error> unread;
  // The first that has two names, or belongs to another dump: then nothing is certain.
  std::optional<Error> contradiction;
  // One error per image that cannot be read, has two names, or belongs to another dump than those before;
  // such images are not above.
  std::vector<Error> unreadable;
  // If there are images and all are readable: one error per image that others, or contents files, show to be
  // lost, and no more than are certain. Not every loss is found, because only CRIU knows which files there
  // were. Also one per image of upstream's that does not say whose memory it shares.
  std::vector<Error> lost;

  bool is_predump() const { return predump == PreDumpState::Finished; }
  bool empty() const { return kfd.empty() && render.empty() && dmabufs.empty() && unreadable.empty(); }
  // The name here of the image that a complete checkpoint calls `name`.
  std::string name_of(const std::string& name) const;
  const std::vector<Error>& faults() const { return unreadable.empty() ? lost : unreadable; }
};

// For an image that is there under two of its names: EBADMSG.
Error two_names_of_one(const std::string& name, const std::string& other);

// The contents of one image on one GPU.
struct NumberedPages {
  int id = 0;
  DumpId dump_id{};  // all zero: the image has none
  PagesSet set;
};
// Of all images that can be read.
std::vector<NumberedPages> pages_of(const Checkpoint& checkpoint);

// Only a dump's images. The one reader of metadata: of restores, chains and all commands. Errors: those of
// listing the names.
Result<Checkpoint> read_checkpoint(const MetadataReader& images);

}  // namespace sluice
