// SPDX-License-Identifier: MIT
// Surveys of trees that nobody has: what a dump plans from. Every process of the KFD has two GPUs, with
// render minors 128 and 129, under names of its own.
#pragma once

#include <sys/sysmacros.h>
#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kfd/device.h"
#include "kfd/uapi.h"
#include "plugin/dump/survey/survey.h"
#include "support/rng.h"

namespace sluice::test {

struct PlannedBo {
  ino_t inode = 0;
  std::uint64_t offset = 0;  // mmap offset; 0: none
  std::uint32_t render_minor = 128;
  std::uint32_t handle = 0;  // of a render file
  std::uint32_t flags = kfd::kAllocVram;
  bool looks_imported = false;
  bool can_create = true;
  plugin::Ipc ipc = plugin::Ipc::None;
  std::uint64_t bytes = 0x1000;
};

class PlannedTree {
 public:
  static constexpr std::uint32_t kRecordBytes = 80;  // of a BO in private data, as in Linux 6.1

  static std::uint32_t user_gpu_id(std::uint32_t render_minor) { return 0x1000 + render_minor; }
  static std::uint32_t local_gpu_id(std::uint32_t render_minor) { return 0x2000 + render_minor; }

  class File {
   public:
    explicit File(plugin::SurveyedFile& file) : file_(file) {}

    File& bo(const PlannedBo& bo) {
      plugin::SurveyedBo surveyed;
      surveyed.inode = bo.inode;
      surveyed.looks_imported = bo.looks_imported;
      surveyed.can_create = bo.can_create;
      surveyed.ipc = bo.ipc;
      surveyed.handle = bo.handle;
      if (auto* const image = std::get_if<KfdImage>(&file_.image)) {
        surveyed.number = static_cast<std::uint32_t>(image->bos.size());
        surveyed.place = {bo.render_minor, bo.offset};
        BoEntry entry;
        entry.addr = 0x7f0000000000 + 0x1000 * image->bos.size();
        entry.bytes = bo.bytes;
        entry.offset = bo.offset;
        entry.gpu_id = user_gpu_id(bo.render_minor);
        entry.alloc_flags = bo.flags;
        image->bos.push_back(entry);
        add_record(*image);
      } else {
        auto& render = std::get<RenderImage>(file_.image);
        surveyed.number = static_cast<std::uint32_t>(render.bos.size());
        RenderBo entry;
        entry.gem.handle = bo.handle;
        entry.gem.bytes = bo.bytes;
        entry.mmap_offset = bo.offset;
        entry.imports = !bo.can_create;
        render.bos.push_back(entry);
      }
      if (kfd::has_contents(bo.flags)) file_.bos.push_back(std::move(surveyed));
      return *this;
    }
    // The KFD process of file `kfd` uses this render file.
    File& acquired_by(std::size_t kfd) {
      std::get<RenderImage>(file_.image).kfd_acquired = true;
      file_.acquired_by = kfd;
      return *this;
    }
    // As under a driver whose private data nobody knows.
    File& without_records() {
      auto& image = std::get<KfdImage>(file_.image);
      image.bo_record_bytes = 0;
      image.priv_data.assign(image.priv_data.size() + 3, 0xFF);
      return *this;
    }

   private:
    // Of a BO that its GPU maps.
    static void add_record(KfdImage& image) {
      std::vector<std::uint8_t> record(kRecordBytes);
      const auto handle = static_cast<std::uint32_t>(image.bos.size());
      const std::uint32_t address = 0x7f001000;
      if ((image.bos.back().alloc_flags & kfd::kAllocUserptr) != 0)
        std::memcpy(record.data(), &address, sizeof address);
      std::memcpy(record.data() + 8, &handle, sizeof handle);
      std::memcpy(record.data() + 12, &image.bos.back().gpu_id, sizeof(std::uint32_t));
      image.priv_data.insert(image.priv_data.end(), record.begin(), record.end());
    }

    plugin::SurveyedFile& file_;
  };

