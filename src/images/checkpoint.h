// SPDX-License-Identifier: MIT
// All metadata images of one checkpoint, without contents.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/image_source.h"
#include "images/kfd_image.h"
#include "images/metadata.h"

namespace sluice {

// An image under CRIU's id of the open file.
template <class Image>
struct NumberedImage {
  int id = 0;
  Image image;
};

struct Checkpoint {
  std::vector<NumberedImage<kfd::KfdImage>> kfd;  // each by id, ascending
  std::vector<NumberedImage<RenderImage>> render;
  std::vector<NumberedImage<DmaBufImage>> dmabufs;
  std::set<std::string> chain_names;  // chain_name() of images that have these names
  // One error per image that cannot be read, has two names, or belongs to another dump than those before;
  // such images are not above.
  std::vector<Error> unreadable;
  // If there are images and all are readable: one error per image that others, or contents files, show to be
  // lost. Not every loss is found, because only CRIU knows which files there were. Also one per image of
  // upstream's that does not say whose memory it shares.
  std::vector<Error> lost;

  bool empty() const { return kfd.empty() && render.empty() && dmabufs.empty() && unreadable.empty(); }
  // The name here of the image that a complete checkpoint calls `name`.
  std::string name_of(const std::string& name) const;
  const std::vector<Error>& faults() const { return unreadable.empty() ? lost : unreadable; }
};

// For an image that has its name in a complete checkpoint and chain_name() of it: EBADMSG.
Error two_names_of_one(const std::string& name, const std::string& other);

// Errors: those of listing the names.
Result<Checkpoint> read_checkpoint(const ImageSource& source);

}  // namespace sluice
