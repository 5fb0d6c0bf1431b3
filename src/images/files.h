// SPDX-License-Identifier: MIT
// Image files as such: their names and their frame of 8 bytes payload length (host byte order) before the
// payload. Names and frame are upstream's (see docs/image-format.md); the sums files are ours.
//
// Images are untrusted input: a length that does not agree with the file's size, or one beyond the limit, is
// refused before anything is allocated for it.
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

// Memory that open dma-bufs alone have is in the images as the BO of a render file that no task has: under
// the id of a descriptor and this. CRIU counts its ids from 1.
inline constexpr int kFirstMemoryId = 1 << 30;
constexpr bool is_memory_of_dmabuf(int id) {
  return id >= kFirstMemoryId;
}

std::string kfd_image_name(int id);                          // amdgpu-kfd-<id>.img
std::string pages_image_name(int id, std::uint32_t gpu_id);  // amdgpu-pages-<id>-<gpu_id %04x>.img
std::string sums_image_name(int id, std::uint32_t gpu_id);   // amdgpu-sums-<id>-<gpu_id %04x>.img
std::string render_image_name(int id);                       // amdgpu-renderD-<id>.img
// amdgpu-drm-pages-<id>-<minor>-<bo %04x>.img: BO number `bo` of a render file
std::string drm_pages_image_name(int id, std::uint32_t minor, std::uint32_t bo);
std::string dmabuf_image_name(int id);                         // amdgpu-dmabuf_<id>.img
std::string drm_sums_image_name(int id, std::uint32_t minor);  // amdgpu-sums-drm-<id>-<minor>.img

// How the names of a GPU's pages files end, whatever the id.
std::string pages_image_ending(std::uint32_t gpu_id);
// For pages files of an open file whose id is not known yet: others for each `number`.
std::string unnamed_pages_image(unsigned number, std::uint32_t gpu_id);
std::string unnamed_drm_pages_image(unsigned number, std::uint32_t minor, std::uint32_t bo);

// Largest metadata image we read or write. 100 000 BOs need about 40 MB.
inline constexpr std::uint64_t kLargestImageBytes = 1ULL << 30;

// The frame and the payload, to a file or a pipe. Errors: EOVERFLOW for more than kLargestImageBytes; those
// of write, with the name.
Result<void> write_framed(int fd, std::span<const std::uint8_t> payload, const std::string& name);
// The payload of what was read whole. EBADMSG when it is not as long as its frame says.
Result<std::vector<std::uint8_t>> unframe(std::vector<std::uint8_t> bytes, const std::string& name);

// Writes frame and payload under a temporary name (mode 0600), syncs if `sync`, renames. Errors: those of
// create_image_file, write, fdatasync, renameat; nothing is left behind then. The caller syncs the directory.
Result<void> write_image(int dir_fd, const std::string& name, std::span<const std::uint8_t> payload,
                         bool sync);

// The same for statistics: `text` and nothing around it, not synced.
Result<void> write_statistics(int dir_fd, const std::string& name, std::string_view text);

// Payload of an image. Errors: those of open_image_file() and read_whole(), of more than kLargestImageBytes;
// EBADMSG when frame and file size disagree.
Result<std::vector<std::uint8_t>> read_image(int dir_fd, const std::string& name);

// What a pages file of an earlier dump, "...-<gpu_id>.img", is called until it is written over: another name
// for each `number`.
std::string old_pages_image(std::size_t number, const std::string& name);
Result<void> rename_image(int dir_fd, const std::string& from, const std::string& to);

// Removes a file; that it does not exist is fine.
Result<void> remove_image(int dir_fd, const std::string& name);

// Removes every image of this plugin and of upstream's and their temporary files: metadata first, durably,
// of it KFD's. A failure at the first leaves all as it was; after one at other metadata the rest goes all the
// same, contents too and whatever `keep_pages`, for with them the one that stays would look complete.
// With `keep_pages` the pages files stay, which say nothing without their metadata; returns their names.
Result<std::vector<std::string>> remove_plugin_images(int dir_fd, bool keep_pages);

// Leaves of `names` those of images with this prefix, exactly as they are called above, and sorts them. Names
// come from a directory or a stream that others may have filled.
void keep_images(std::vector<std::string>& names, std::string_view prefix);

// Names of all that is in the directory, in no order. Errors: those of open and readdir.
Result<std::vector<std::string>> list_names(int dir_fd);
// Of these, the names of KFD images, of render files' and of dma-bufs', sorted. Only what is called exactly
// so.
Result<std::vector<std::string>> list_kfd_images(int dir_fd);
Result<std::vector<std::string>> list_render_images(int dir_fd);
Result<std::vector<std::string>> list_dmabuf_images(int dir_fd);
// Leaves of `names` those of statistics, and sorts them.
void keep_stats(std::vector<std::string>& names);
// CRIU's file id in the name of such an image.
std::optional<int> id_of_image(std::string_view name);
// Of `names` those of pages and of sums, sorted, each with the name of the metadata image whose contents it
// has.
std::vector<std::pair<std::string, std::string>> contents_among(const std::vector<std::string>& names);

// Makes renames and removals in the directory durable.
Result<void> sync_directory(int dir_fd);

}  // namespace sluice
