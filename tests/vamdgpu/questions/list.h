// SPDX-License-Identifier: MIT
// What the lists of questions are written with: ioctl arguments by byte offset (as the tables of the ABI have
// them, so that no header of one kernel is needed for all), and the machine's one GPU.
#pragma once

#include <sys/ioctl.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "questions.h"

namespace vamdgpu::questions {

constexpr std::uint64_t kPage = 4096;

// Reasons that several answers have.
constexpr const char* kWithSvm =
    "Debian builds 6.1 and 6.12 without SVM; the virtual driver has it, so that its restore is tested there, "
    "too";
constexpr const char* kOrdinaryFile =
    "the front's device files and dma-bufs are ordinary files to all but ioctl and mmap";
constexpr const char* kStricter = "stricter than 6.1: what newer kernels refuse fails everywhere";

// "ok" or the errno's name.
std::string name_of(int error);
std::string hex(std::uint64_t value);

// An argument of `bytes` bytes, zero except where set.
class Args {
 public:
  explicit Args(unsigned bytes) : bytes_(bytes) {}
  Args& u32(unsigned at, std::uint64_t value) {
    const auto word = static_cast<std::uint32_t>(value);
    std::memcpy(&data_[at], &word, sizeof(word));
    return *this;
  }
  Args& u64(unsigned at, std::uint64_t value) {
    std::memcpy(&data_[at], &value, sizeof(value));
    return *this;
  }
  Args& pointer(unsigned at, const void* value) { return u64(at, reinterpret_cast<std::uintptr_t>(value)); }
  std::uint32_t get32(unsigned at) const {
    std::uint32_t value;
    std::memcpy(&value, &data_[at], sizeof(value));
    return value;
  }
  std::uint64_t get64(unsigned at) const {
    std::uint64_t value;
    std::memcpy(&value, &data_[at], sizeof(value));
    return value;
  }
  unsigned bytes() const { return bytes_; }
  void* data() { return data_.data(); }

 private:
  unsigned bytes_;
  alignas(8) std::array<unsigned char, 512> data_{};
};

// 0 or errno. The direction bits say both: the drivers look at number and size alone.
int call(int fd, char type, unsigned nr, Args& args);
inline int kfd(int fd, unsigned nr, Args& args) {
  return call(fd, 'K', nr, args);
}
inline int drm(int fd, unsigned nr, Args& args) {
  return call(fd, 'd', nr, args);
}

// The machine's first GPU, from KFD's topology.
struct Gpu {
  std::uint32_t id = 0, minor = 0;
  std::map<std::string, std::uint64_t> properties;
  std::uint64_t property(const char* name) const {
    const auto found = properties.find(name);
    return found == properties.end() ? 0 : found->second;
  }
};
Gpu first_gpu();                  // id 0: there is none
unsigned topology_nodes();        // CPUs and GPUs
unsigned visible_gpus();          // those that no device cgroup hides
int open_render(const Gpu& gpu);  // -1 with errno

class List {
 public:
  List(Linux version, Who who) : version_(version), who_(who) {}
  void ask(const char* question, const std::string& answer, const Answers& expected);
  // The virtual amdgpu answers otherwise, for a reason.
  void ask(const char* question, const std::string& answer, const Answers& expected,
           const Answers& of_virtual, const char* why);
  // For what a question is asked about cannot be made.
  void fail(const std::string& what);
  Linux version() const { return version_; }
  bool since_612() const { return version_ >= Linux::k612; }
  bool since_72() const { return version_ >= Linux::k72; }
  const std::string& lines() const { return lines_; }

 private:
  void note(const char* question, const std::string& answer, const char* expected, const char* why);

  Linux version_;
  Who who_;
  std::string lines_;
};

// The lists.
void ask_without_gpu(List& list);
void ask_kfd_memory(List& list);
void ask_kfd_rest(List& list);
void ask_queues(List& list);
void ask_criu(List& list);
void ask_render_core(List& list);
void ask_render_bos(List& list);
void ask_render_va(List& list);
void ask_render_sharing(List& list);
void ask_render_jobs(List& list);
void ask_render_info(List& list);

}  // namespace vamdgpu::questions
