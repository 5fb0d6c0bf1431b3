// SPDX-License-Identifier: MIT
// The host's own images: what CRIU keeps in protobuf, here lines of text, and the arena's bytes. Names begin
// with "host-" and never meet a plugin's. All functions work in a directory fd, or with --stream through the
// streamer, and log what fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::lookalike {

// One descriptor of the task.
struct FdEntry {
  int number = -1;
  int id = 0;  // of its struct file: descriptors of one file share it
  bool cloexec = false;
  std::string fifo;  // path of a FIFO, which no plugin is asked about
};

// One map of a device file.
struct VmaEntry {
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  std::uint64_t pgoff = 0;  // bytes
  int prot = 0;
  int flags = 0;  // open flags of the mapped file
  std::string path;
};

struct Inventory {
  bool has_plugins = false;  // the field exists
  std::vector<std::string> plugins;
};

// 0, or -1 logged. `task`: number in the tree, the root is 0.
int write_tree(int directory, unsigned tasks);
int read_tree(int directory, unsigned* tasks);
int write_fds(int directory, unsigned task, const std::vector<FdEntry>& fds);
int read_fds(int directory, unsigned task, std::vector<FdEntry>* fds);
// Also as CRIU's own mm-<pid>.img, for whoever reads that.
int write_vmas(int directory, unsigned task, int pid, const std::vector<VmaEntry>& vmas);
int read_vmas(int directory, unsigned task, std::vector<VmaEntry>* vmas);
int write_inventory(int directory, const Inventory& inventory);
int read_inventory(int directory, Inventory* inventory);

// Copies [address, address + bytes) of process `pid` into the pages image, in windows of 1 MiB, but for the
// pages that are all zeros: of a subject's memory they are nearly all.
int write_pages(int directory, unsigned task, int pid, std::uint64_t address, std::uint64_t bytes);
// Maps anonymous memory anywhere and reads the pages image into it. nullptr: logged.
void* read_pages(int directory, unsigned task, std::uint64_t* address, std::uint64_t* bytes);

}  // namespace sluice::lookalike
