// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <utility>

#include "images/files/files.h"
#include "pipeline/store/direct_io.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {
namespace {

// Images as files of the image directory.
class DirectoryStore final : public ImageStore {
 public:
  explicit DirectoryStore(std::function<int()> directory) : directory_(std::move(directory)) {}

  bool one_way() const override { return false; }
  std::optional<int> directory() const override { return directory_(); }
  Result<void> save(const std::string& name, std::span<const std::uint8_t> payload, bool sync) override {
    return about(Topic::Images, write_image(directory_(), name, payload, sync));
  }
  Result<void> sync() override { return about(Topic::Images, sync_directory(directory_())); }
  Result<std::vector<std::uint8_t>> load(const std::string& name) const override {
    return about(Topic::Images, read_image(directory_(), name));
  }
  Result<std::vector<std::uint8_t>> load_once(const std::string& name) override {
    return read_image(directory_(), name);
  }
  Result<std::vector<std::string>> names() const override {
    return about(Topic::Images, list_names(directory_()));
  }
  Result<PagesStage> pages(Direction direction, Lane& lane, std::vector<std::string> names,
                           const FileOptions& options) override;

  Result<std::vector<std::string>> clear(IoMode mode, std::uint64_t chunk_bytes, bool keep_pages) override {
    if (mode == IoMode::Direct) SLUICE_TRY(about(Topic::Images, check_direct_io(directory_(), chunk_bytes)));
    return about(Topic::Images, remove_plugin_images(directory_(), keep_pages));
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return about(Topic::Images, rename_image(directory_(), from, to));
  }
  Result<void> remove(const std::string& name) override { return remove_image(directory_(), name); }
  void remove_from_signal(const std::string& name) noexcept override {
    (void)::unlinkat(directory_(), name.c_str(), 0);
  }
  Result<void> save_statistics(const std::string& name, const std::string& text) override {
    return write_statistics(directory_(), name, text);
  }

  Result<VmaRuns> vma_runs(std::uint32_t pid) override { return VmaRuns::read(directory_(), pid); }
  std::string words_of_known() const override { return "the images at the beginning"; }

 private:
  std::function<int()> directory_;
};

Result<PagesStage> DirectoryStore::pages(Direction direction, Lane& lane, std::vector<std::string> names,
                                         const FileOptions& options) {
  if (direction == Direction::Dump) {
    auto sink =
        std::make_unique<FileSetSink>(directory_(), std::move(names), lane.layout(), lane.reactor(), options);
    FileSetSink& files = *sink;
    return PagesStage{&files, &files, std::move(sink)};
  }
  SLUICE_TRY_ASSIGN(
      std::unique_ptr<FileSetSource> source,
      FileSetSource::open(directory_(), std::move(names), lane.layout(), lane.reactor(), options));
  FileSetSource& files = lane.own(std::move(source));
  return PagesStage{&files, &files, nullptr};
}

}  // namespace

std::unique_ptr<ImageStore> ImageStore::of_directory(std::function<int()> directory) {
  return std::make_unique<DirectoryStore>(std::move(directory));
}

}  // namespace sluice::plugin
