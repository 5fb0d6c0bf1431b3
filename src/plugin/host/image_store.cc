// SPDX-License-Identifier: MIT
#include "plugin/host/image_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <memory>
#include <string_view>

#include "images/digest.h"
#include "images/files.h"
#include "plugin/host/criu_host.h"
#include "sluice-stream.pb-c.h"
#include "unpack_memory.h"

namespace sluice::plugin {

namespace {

constexpr std::size_t kReadBytes = 64 * kKiB;
constexpr int kEndOfProgramMs = 100;  // from the end of its pipes to that of its socket

// Images of a stream, by name, or why there is none: each is sent once, so nobody asks twice.
std::map<std::string, Result<std::vector<std::uint8_t>>>& kept_images() {
  static std::map<std::string, Result<std::vector<std::uint8_t>>> images;
  return images;
}

// All that comes, to the end: a streamer whose pipe is closed early ends.
Result<std::vector<std::uint8_t>> read_to_end(int fd, const std::string& name, std::uint64_t most_bytes) {
  std::vector<std::uint8_t> bytes;
  for (;;) {
    const std::size_t have = bytes.size();
    if (have > most_bytes) return make_error(EBADMSG, name + " is larger than any image of metadata can be");
    bytes.resize(have + kReadBytes);
    const ssize_t got = TEMP_FAILURE_RETRY(read(fd, &bytes[have], kReadBytes));
    if (got < 0) return make_error(errno, "read " + name + " from the image stream");
    bytes.resize(have + static_cast<std::size_t>(got));
    if (got == 0) return bytes;
  }
}

struct FreeIndex {
  void operator()(StreamIndex* index) const { stream_index__free_unpacked(index, nullptr); }
};

// Empty: the stream has none.
Result<ImageIndex> index_of_stream() {
  const auto payload = load_image(kIndexImage);
  if (!payload && payload.error().err == ENOENT) return ImageIndex();
  if (!payload) return payload.error();
  return parse_index(*payload);
}

Result<std::vector<std::string>> images_like(std::string_view prefix) {
  SLUICE_TRY_ASSIGN(ImageIndex index, index_of_stream());
  keep_images(index.images, prefix);
  return std::move(index.images);
}

// One task of the index; pointers into it live as long as it does.
struct PackedTask {
  PackedTask(std::uint32_t pid, const std::vector<PluginMap>& plugin_maps) : maps(plugin_maps.size()) {
    pointers.reserve(maps.size());
    for (std::size_t i = 0; i < maps.size(); ++i) {
      maps[i] = STREAM_MAP__INIT;
      maps[i].address = plugin_maps[i].address;
      maps[i].offset = plugin_maps[i].offset;
      pointers.push_back(&maps[i]);
    }
    task = STREAM_TASK__INIT;
    task.pid = pid;
    task.n_maps = pointers.size();
    task.maps = pointers.data();
  }
  PackedTask(const PackedTask&) = delete;
  PackedTask& operator=(const PackedTask&) = delete;