  // The first of `holders` restores the file.
  File& add_kfd(std::vector<pid_t> holders) {
    KfdImage image;
    for (const std::uint32_t minor : {128U, 129U}) {
      kfd::Node node;
      node.node_id = minor;
      node.drm_render_minor = minor;
      node.gpu_id = user_gpu_id(minor);
      image.topology.nodes.push_back(node);
    }
    image.bo_record_bytes = kRecordBytes;
    image.priv_data.resize(kfd::kProcessRecordBytes + 2 * kfd::kDeviceRecordBytes);
    image.priv_data[0] = 1;
    return add(std::move(image), std::move(holders));
  }
  File& add_render(std::vector<pid_t> holders, std::uint32_t minor = 128) {
    RenderImage image;
    image.minor = minor;
    image.gpu_id = local_gpu_id(minor);
    return add(std::move(image), std::move(holders));
  }
  File& add_alias(std::vector<pid_t> holders, std::size_t of) {
    return add(plugin::KfdAlias{of}, std::move(holders));
  }
  void add_descriptor(ino_t dmabuf) { descriptors_.push_back(dmabuf); }
  void add_map(pid_t pid, std::uint32_t minor, std::uint64_t offset) {
    maps_[pid].push_back({0x5000, offset, kfd::render_node_device(minor), 0x1000});
  }

  // With all that was added; nothing may be added later.
  plugin::MemoryTable& memory() {
    if (std::exchange(listed_, true)) return memory_;
    for (const ino_t dmabuf : descriptors_) memory_.add_descriptor(dmabuf);
    for (std::size_t file = 0; file < files_.size(); ++file) {
      const auto& bos = files_[file]->bos;
      for (std::size_t bo = 0; bo < bos.size(); ++bo) memory_.add({file, bo}, bos[bo].inode, bos[bo].place);
    }
    return memory_;
  }
  plugin::Survey survey() && {
    plugin::Survey survey;
    survey.memory = std::move(memory());
    for (auto& file : files_) survey.files.push_back(std::move(*file));
    survey.maps = std::move(maps_);
    return survey;
  }

 private:
  template <class Image>
  File& add(Image image, std::vector<pid_t> holders) {
    auto file = std::make_unique<plugin::SurveyedFile>();
    file->image = std::move(image);
    file->name = "file " + std::to_string(files_.size());
    file->restorer = {holders.front(), static_cast<std::uint32_t>(holders.front())};
    file->holders = std::move(holders);
    files_.push_back(std::move(file));
    built_.push_back(std::make_unique<File>(*files_.back()));
    return *built_.back();
  }

  std::vector<std::unique_ptr<plugin::SurveyedFile>> files_;
  std::vector<std::unique_ptr<File>> built_;
  std::vector<ino_t> descriptors_;
  std::map<pid_t, std::vector<proc::DeviceMap>> maps_;
  plugin::MemoryTable memory_;
  bool listed_ = false;
};

// Files of three processes with BOs of few memories, some of them shared, some of other GPUs, some with open
// descriptors.
inline PlannedTree random_tree(Rng& random) {
  const auto below = [&random](std::uint64_t end) { return random.next() % end; };
  PlannedTree tree;
  const std::uint64_t memories = 1 + below(6);
  for (std::uint64_t left = 1 + below(5); left > 0; --left) {
    const pid_t pid = 10 + static_cast<pid_t>(below(3));
    const auto minor = static_cast<std::uint32_t>(128 + below(2));
    const bool is_kfd = below(2) == 0;
    PlannedTree::File& file = is_kfd ? tree.add_kfd({pid}) : tree.add_render({pid}, minor);
    for (std::uint64_t bo = below(4); bo > 0; --bo) {
      const std::uint64_t memory = 1 + below(memories);
      file.bo({.inode = memory,
               .offset = is_kfd && memory % 2 == 0 ? memory << 12 : 0,
               .render_minor = static_cast<std::uint32_t>(128 + memory % 2),
               .handle = static_cast<std::uint32_t>(memory),
               .looks_imported = below(2) == 0,
               .can_create = below(4) != 0});
    }
  }
  for (std::uint64_t left = below(3); left > 0; --left) tree.add_descriptor(1 + below(memories));
  return tree;
}

}  // namespace sluice::test
