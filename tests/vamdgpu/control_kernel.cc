// SPDX-License-Identifier: MIT
// The machine in the kernel, looked into through its debugfs files (kernel/debug_abi.h). Every question reads
// a fresh copy. See control_front.h.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <system_error>
#include <vector>

#include "control_front.h"
#include "kernel/debug_abi.h"

namespace vamdgpu {
namespace {

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// A whole file, in memory aligned for the model's structs.
class Copy {
 public:
  explicit Copy(const std::string& path) {
    const File file(path, O_RDONLY);
    words_.resize(kFirstWords);
    while (true) {
      const ssize_t got =
          ::read(file.get(), reinterpret_cast<char*>(words_.data()) + bytes_, words_.size() * 8 - bytes_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw std::system_error(errno, std::generic_category(), path);
      if (got == 0) return;
      bytes_ += static_cast<std::size_t>(got);
      if (bytes_ == words_.size() * 8) words_.resize(words_.size() * 4);
    }
  }
  std::size_t bytes() const { return bytes_; }
  template <typename T>
  const T& as() const {
    return *reinterpret_cast<const T*>(words_.data());
  }

 private:
  // A read that has room for all of it is one moment.
  static constexpr std::size_t kFirstWords = (std::size_t{1} << 20) / 8;
  static_assert(sizeof(vam_debug) < kFirstWords * 8);

  std::vector<std::uint64_t> words_;
  std::size_t bytes_ = 0;
};

class KernelFront : public ControlFront {
 public:
  explicit KernelFront(const std::string& directory) : directory_(directory) {
    debug([](const vam_debug& debug) {
      if (debug.layout != VAM_DEBUG_LAYOUT)
        throw std::system_error(EINVAL, std::generic_category(), "module of another build");
    });
    model(false, [&](const vam_model& model) { config_ = model.config; });
  }

  const vamdgpu_machine_config& config() const override { return config_; }

  void model(bool, const std::function<void(const vam_model&)>& look) const override {
    const Copy copy(directory_ + "/model");
    if (copy.bytes() < sizeof(vam_model) || copy.as<vam_model>().total_bytes != copy.bytes())
      throw std::system_error(EIO, std::generic_category(), directory_ + "/model");
    look(copy.as<vam_model>());
  }
  void debug(const std::function<void(const vam_debug&)>& look) const override {
    const Copy copy(directory_ + "/debug");
    if (copy.bytes() != sizeof(vam_debug))
      throw std::system_error(EINVAL, std::generic_category(), "module of another build");
    look(copy.as<vam_debug>());
  }

  void add_fault(const vam_fault_rule& rule) override {
    char text[VAMDGPU_MAX_COMMAND];
    std::snprintf(text, sizeof text, "fault %s %u %d %d %u %u %u",
                  rule.device == VAM_FILE_KFD ? "kfd" : "render", rule.nr, rule.op, rule.error, rule.skip,
                  rule.times, rule.after);
    command(text);
  }
  void add_fence_fault(const vam_fence_fault& fault) override {
    char text[VAMDGPU_MAX_COMMAND];
    std::snprintf(text, sizeof text, "fence %u %" PRIu64 " %d", fault.gpu, fault.number,
                  fault.fate == VAM_FENCE_HANGS ? 0 : fault.error);
    command(text);
  }
  void release_hung_fences() override { command("release"); }
  void set_engine_rate(std::uint32_t gpu, std::uint64_t bytes_per_s) override {
    command("rate " + std::to_string(gpu) + " " + std::to_string(bytes_per_s));
  }
  void set_userptr_busy(std::uint32_t times) override { command("userptr " + std::to_string(times)); }
  void lose_vram(std::uint32_t gpu, std::uint32_t answers) override {
    command("lose " + std::to_string(gpu) + " " + std::to_string(answers));
  }
  void run_kernels(pid_t pid, vam_waves waves, std::uint32_t stops) override {
    command("waves " + std::to_string(pid) + " " + std::to_string(waves) + " " + std::to_string(stops));
  }
  void clear_faults() override { command("clear"); }
  void clear_trace() override { command("forget"); }

  bool transfer(pid_t pid, std::uint32_t gpu_id, std::uint64_t va, void* bytes, std::size_t size,
                bool write) override {
    const File file(directory_ + "/memory", O_RDWR);
    vamdgpu_memory request{};
    request.pid = pid;
    request.gpu_id = gpu_id;
    request.va = va;
    request.buffer = reinterpret_cast<std::uint64_t>(bytes);
    request.bytes = size;
    request.write = write ? 1 : 0;
    return ::ioctl(file.get(), VAMDGPU_IOC_MEMORY, &request) == 0;
  }

  // Maps of devices are shown as what they are.
  std::optional<DeviceMapping> device_of_mapping(dev_t device, ino_t inode,
                                                 std::uint64_t offset) const override {
    const auto is = [&](const std::string& path) {
      struct stat status;
      return ::stat(path.c_str(), &status) == 0 && status.st_dev == device && status.st_ino == inode;
    };
    if (is("/dev/kfd")) return DeviceMapping{On::Kfd, 0, offset};
    for (std::uint32_t gpu = 0; gpu < config_.num_gpus; ++gpu) {
      const std::uint32_t minor = config_.gpus[gpu].render_minor;
      if (is("/dev/dri/renderD" + std::to_string(minor))) return DeviceMapping{On::Render, minor, offset};
    }
    return std::nullopt;
  }

 private:
  void command(const std::string& text) {
    const File file(directory_ + "/control", O_WRONLY);
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::system_error(errno, std::generic_category(), "virtual amdgpu: " + text);
  }

  std::string directory_;
  vamdgpu_machine_config config_{};
};

}  // namespace

std::unique_ptr<ControlFront> open_kernel_front(const std::string& directory) {
  try {
    return std::make_unique<KernelFront>(directory);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    return nullptr;
  }
}

}  // namespace vamdgpu
