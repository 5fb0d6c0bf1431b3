// SPDX-License-Identifier: MIT
// Image files as such: their names, and their frame, 8 bytes of payload length (host byte order) before the
// payload. Names and frame are upstream's (see docs/reference/image-format.md); the sums files are ours.
//
// Images are untrusted input: a length that contradicts the file's size, or exceeds the limit, is refused
// before anything is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sluice {

inline constexpr std::string_view kKfdPrefix = "amdgpu-kfd-";
inline constexpr std::string_view kRenderPrefix = "amdgpu-renderD-";
inline constexpr std::string_view kDmaBufPrefix = "amdgpu-dmabuf_";
// Prefix of a pre-dump's files, and its last file (images/chain/predump_mark.h).
inline constexpr std::string_view kPreDumpPrefix = "amdgpu-predump-";
inline constexpr const char* kPreDumpMark = "amdgpu-predump.img";

// Memory that only open dma-bufs hold is saved as the BO of a render file that no task has: its id is a
// descriptor's plus this. CRIU's ids begin at 1.
inline constexpr int kFirstMemoryId = 1 << 30;
constexpr bool is_memory_of_dmabuf(int id) {
  return id >= kFirstMemoryId;
}

// What the files of a checkpoint lack. They have other names then, so that only readers that know these open
// them: a prefix replaces "amdgpu-pages-", or "amdgpu-" of a drm-pages file and of metadata.
enum class Lacks : std::uint8_t {
  Nothing,
  Parents,   // "amdgpu-delta-": what the parent has, and perhaps what other files of the dump have
  Replicas,  // "amdgpu-replica-": what other files of the dump have
};

std::string kfd_image_name(int id);  // amdgpu-kfd-<id>.img
// amdgpu-pages-<id>-<gpu_id %04x>.img
std::string pages_image_name(int id, std::uint32_t gpu_id, Lacks lacks = Lacks::Nothing);
std::string sums_image_name(int id, std::uint32_t gpu_id);  // amdgpu-sums-<id>-<gpu_id %04x>.img
std::string render_image_name(int id);                      // amdgpu-renderD-<id>.img
// amdgpu-drm-pages-<id>-<minor>-<bo %04x>.img: BO number `bo` of a render file; "drm-" follows the prefix of
// a partial one
std::string drm_pages_image_name(int id, std::uint32_t minor, std::uint32_t bo, Lacks lacks = Lacks::Nothing);
std::string dmabuf_image_name(int id);                         // amdgpu-dmabuf_<id>.img
std::string drm_sums_image_name(int id, std::uint32_t minor);  // amdgpu-sums-drm-<id>-<minor>.img

// The pre-dump's name, "amdgpu-predump-...", for a dump's file "amdgpu-...": no restore opens it. The id is a
// number of the pre-dump's, because no file has CRIU's yet.
std::string predump_name(std::string_view dump_name);

// The name of a KFD's or render file's metadata, "amdgpu-delta-..." or "amdgpu-replica-...", in a checkpoint
// with partial files. Upstream's plugin and ours up to 0.2 do not open it, so they refuse the checkpoint
// before there is memory. Some of upstream's would find missing contents too late to fail. `name`: as in a
// complete checkpoint.
std::string partial_name(std::string_view name, Lacks lacks);
// The other way; nothing for any other name.
std::optional<std::string> complete_name(std::string_view partial_name);
// What the contents files with these names lack.
Lacks lacks_among(const std::vector<std::string>& names);

// The end of the names of a GPU's pages files, whatever the id.
std::string pages_image_ending(std::uint32_t gpu_id);
// For pages files of an open file whose id is unknown yet: different names for each `number`.
std::string unnamed_pages_image(unsigned number, std::uint32_t gpu_id);
std::string unnamed_drm_pages_image(unsigned number, std::uint32_t minor, std::uint32_t bo);

// Largest metadata image we read or write. 100 000 BOs need about 40 MB.
inline constexpr std::uint64_t kLargestImageBytes = 1ULL << 30;

// Writes frame and payload to a file or a pipe. Errors: EOVERFLOW for more than kLargestImageBytes; those of
// write, with the name.
Result<void> write_framed(int fd, std::span<const std::uint8_t> payload, const std::string& name);
// The payload of a complete file. EBADMSG if its length differs from the frame's.
Result<std::vector<std::uint8_t>> unframe(std::vector<std::uint8_t> bytes, const std::string& name);

// Writes frame and payload under a temporary name (mode 0600), syncs if `sync`, renames. Errors: those of
// create_image_file, write, fdatasync, renameat; then nothing is left behind. The caller syncs the directory.
Result<void> write_image(int dir_fd, const std::string& name, std::span<const std::uint8_t> payload,
                         bool sync);

// The same for statistics: only `text`, not synced.
Result<void> write_statistics(int dir_fd, const std::string& name, std::string_view text);

// Payload of an image. Errors: those of open_image_file(); those of read_whole(), with a limit of
// kLargestImageBytes; EBADMSG if frame and file size disagree.
Result<std::vector<std::uint8_t>> read_image(int dir_fd, const std::string& name);

// The name of an earlier dump's pages file, "...-<gpu_id>.img", until it is overwritten: different for each
// `number`.
std::string old_pages_image(std::size_t number, const std::string& name);
Result<void> rename_image(int dir_fd, const std::string& from, const std::string& to);

// Removes a file; a missing one is no error.
Result<void> remove_image(int dir_fd, const std::string& name);

// Removes all images of this plugin and of upstream's, and their temporary files: metadata first, durably,
// and KFD's before the rest. If the first removal fails, everything stays as it was. After a failure at other
// metadata the rest is still removed, including contents whatever `keep_pages`, because with them the
// remaining one would look complete. With `keep_pages` the pages files stay, which mean nothing without
// metadata; returns their names.
Result<std::vector<std::string>> remove_plugin_images(int dir_fd, bool keep_pages);

// Whether it has the name of an image of a KFD, a render file or a dma-buf, or of a pre-dump's mark.
bool is_metadata(std::string_view name);

// Keeps those of `names` that are exactly images with this prefix, in a complete checkpoint or as
// partial_name(), and sorts them. Names come from a directory or a stream that others may have filled.
void keep_images(std::vector<std::string>& names, std::string_view prefix);

// All names in the directory, in no order. Errors: those of open and readdir.
Result<std::vector<std::string>> list_names(int dir_fd);
// Of these, the names of images of KFDs, render files and dma-bufs, as keep_images() keeps them.
Result<std::vector<std::string>> list_kfd_images(int dir_fd);
Result<std::vector<std::string>> list_render_images(int dir_fd);
// Keeps the names of statistics, and sorts them.
void keep_stats(std::vector<std::string>& names);
// CRIU's file id in such an image's name.
std::optional<int> id_of_image(std::string_view name);
// The pages and sums files among `names`, sorted, each with the name of its metadata image in a complete
// checkpoint.
std::vector<std::pair<std::string, std::string>> contents_among(const std::vector<std::string>& names);

// Makes renames and removals in the directory durable.
Result<void> sync_directory(int dir_fd);

}  // namespace sluice
