// SPDX-License-Identifier: MIT
#include "images/checkpoint.h"

#include <algorithm>
#include <string>

#include "images/files.h"

namespace sluice {
namespace {

template <class Image, class Unpack>
Result<void> read_all(int dir_fd, Result<std::vector<std::string>> names, Unpack unpack, SameDump& dump,
                      std::vector<NumberedImage<Image>>& images, std::vector<Error>& unreadable) {
  if (!names) return std::move(names).error();
  for (const std::string& name : *names) {
    const std::optional<int> id = id_of_image(name);
    if (!id) continue;  // the name of none of ours
    const auto payload = read_image(dir_fd, name);
    Result<Image> image = payload ? unpack(*payload, name) : Result<Image>(payload.error());
    const Result<void> good = image ? dump.add(name, image->dump_id, image->id) : Result<void>(image.error());
    if (good) {
      images.push_back({*id, std::move(*image)});
    } else {
      unreadable.push_back(good.error());
    }
  }
  std::sort(images.begin(), images.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return {};
}

}  // namespace

Result<Checkpoint> read_checkpoint(int dir_fd) {
  Checkpoint all;
  SameDump dump;
  SLUICE_TRY(read_all(dir_fd, list_kfd_images(dir_fd), unpack_kfd_image, dump, all.kfd, all.unreadable));
  SLUICE_TRY(
      read_all(dir_fd, list_render_images(dir_fd), unpack_render_image, dump, all.render, all.unreadable));
  SLUICE_TRY(
      read_all(dir_fd, list_dmabuf_images(dir_fd), unpack_dmabuf_image, dump, all.dmabufs, all.unreadable));
  return all;
}

}  // namespace sluice
