// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string_view>

#include "base/format.h"
#include "images/files/digest.h"
#include "images/files/files.h"
#include "pipeline/store/pipe_store.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"
#include "repeated.h"
#include "sluice-stream.pb-c.h"
#include "unpack_memory.h"

namespace sluice::plugin {

namespace {

constexpr std::size_t kReadBytes = 64 * kKiB;
constexpr int kEndOfProgramMs = 100;  // from the end of its pipes to the end of its socket

// Everything to the end: a streamer whose pipe is closed early exits.
Result<std::vector<std::uint8_t>> read_to_end(int fd, const std::string& name, std::uint64_t most_bytes) {
  std::vector<std::uint8_t> bytes;
  for (;;) {
    const std::size_t have = bytes.size();
    if (have > most_bytes)
      return Error{
          EBADMSG,
          name + " of the stream is too large for an image of metadata; use another checkpoint [SL-I25]"};
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

// Our end of a new pipe for that file, to write (dump) or read (restore). Any thread. Errors: ENOENT
// (restore: no such file), ECONNRESET.
Result<UniqueFd> open_stream(const std::string& name, Direction direction) {
  const std::string what = "open " + name + " of the image stream";  // before there is a descriptor to lose
  const int fd = host_open_stream(name, direction == Direction::Dump);
  if (fd == -ENOENT) return make_error(ENOENT, what);
  if (fd == -ECONNRESET || (fd < 0 && streamer_ends_within(kEndOfProgramMs)))
    return make_error(ECONNRESET, what);
  // The reason is unknown here: CRIU returns -1.
  if (fd < 0) return with_remedy(make_error(EIO, what), "; see CRIU's lines before this one [SL-H24]");
  return UniqueFd(fd);
}

Error early_end(const std::string& what) {
  return {streamer_ends_within(kEndOfProgramMs) ? ECONNRESET : EBADMSG, what};
}

std::vector<std::uint8_t> pack_index(const ImageIndex& wanted) {
  StreamIndex index = STREAM_INDEX__INIT;
  std::vector<char*> images = pointers_to(wanted.images);
  index.n_images = images.size();
  index.images = images.data();
  Repeated<StreamTask> tasks(wanted.maps.size());
  std::vector<Repeated<StreamMap>> maps;
  for (const auto& [pid, of_task] : wanted.maps) {
    StreamTask& task = tasks.add(STREAM_TASK__INIT);
    task.pid = pid;
    Repeated<StreamMap>& its_maps = maps.emplace_back(of_task.size());
    for (const PluginMap& map : of_task) {
      StreamMap& stored = its_maps.add(STREAM_MAP__INIT);
      stored.address = map.address;
      stored.offset = map.offset;
    }
    its_maps.put(task.n_maps, task.maps);
  }
  tasks.put(index.n_tasks, index.tasks);
  DumpId id = wanted.dump_id.value_or(DumpId{});
  index.has_dump_id = wanted.dump_id ? 1 : 0;
  index.dump_id = {id.size(), id.data()};
  std::vector<std::uint8_t> payload(stream_index__get_packed_size(&index));
  (void)stream_index__pack(&index, payload.data());
  return payload;
}

// Images at an image streamer, which sends and accepts each file once, through a pipe, and can neither list
// nor remove any. What it does with a stream that ends early is the user's concern: criu's exit status tells
// whether the checkpoint is valid.
//
// The host guards its connection, and logs nothing unless it is broken, so lanes may open pipes.
class StreamStore final : public ImageStore {
 public:
  bool one_way() const override { return true; }
  Result<void> save(const std::string& name, std::span<const std::uint8_t> payload, bool /*sync*/) override {
    SLUICE_TRY_ASSIGN(const UniqueFd pipe, open_stream(name, Direction::Dump));
    return write_framed(pipe.get(), payload, name + " to the image stream");
  }
  Result<void> sync() override { return {}; }
  Result<std::vector<std::uint8_t>> load(const std::string& name) const override {
    const auto [kept, is_first] = kept_.try_emplace(name, Error{ENOMEM, "out of memory"});
    if (is_first) kept->second = load_stream(name, kLargestImageBytes);  // if it throws, "no memory" is kept
    return kept->second;
  }
  Result<std::vector<std::uint8_t>> load_once(const std::string& name) override {
    return load_stream(name, kLargestImageBytes);
  }
  // From the index, which does not list images of dma-bufs.
  Result<std::vector<std::string>> names() const override {
    SLUICE_TRY_ASSIGN(ImageIndex all, index());
    return std::move(all.images);
  }
  Result<PagesStage> pages(Direction direction, Lane& lane, std::vector<std::string> names,
                           const FileOptions& /*options*/) override {
    const auto open = [direction](const std::string& name) { return open_stream(name, direction); };
    auto pipe = std::make_unique<PipeStore>(direction, open, std::move(names), lane.layout(), lane.reactor());
    return PagesStage{&lane.own(std::move(pipe)), nullptr, nullptr};
  }
  Error explain(Error error) const override { return error.err == ENODATA ? early_end(error.what) : error; }
  const char* remedy_of_lost_end() const override {
    return "; the image streamer has ended: see its messages, and those of what reads from it or writes to "
           "it [SL-H23]";
  }

  // There is never anything to remove.
  Result<std::vector<std::string>> clear(IoMode, std::uint64_t, bool) override {
    return std::vector<std::string>();
  }
  Result<void> rename(const std::string&, const std::string&) override { return {}; }
  Result<void> remove(const std::string&) override { return {}; }
  void remove_from_signal(const std::string&) noexcept override {}
  Result<void> save_index(const ImageIndex& index) override {
    return save(kIndexImage, with_digest(pack_index(index), MessageKind::StreamIndex, keys()), false);
  }
  // Nothing is written to the local disk: only the log has them.
  Result<void> save_statistics(const std::string&, const std::string&) override { return {}; }

  Result<std::optional<DumpId>> dump_of_index() override {
    SLUICE_TRY_ASSIGN(const ImageIndex all, index());
    return all.dump_id;
  }
  Result<VmaRuns> vma_runs(std::uint32_t pid) override {
    SLUICE_TRY_ASSIGN(const ImageIndex all, index());
    const auto maps = all.maps.find(pid);
    if (maps == all.maps.end()) return make_error(ENOENT, "find the task's maps in the image stream");
    return VmaRuns::of(maps->second);
  }
  std::string words_of_known() const override {
    return std::string("the images that ") + kIndexImage + " names";
  }

 private:
  // Empty: the stream has none, as with upstream's plugin.
  Result<ImageIndex> index() const {
    const auto payload = load(kIndexImage);
    if (!payload && payload.error().err == ENOENT) return ImageIndex();
    if (!payload) return payload.error();
    return parse_index(*payload, keys());
  }

  // By name, or the reason why there is none, also for tasks forked from this process: each image is sent
  // only once.
  mutable std::map<std::string, Result<std::vector<std::uint8_t>>> kept_;
};

}  // namespace

std::unique_ptr<ImageStore> ImageStore::of_stream() {
  return std::make_unique<StreamStore>();
}

Result<std::vector<std::uint8_t>> load_stream(const std::string& name, std::uint64_t most_bytes) {
  SLUICE_TRY_ASSIGN(const UniqueFd pipe, open_stream(name, Direction::Restore));
  SLUICE_TRY_ASSIGN(std::vector<std::uint8_t> bytes, read_to_end(pipe.get(), name, most_bytes));
  auto payload = unframe(std::move(bytes), name + " of the image stream");
  if (!payload && payload.error().err == EBADMSG) return early_end(payload.error().what);
  return payload;
}

Result<ImageIndex> parse_index(std::span<const std::uint8_t> payload, const ImageKeys& keys) {
  SLUICE_TRY(require_digest(payload, MessageKind::StreamIndex, kIndexImage, keys));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<StreamIndex, FreeIndex> message(
      stream_index__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  if (!message)
    return Error{EBADMSG,
                 formatted("{} cannot be parsed: the stream is damaged; use another checkpoint [SL-I26]",
                           kIndexImage)};
  ImageIndex index;
  index.images.assign(message->images, message->images + message->n_images);
  if (message->has_dump_id != 0) {
    if (message->dump_id.len != sizeof(DumpId))
      return Error{EBADMSG,
                   formatted("{} has no id of a dump: the stream is damaged; use another checkpoint [SL-I27]",
                             kIndexImage)};
    std::copy_n(message->dump_id.data, sizeof(DumpId), index.dump_id.emplace().begin());
  }
  for (const StreamTask* const task : std::span(message->tasks, message->n_tasks)) {
    std::vector<PluginMap>& maps = index.maps[task->pid];
    for (const StreamMap* const map : std::span(task->maps, task->n_maps))
      maps.push_back({map->address, map->offset});
  }
  return index;
}

}  // namespace sluice::plugin
