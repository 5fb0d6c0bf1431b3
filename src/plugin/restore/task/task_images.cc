// SPDX-License-Identifier: MIT
#include "plugin/restore/task/task_images.h"

#include <cerrno>
#include <utility>
#include <vector>

#include "images/files/files.h"
#include "images/files/key.h"

namespace sluice::plugin {

template <>
struct TaskImages::Kind<KfdImage> {
  static constexpr auto kAll = &Checkpoint::kfd;
  static constexpr auto kName = kfd_image_name;
  static constexpr auto kUnpack = unpack_kfd_image;
};

template <>
struct TaskImages::Kind<RenderImage> {
  static constexpr auto kAll = &Checkpoint::render;
  static constexpr auto kName = render_image_name;
  static constexpr auto kUnpack = unpack_render_image;
};

template <>
struct TaskImages::Kind<DmaBufImage> {
  static constexpr auto kAll = &Checkpoint::dmabufs;
  static constexpr auto kName = dmabuf_image_name;
  static constexpr auto kUnpack = unpack_dmabuf_image;
};

TaskImages::TaskImages(const ImageStore& store, const RestorePlan& plan)
    : store_(store), plan_(plan), same_dump_(plan.same_dump), undeclared_sharing_(plan.undeclared_sharing) {}

// A stream's index does not list all images, but says which dump they are of.
Result<void> TaskImages::refuse_with_key(const std::string& name) const {
  if (!store_.keys().any() || plan_.found.index_dump) return {};
  if (const auto& unread = plan_.found.checkpoint.unread) return *unread;
  return Error{
      EKEYREJECTED,
      name +
          " was not there when the restore began; with a key, restore from a whole directory, or from a "
          "stream with its index [SL-R35]"};
}

template <class Image>
Result<std::optional<Image>> TaskImages::find(int id) {
  const Checkpoint& checkpoint = plan_.found.checkpoint;
  if (const Image* found = with_id(checkpoint.*Kind<Image>::kAll, id)) return std::optional<Image>(*found);
  const std::string name = checkpoint.name_of(Kind<Image>::kName(id));
  const auto payload = store_.load(name);
  if (!payload && payload.error().err == ENOENT) return std::optional<Image>();
  if (!payload) return payload.error();
  SLUICE_TRY_ASSIGN(Image late, Kind<Image>::kUnpack(*payload, name, store_.keys()));
  SLUICE_TRY(refuse_with_key(name));
  SLUICE_TRY(undeclared_sharing_.add(name, late));
  SLUICE_TRY(same_dump_.add(name, late.dump_id, late.id));
  return std::optional<Image>(std::move(late));
}

Result<std::optional<DeviceImage>> TaskImages::any(int id) {
  SLUICE_TRY_ASSIGN(auto kfd, find<KfdImage>(id));
  if (kfd) return std::optional<DeviceImage>(std::move(*kfd));
  SLUICE_TRY_ASSIGN(auto render, find<RenderImage>(id));
  if (render) return std::optional<DeviceImage>(std::move(*render));
  SLUICE_TRY_ASSIGN(const auto dmabuf, find<DmaBufImage>(id));
  if (dmabuf) return std::optional<DeviceImage>(*dmabuf);
  return std::optional<DeviceImage>();
}

Result<Answer> restore_without_kfd(const ImageStore& store, int id) {
  std::vector<std::string> names{dmabuf_image_name(id)};
  for (const std::string& name : {kfd_image_name(id), render_image_name(id)}) {
    for (const Lacks lacks : {Lacks::Nothing, Lacks::Parents, Lacks::Replicas})
      names.push_back(partial_name(name, lacks));
  }
  for (const std::string& name : names) {
    const auto payload = store.load(name);
    if (payload)
      return Error{
          ENODEV,
          name + " needs AMD GPUs, but this machine has no /dev/kfd; load the amdgpu driver [SL-R33]"};
    if (payload.error().err != ENOENT) return payload.error();
  }
  return Answer();
}

}  // namespace sluice::plugin
