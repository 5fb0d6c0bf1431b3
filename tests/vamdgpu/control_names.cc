// SPDX-License-Identifier: MIT
// Names of ioctls, for traces and messages. See control.h.
#include <iterator>

#include "control.h"
#include "model/model.h"

namespace vamdgpu {
namespace {

struct Names {
  std::uint32_t nr;
  const char* name;
};

constexpr Names kKfdNames[] = {
    {VAM_KFD_GET_VERSION, "GET_VERSION"},
    {VAM_KFD_CREATE_QUEUE, "CREATE_QUEUE"},
    {VAM_KFD_DESTROY_QUEUE, "DESTROY_QUEUE"},
    {VAM_KFD_SET_MEMORY_POLICY, "SET_MEMORY_POLICY"},
    {VAM_KFD_GET_CLOCK_COUNTERS, "GET_CLOCK_COUNTERS"},
    {VAM_KFD_GET_PROCESS_APERTURES, "GET_PROCESS_APERTURES"},
    {VAM_KFD_UPDATE_QUEUE, "UPDATE_QUEUE"},
    {VAM_KFD_CREATE_EVENT, "CREATE_EVENT"},
    {VAM_KFD_DESTROY_EVENT, "DESTROY_EVENT"},
    {VAM_KFD_SET_EVENT, "SET_EVENT"},
    {VAM_KFD_RESET_EVENT, "RESET_EVENT"},
    {VAM_KFD_WAIT_EVENTS, "WAIT_EVENTS"},
    {VAM_KFD_SET_SCRATCH_BACKING_VA, "SET_SCRATCH_BACKING_VA"},
    {VAM_KFD_GET_TILE_CONFIG, "GET_TILE_CONFIG"},
    {VAM_KFD_SET_TRAP_HANDLER, "SET_TRAP_HANDLER"},
    {VAM_KFD_GET_PROCESS_APERTURES_NEW, "GET_PROCESS_APERTURES_NEW"},
    {VAM_KFD_ACQUIRE_VM, "ACQUIRE_VM"},
    {VAM_KFD_ALLOC_MEMORY, "ALLOC_MEMORY_OF_GPU"},
    {VAM_KFD_FREE_MEMORY, "FREE_MEMORY_OF_GPU"},
    {VAM_KFD_MAP_MEMORY, "MAP_MEMORY_TO_GPU"},
    {VAM_KFD_UNMAP_MEMORY, "UNMAP_MEMORY_FROM_GPU"},
    {VAM_KFD_GET_DMABUF_INFO, "GET_DMABUF_INFO"},
    {VAM_KFD_IMPORT_DMABUF, "IMPORT_DMABUF"},
    {VAM_KFD_SVM, "SVM"},
    {VAM_KFD_SET_XNACK_MODE, "SET_XNACK_MODE"},
    {VAM_KFD_AVAILABLE_MEMORY, "AVAILABLE_MEMORY"},
    {VAM_KFD_EXPORT_DMABUF, "EXPORT_DMABUF"},
    {VAM_KFD_IPC_IMPORT_HANDLE, "IPC_IMPORT_HANDLE"},
    {VAM_KFD_IPC_EXPORT_HANDLE, "IPC_EXPORT_HANDLE"},
    {VAM_KFD_RUNTIME_ENABLE, "RUNTIME_ENABLE"},
};

constexpr const char* kCriuNames[] = {"PROCESS_INFO", "CHECKPOINT", "UNPAUSE", "RESTORE", "RESUME"};

constexpr Names kDrmNames[] = {
    {VAM_DRM_VERSION, "VERSION"},
    {VAM_DRM_GET_CLIENT, "GET_CLIENT"},
    {VAM_DRM_GEM_CLOSE, "GEM_CLOSE"},
    {VAM_DRM_GET_CAP, "GET_CAP"},
    {VAM_DRM_PRIME_HANDLE_TO_FD, "PRIME_HANDLE_TO_FD"},
    {VAM_DRM_PRIME_FD_TO_HANDLE, "PRIME_FD_TO_HANDLE"},
    {VAM_DRM_GEM_CREATE, "GEM_CREATE"},
    {VAM_DRM_GEM_MMAP, "GEM_MMAP"},
    {VAM_DRM_CTX, "CTX"},
    {VAM_DRM_BO_LIST, "BO_LIST"},
    {VAM_DRM_CS, "CS"},
    {VAM_DRM_INFO, "INFO"},
    {VAM_DRM_GEM_METADATA, "GEM_METADATA"},
    {VAM_DRM_GEM_WAIT_IDLE, "GEM_WAIT_IDLE"},
    {VAM_DRM_GEM_VA, "GEM_VA"},
    {VAM_DRM_WAIT_CS, "WAIT_CS"},
    {VAM_DRM_GEM_OP, "GEM_OP"},
    {VAM_DRM_GEM_USERPTR, "GEM_USERPTR"},
    {VAM_DRM_WAIT_FENCES, "WAIT_FENCES"},
    {VAM_DRM_FENCE_TO_HANDLE, "FENCE_TO_HANDLE"},
    {VAM_DRM_GEM_LIST_HANDLES, "GEM_LIST_HANDLES"},
    {VAM_DRM_SYNCOBJ_CREATE, "SYNCOBJ_CREATE"},
    {VAM_DRM_SYNCOBJ_DESTROY, "SYNCOBJ_DESTROY"},
    {VAM_DRM_SYNCOBJ_HANDLE_TO_FD, "SYNCOBJ_HANDLE_TO_FD"},
    {VAM_DRM_SYNCOBJ_FD_TO_HANDLE, "SYNCOBJ_FD_TO_HANDLE"},
    {VAM_DRM_SYNCOBJ_WAIT, "SYNCOBJ_WAIT"},
    {VAM_DRM_SYNCOBJ_EVENTFD, "SYNCOBJ_EVENTFD"},
    {VAM_DRM_GEM_CHANGE_HANDLE, "GEM_CHANGE_HANDLE"},
};

}  // namespace

std::string call_name(On device, std::uint32_t nr, std::uint32_t op) {
  if (device == On::Kfd && nr == VAM_KFD_CRIU_OP)
    return std::string("KFD_CRIU_OP:") + (op < std::size(kCriuNames) ? kCriuNames[op] : "?");
  if (device == On::Kfd) {
    for (const Names& known : kKfdNames) {
      if (known.nr == nr) return std::string("KFD_") + known.name;
    }
    return "KFD_" + std::to_string(nr);
  }
  for (const Names& known : kDrmNames) {
    if (known.nr == nr) return std::string("DRM_") + known.name;
  }
  return "DRM_" + std::to_string(nr);
}

}  // namespace vamdgpu