  std::vector<StreamMap> maps;
  std::vector<StreamMap*> pointers;
  StreamTask task;
};

}  // namespace

Result<UniqueFd> open_stream(const std::string& name, Direction direction) {
  const std::string what = "open " + name + " of the image stream";  // before there is what could be lost
  const int fd = host_open_stream(name, direction == Direction::Dump);
  if (fd == -ENOENT) return make_error(ENOENT, what);
  if (fd == -ECONNRESET || (fd < 0 && streamer_ends_within(kEndOfProgramMs)))
    return make_error(ECONNRESET, what);
  // Nobody else knows: CRIU answers -1.
  if (fd < 0) return with_remedy(make_error(EIO, what), "; CRIU's lines before this one say why");
  return UniqueFd(fd);
}

Error early_end(const std::string& what) {
  return {streamer_ends_within(kEndOfProgramMs) ? ECONNRESET : EBADMSG, what};
}

Result<void> save_image(const std::string& name, std::span<const std::uint8_t> payload, bool sync) {
  if (!streaming()) return about(Topic::Images, write_image(image_dir_fd(), name, payload, sync));
  SLUICE_TRY_ASSIGN(const UniqueFd pipe, open_stream(name, Direction::Dump));
  return write_framed(pipe.get(), payload, name + " to the image stream");
}

Result<std::vector<std::uint8_t>> load_stream(const std::string& name, std::uint64_t most_bytes) {
  SLUICE_TRY_ASSIGN(const UniqueFd pipe, open_stream(name, Direction::Restore));
  SLUICE_TRY_ASSIGN(std::vector<std::uint8_t> bytes, read_to_end(pipe.get(), name, most_bytes));
  auto payload = unframe(std::move(bytes), name + " of the image stream");
  if (!payload && payload.error().err == EBADMSG) return early_end(payload.error().what);
  return payload;
}

Result<std::vector<std::uint8_t>> load_image(const std::string& name) {
  if (!streaming()) return about(Topic::Images, read_image(image_dir_fd(), name));
  const auto [kept, is_first] = kept_images().try_emplace(name, Error{ENOMEM, "out of memory"});
  if (is_first) kept->second = load_stream(name);  // what it throws is what is kept: no memory
  return kept->second;
}

Result<void> sync_images() {
  return streaming() ? Result<void>() : about(Topic::Images, sync_directory(image_dir_fd()));
}

Result<std::vector<std::string>> kfd_images() {
  return streaming() ? images_like(kKfdPrefix) : about(Topic::Images, list_kfd_images(image_dir_fd()));
}

Result<std::vector<std::string>> render_images() {
  return streaming() ? images_like(kRenderPrefix) : about(Topic::Images, list_render_images(image_dir_fd()));
}

Result<std::vector<std::string>> dmabuf_images() {
  return streaming() ? std::vector<std::string>() : about(Topic::Images, list_dmabuf_images(image_dir_fd()));
}

Result<void> save_index(const ImageIndex& wanted) {
  std::vector<std::string> names = wanted.images;
  std::vector<char*> name_pointers(names.size());
  std::transform(names.begin(), names.end(), name_pointers.begin(),
                 [](std::string& name) { return name.data(); });
  std::list<PackedTask> tasks;
  std::vector<StreamTask*> task_pointers;
  task_pointers.reserve(wanted.maps.size());
  for (const auto& [pid, of_task] : wanted.maps)
    task_pointers.push_back(&tasks.emplace_back(pid, of_task).task);
  StreamIndex index = STREAM_INDEX__INIT;
  index.n_images = name_pointers.size();
  index.images = name_pointers.data();
  index.n_tasks = task_pointers.size();
  index.tasks = task_pointers.data();
  DumpId id = wanted.dump_id.value_or(DumpId{});
  index.has_dump_id = wanted.dump_id ? 1 : 0;
  index.dump_id = {id.size(), id.data()};
  std::vector<std::uint8_t> payload(stream_index__get_packed_size(&index));
  (void)stream_index__pack(&index, payload.data());
  return save_image(kIndexImage, with_digest(std::move(payload), MessageKind::StreamIndex), false);
}

Result<ImageIndex> parse_index(std::span<const std::uint8_t> payload) {
  SLUICE_TRY(require_digest(payload, MessageKind::StreamIndex, kIndexImage));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<StreamIndex, FreeIndex> message(
      stream_index__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  if (!message) return make_error(EBADMSG, std::string(kIndexImage) + " cannot be parsed");
  ImageIndex index;
  index.images.assign(message->images, message->images + message->n_images);
  if (message->has_dump_id != 0) {
    if (message->dump_id.len != sizeof(DumpId))
      return make_error(EBADMSG, std::string(kIndexImage) + " has no dump's id");
    std::copy_n(message->dump_id.data, sizeof(DumpId), index.dump_id.emplace().begin());
  }
  for (std::size_t i = 0; i < message->n_tasks; ++i) {
    const StreamTask& task = *message->tasks[i];
    std::vector<PluginMap>& maps = index.maps[task.pid];
    for (std::size_t j = 0; j < task.n_maps; ++j)
      maps.push_back({task.maps[j]->address, task.maps[j]->offset});
  }
  return index;
}

Result<std::optional<DumpId>> dump_of_stream() {
  if (!streaming()) return std::optional<DumpId>();
  SLUICE_TRY_ASSIGN(const ImageIndex index, index_of_stream());
  return index.dump_id;
}

Result<MapRuns> map_runs_of_stream(std::uint32_t pid) {
  SLUICE_TRY_ASSIGN(const ImageIndex index, index_of_stream());
  const auto maps = index.maps.find(pid);
  if (maps == index.maps.end()) return Error{ENOENT, "the stream does not tell of the task's maps"};
  return MapRuns::of(maps->second);
}

}  // namespace sluice::plugin
