// SPDX-License-Identifier: MIT
// What kind of GPU process the subject shall be, and its command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace sluice::subject {

// Which sizes the BOs of a GPU have. Count: `bo_count` of 4 KiB in VRAM, over all GPUs. One: a single BO of
// `one_bo_bytes` in VRAM of the first GPU, and nothing else.
enum class BoSizes { Mixed, Small, Many, Huge, Count, One };

// Who allocates the BO that is shared by dma-buf; Ipc: the KFD, and it is shared by a handle, with the ioctls
// of AMD's out-of-tree driver.
enum class Share { None, Kfd, Gem, Ipc };

// A BO of a render file that no dump can save.
enum class OddGem { None, AlwaysValid, Encrypted, Userptr };

struct Options {
  std::uint32_t gpus = 0;                // 0 = all
  std::uint64_t vram_bytes = 64 * kMiB;  // per GPU
  std::uint64_t gtt_bytes = 4 * kMiB;    // per GPU
  std::uint32_t zero_percent = 20;       // share of units that are zero
  std::uint64_t seed = 1;
  bool replicas = false;  // the nth BO of a kind and size has the same data on each GPU
  BoSizes sizes = BoSizes::Mixed;
  std::uint32_t bo_count = 0;
  std::uint64_t one_bo_bytes = 0;
  bool events = true;
  bool queues = true;
  bool userptrs = true;
  bool svm = false;            // SVM ranges with attributes
  bool svm_context = false;    // context save areas of compute queues are SVM ranges instead of BOs
  bool empty_context = false;  // they are BOs in VRAM, and nothing was ever written there
  bool waiter = false;         // a second thread waits for an event without end
  bool gws = false;            // compute queues have the GPU's global wave sync
  bool pm4 = false;            // each GPU has a third queue, of PM4 packets
  bool xnack = false;          // retry faults are on
  std::uint32_t priority = 7;  // of queues
  std::uint32_t cu_mask = 0;   // of compute queues, for each 32 compute units; 0: none is set
  bool run_queues = false;     // queues get packets; needs a driver that runs them
  bool hsakmt_shm = false;     // libhsakmt's shared memory and semaphore

  bool second_kfd = false;           // opens /dev/kfd a second time
  bool dup_kfd = false;              // dups the first descriptor
  bool second_render = false;        // each GPU has another render file, opened before the acquired one
  bool render_first = false;         // render nodes are opened before /dev/kfd
  bool fork_child = false;           // a child holds all descriptors
  std::uint32_t threaded_child = 0;  // a child without descriptors has so many threads besides its first
  bool mapping_child = false;        // a child has all maps of BOs and no descriptors
  bool close_render = false;         // acquired render files are closed after mapping
  bool close_kfd = false;            // and so are all of /dev/kfd
  bool dmabuf_fd = false;            // a dma-buf is open, of memory that nothing else has
  bool map_dmabuf = false;           // and its BO is mapped through it
  bool inherited_kfd = false;        // a file of /dev/kfd was opened by a process that is gone
  bool borrowed_kfd = false;         // or by a child, which has it open still
  // BOs that are allocated through each render file, by the handles they get, ascending.
  std::vector<std::uint32_t> gem_handles;
  std::uint64_t gem_bytes = 0;  // of each of these BOs; 0: sizes by turns
  bool gem_high = false;        // the GPU maps them in the upper half of its address space

  OddGem odd_gem = OddGem::None;  // on the first GPU

  Share share = Share::None;
  bool lend_render = false;       // keeps a descriptor of the first GPU's render file for others
  std::uint32_t render_from = 0;  // pid of such a process, whose file it uses as its own

  std::string import_ipc;           // another process's answer to the command ipc-handle
  std::uint32_t import_from = 0;    // pid of a process that keeps its shared BO's dma-buf for others
  bool share_fd = false;            // keeps one itself
  bool share_fd_read_only = false;  // that may only be read
  bool share_alone = false;         // no render file has it
  bool kfd_import = false;          // imports it into its KFD, too
  // Instead: where the first render file that has it maps it, and the KFD itself does not.
  bool kfd_import_unmapped = false;

  std::uint64_t cache_bytes = 0;  // per GPU, given back on SIGUSR1
  std::string cache_told;         // the FIFO that is told

  bool render_only = false;  // no /dev/kfd
  bool plain = false;        // no device
  bool kfd_only = false;     // no device but an open /dev/kfd

  std::string control;  // "" = standard input and output, else a directory with FIFOs "in" and "out"
};

// Nothing: the command line is wrong, and standard error has been told how it should be.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace sluice::subject
