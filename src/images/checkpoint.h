// SPDX-License-Identifier: MIT
// All metadata images of one checkpoint, without contents.
#pragma once

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
  // One error per image that cannot be read, or belongs to another dump than those before; such images are
  // not above.
  std::vector<Error> unreadable;
  // If there are images and all are readable: one error per image that others, or contents files, show to be
  // lost. Not every loss is found, because only CRIU knows which files there were. Also one per image of
  // upstream's that does not say whose memory it shares.
  std::vector<Error> lost;

  bool empty() const { return kfd.empty() && render.empty() && dmabufs.empty() && unreadable.empty(); }
  const std::vector<Error>& faults() const { return unreadable.empty() ? lost : unreadable; }
};

// Errors: those of listing the names.
Result<Checkpoint> read_checkpoint(const ImageSource& source);

}  // namespace sluice
