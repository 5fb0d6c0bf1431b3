// SPDX-License-Identifier: MIT
// Where the images of this run are: files in the host's image directory (directory_store.cc) or, with
// --stream, at an image streamer (stream_store.cc). Made once, in init(). Callers never ask which it is: each
// difference is a function here, and one_way() covers the rest.
//
// Main thread, or a task's only thread, except for the calls that lanes may make: load_once(), pages() and
// explain().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "images/files/image_source.h"
#include "images/files/key.h"
#include "images/sums.h"
#include "pipeline/lane.h"
#include "pipeline/stage.h"
#include "pipeline/store/direct_io.h"
#include "pipeline/store/file_runs.h"
#include "pipeline/store/file_set.h"
#include "plugin/host/vma_runs.h"

namespace sluice::plugin {

inline constexpr const char* kIndexImage = "amdgpu-sluice-index.img";
// The last image of a streamed dump: all metadata, the maps of tasks that map GPUs (by pid in their own pid
// namespace), and the dump's id.
struct ImageIndex {
  std::vector<std::string> images;
  std::map<std::uint32_t, std::vector<PluginMap>> maps;
  std::optional<DumpId> dump_id;
};
// Errors: EBADMSG.
Result<ImageIndex> parse_index(std::span<const std::uint8_t> payload, const ImageKeys& keys);

// The stage that reads or writes the pages files of one lane.
struct PagesStage {
  Stage* stage = nullptr;          // the lane's, or `sink`
  const FileSet* files = nullptr;  // the same; null: zeros are transferred like all other bytes
  // Dump: outlives the lane, and renames the files. Null: they have their final names.
  std::unique_ptr<FileSetSink> sink;
};

class ImageStore : public MetadataReader {
 public:
  // The host's choice. Does not look at existing images.
  static std::unique_ptr<ImageStore> of_host();
  // `directory` returns the descriptor, which stays the callee's. Called at each use, in any thread, because
  // in a task the host's has another number.
  static std::unique_ptr<ImageStore> of_directory(std::function<int()> directory);
  static std::unique_ptr<ImageStore> of_stream();
  ImageStore() = default;
  ImageStore(const ImageStore&) = delete;
  ImageStore& operator=(const ImageStore&) = delete;

  // The keys that images are made and read with. Set before the first image, and before any change of
  // namespaces; until then, no key.
  void set_keys(ImageKeys keys) { keys_ = std::move(keys); }
  const ImageKeys& keys() const override { return keys_; }

  // Whether each image passes only once. A dump's image has its final name from the start and can be neither
  // rewritten nor removed. The index comes last, so that it is never incomplete. A restore gets each image
  // once, one at a time, to its end; a request for another waits.
  virtual bool one_way() const = 0;
  // The images' directory, borrowed, if they are files: a checkpoint there may have a parent.
  virtual std::optional<int> directory() const { return std::nullopt; }

  // Saves the image under its name, completely or not at all; synced if `sync`, where that has a meaning.
  // Errors: those of write_image(); EPIPE when the streamer has ended.
  virtual Result<void> save(const std::string& name, std::span<const std::uint8_t> payload, bool sync) = 0;
  // Makes names durable.
  virtual Result<void> sync() = 0;
  // Payload. May be called any number of times. Errors: those of read_image(); ECONNRESET when the streamer
  // has ended.
  Result<std::vector<std::uint8_t>> load(const std::string& name) const override = 0;
  // Payload of an image that only one lane reads. Errors: those of load().
  virtual Result<std::vector<std::uint8_t>> load_once(const std::string& name) = 0;
  // Empty where images cannot be listed: then each is known only when CRIU asks for it.
  Result<std::vector<std::string>> names() const override = 0;

  // One file for each of the lane's layout, in `names`. Errors: those of FileSetSource::open().
  virtual Result<PagesStage> pages(Direction direction, Lane& lane, std::vector<std::string> names,
                                   const FileOptions& options) = 0;
  // A lane's error, or its cause. For a file that ends early: ECONNRESET if the streamer has ended, EBADMSG
  // if the file itself was too short.
  virtual Error explain(Error error) const { return error; }
  // What the user can do when the other end of a pipe has closed.
  virtual const char* remedy_of_lost_end() const { return ""; }

  // ---- dump

  // Removes the images of an earlier dump. With `keep_pages` its pages files stay, and their names are
  // returned. Errors: EINVAL with IoMode::Direct, if it is impossible for such chunks; those of listing and
  // removing.
  virtual Result<std::vector<std::string>> clear(IoMode mode, std::uint64_t chunk_bytes, bool keep_pages) = 0;
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  // A missing image counts as removed.
  virtual Result<void> remove(const std::string& name) = 0;
  // The same on top of any call of this class: allocates nothing, waits for nothing.
  virtual void remove_from_signal(const std::string& name) noexcept = 0;
  // Only where images cannot be listed.
  virtual Result<void> save_index(const ImageIndex& /*index*/) { return {}; }
  // Only where the directory may contain more than images.
  virtual Result<void> save_statistics(const std::string& name, const std::string& text) = 0;

  // ---- restore

  // The index' dump; nothing without an index. Errors: parse_index()'s, and those of reading it.
  virtual Result<std::optional<DumpId>> dump_of_index() { return std::optional<DumpId>(); }
  // For a task, by its pid in its own pid namespace. Errors: those of VmaRuns::read(); ENOENT if there is no
  // index, or no such task in it.
  virtual Result<VmaRuns> vma_runs(std::uint32_t pid) = 0;
  // All images that were known in init(), in words.
  virtual std::string words_of_known() const = 0;

 private:
  ImageKeys keys_;
};

// Payload of an image of the stream, which is not kept. Errors: those of ImageStore::load(); EBADMSG if it
// exceeds `most_bytes` with its frame.
Result<std::vector<std::uint8_t>> load_stream(const std::string& name, std::uint64_t most_bytes);

}  // namespace sluice::plugin
