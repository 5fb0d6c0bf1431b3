// SPDX-License-Identifier: MIT
// Where the images of this run are: files in the host's image directory, or, with --stream, in the hands of
// an image streamer, which sends and takes each file once, through a pipe, and can neither list nor remove
// any.
//
// With streams: what load_image() has read, or could not, is kept, for the tasks that are forked from this
// process; a name is asked for once. An image that is written is in the stream for good: metadata comes last,
// so whoever finds it finds everything. What the streamer does with a stream that ends before is the
// streamer's user's to see: criu's exit status tells whether the checkpoint is one.
//
// Main thread, or a task's only one, but for open_stream() and load_stream(), which lanes may call: the host
// guards its connection, and logs nothing unless that is broken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files.h"
#include "images/sums.h"
#include "pipeline/stage.h"
#include "pipeline/store/pipe_store.h"
#include "plugin/host/map_runs.h"

namespace sluice::plugin {

// Under its name at once, or not at all; synced if `sync`, where that means something. Errors: those of
// write_image(); EPIPE when the streamer has ended.
Result<void> save_image(const std::string& name, std::span<const std::uint8_t> payload, bool sync);
// Payload. Errors: those of read_image(); ECONNRESET when the streamer has ended.
Result<std::vector<std::uint8_t>> load_image(const std::string& name);
// Makes names durable, where images are files.
Result<void> sync_images();

// Names of the KFD images, and of the render files' images, sorted. None for a stream without an index, as
// upstream's plugin makes it: then no image is known before somebody asks for it.
Result<std::vector<std::string>> kfd_images();
Result<std::vector<std::string>> render_images();
// The same of dma-bufs' images, which no stream's index names.
Result<std::vector<std::string>> dmabuf_images();

// ---- streams only

// Our end of a new pipe for that file, to be written (dump) or read (restore). Errors: ENOENT (restore: there
// is none), ECONNRESET.
Result<UniqueFd> open_stream(const std::string& name, Direction direction);
// Why a file has come to its end early: ECONNRESET where the streamer has ended, which sends nothing more;
// EBADMSG where there was no more of it.
Error early_end(const std::string& what);
// Payload of an image that is kept by nobody. Errors: those of load_image(); EBADMSG for one of more than
// `most_bytes` with its frame.
Result<std::vector<std::uint8_t>> load_stream(const std::string& name,
                                              std::uint64_t most_bytes = kLargestImageBytes);
inline constexpr const char* kIndexImage = "amdgpu-sluice-index.img";
// The last image of a dump: all that there is of metadata, the maps of tasks that map GPUs, by pid in their
// own pid namespace, and which dump it is.
struct ImageIndex {
  std::vector<std::string> images;
  std::map<std::uint32_t, std::vector<PluginMap>> maps;
  std::optional<DumpId> dump_id;
};
Result<void> save_index(const ImageIndex& index);
// Of the stream's index; nothing for files, and for a stream that has none. Errors: parse_index()'s, and
// those of reading it.
Result<std::optional<DumpId>> dump_of_stream();
// Errors: EBADMSG.
Result<ImageIndex> parse_index(std::span<const std::uint8_t> payload);
// Errors: ENOENT where the stream's index has no such task, or there is none.
Result<MapRuns> map_runs_of_stream(std::uint32_t pid);

}  // namespace sluice::plugin
