// SPDX-License-Identifier: MIT
// All metadata images of one checkpoint. Contents are not looked at.
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
  // One for each image that cannot be read, or is of another dump than those before it: it is not above.
  std::vector<Error> unreadable;
  // Where there are images, all readable: one for each that is lost, as others, or files of contents, say.
  // Not all that can be lost: which files there were only CRIU knows. Likewise for each image of upstream's
  // that does not say whose memory it shares.
  std::vector<Error> lost;

  bool empty() const { return kfd.empty() && render.empty() && dmabufs.empty() && unreadable.empty(); }
  const std::vector<Error>& faults() const { return unreadable.empty() ? lost : unreadable; }
};

// Errors: those of listing the names.
Result<Checkpoint> read_checkpoint(const ImageSource& source);

}  // namespace sluice
