// SPDX-License-Identifier: MIT
// /dev/kfd of AMD's out-of-tree driver: memory that processes share by an IPC handle, with the driver's
// errnos, and what that driver lacks.
#include <array>

#include "device_kit.h"

namespace vamdgpu::tests {
namespace {

constexpr std::uint64_t kVa = 0x7f1000000000;
constexpr std::uint64_t kBytes = 8192;
constexpr std::uint32_t kFlags = 7;

using Handle = std::array<std::uint32_t, 4>;

struct ImportArgs {
  std::uint64_t handle, va, offset;
  Handle share;
  std::uint32_t gpu_id, flags;
};
struct ExportArgs {
  std::uint64_t handle;
  Handle share;
  std::uint32_t gpu_id, flags;
};

int export_bo(int kfd, std::uint32_t gpu_id, std::uint64_t handle, Handle* share) {
  ExportArgs args{handle, {}, gpu_id, kFlags};
  const int error = call(kfd, _IOWR('K', 0x81, ExportArgs), &args);
  *share = args.share;
  return error;
}

int import_bo(int kfd, std::uint32_t gpu_id, const Handle& share, ImportArgs* args) {
  *args = {0, kVa, 0, share, gpu_id, 0};
  return call(kfd, _IOWR('K', 0x80, ImportArgs), args);
}

class IpcDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    control_ = machine();
    ASSERT_NE(control_, nullptr) << "not on a virtual machine";
    for (unsigned gpu = 0; gpu < control_->config().num_gpus; ++gpu)
      ids_.push_back(control_->config().gpus[gpu].gpu_id);
  }
  static void apart(const std::function<void()>& body) { EXPECT_EQ(in_child(body), 0); }
  bool is_oldest() const { return control_->config().kfd_minor_version == 11; }

  std::unique_ptr<Control> control_;
  std::vector<std::uint32_t> ids_;
};

// A KFD process with the VM of the first GPU, and a BO there.
struct Process {
  explicit Process(const Control& control, std::uint32_t gpu_id)
      : kfd(open_kfd()), render(open_render(control, 0)) {
    ready = acquire_vm(kfd.get(), render.get(), gpu_id) == 0;
  }
  std::uint32_t* map(std::uint64_t offset) const {
    void* const at =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, render.get(), static_cast<off_t>(offset));
    return at == MAP_FAILED ? nullptr : static_cast<std::uint32_t*>(at);
  }

  Fd kfd, render;
  bool ready = false;
};

TEST_F(IpcDevice, AHandleFindsTheMemoryForAsLongAsAProcessHasIt) {
  apart([&] {
    int told[2], seen[2];
    ASSERT_EQ(::pipe(told), 0);
    ASSERT_EQ(::pipe(seen), 0);
    const pid_t exporter = ::fork();
    if (exporter == 0) {
      const Process own(*control_, ids_[0]);
      KfdBo bo;
      Handle share{};
      std::uint32_t* const word =
          alloc(own.kfd.get(), ids_[0], kVa, kBytes, kVram, &bo) == 0 ? own.map(bo.offset) : nullptr;
      if (word != nullptr) *word = 4711;
      const int error = export_bo(own.kfd.get(), ids_[0], bo.handle, &share);
      char byte = 0;
      const bool done = word != nullptr && error == 0 &&
                        ::write(told[1], share.data(), sizeof share) == sizeof share &&
                        ::read(seen[0], &byte, 1) == 1 && *word == 815;
      ::_exit(done ? 0 : 1);
    }
    ::close(told[1]);
    Handle share{};
    ASSERT_EQ(::read(told[0], share.data(), sizeof share), static_cast<ssize_t>(sizeof share));
    const Process own(*control_, ids_[0]);
    ASSERT_TRUE(own.ready);
    ImportArgs imported{}, again{};
    ASSERT_EQ(import_bo(own.kfd.get(), ids_[0], share, &imported), 0);
    EXPECT_EQ(imported.flags, kFlags);
    std::uint32_t* const word = own.map(imported.offset);
    ASSERT_NE(word, nullptr);
    EXPECT_EQ(*word, 4711U);
    *word = 815;
    ASSERT_EQ(::write(seen[1], "x", 1), 1);
    int status = 0;
    ASSERT_EQ(::waitpid(exporter, &status, 0), exporter);
    EXPECT_EQ(status, 0);

    EXPECT_EQ(*word, 815U);
    EXPECT_EQ(import_bo(own.kfd.get(), ids_[0], share, &again), 0);
    Handle same{};
    EXPECT_EQ(export_bo(own.kfd.get(), ids_[0], imported.handle, &same), 0);
    EXPECT_EQ(same, share);
    EXPECT_EQ(free_bo(own.kfd.get(), imported.handle), 0);
    EXPECT_EQ(free_bo(own.kfd.get(), again.handle), 0);
    EXPECT_EQ(control_->processes().size(), 1U);  // so the exporter's is gone
    EXPECT_EQ(import_bo(own.kfd.get(), ids_[0], share, &again), EINVAL);
  });
}

TEST_F(IpcDevice, ErrorsAreTheDrivers) {
  apart([&] {
    const Process own(*control_, ids_[0]);
    ASSERT_TRUE(own.ready);
    const int kfd = own.kfd.get();
    KfdBo bo;
    ASSERT_EQ(alloc(kfd, ids_[0], kVa, kBytes, kVram, &bo), 0);
    Handle share{}, same{};
    ImportArgs imported{};
    EXPECT_EQ(export_bo(kfd, 0xFFFF, bo.handle, &share), EINVAL);
    EXPECT_EQ(export_bo(kfd, ids_[0], bo.handle + 1, &share), EINVAL);
    EXPECT_EQ(export_bo(kfd, ids_[1], bo.handle, &share), ENODEV) << "the VM of that GPU was not acquired";
    ASSERT_EQ(export_bo(kfd, ids_[0], bo.handle, &share), 0);
    ASSERT_EQ(export_bo(kfd, ids_[0], bo.handle, &same), 0);
    EXPECT_EQ(share, same);

    EXPECT_EQ(import_bo(kfd, 0xFFFF, share, &imported), EINVAL);
    EXPECT_EQ(import_bo(kfd, ids_[0], {1, 2, 3, 4}, &imported), EINVAL);
    EXPECT_EQ(import_bo(kfd, ids_[1], share, &imported), ENODEV);
    const Fd render = open_render(*control_, 1);
    ASSERT_EQ(acquire_vm(kfd, render.get(), ids_[1]), 0);
    EXPECT_EQ(import_bo(kfd, ids_[1], share, &imported), is_oldest() ? EINVAL : 0) << "another GPU's memory";

    std::array<char, 2 * kBytes> memory{};
    const auto page = (reinterpret_cast<std::uint64_t>(memory.data()) + 4095) & ~std::uint64_t{4095};
    KfdBo userptr;
    ASSERT_EQ(alloc(kfd, ids_[0], page, 4096, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR, &userptr, page), 0);
    EXPECT_EQ(export_bo(kfd, ids_[0], userptr.handle, &share), EPERM);
  });
}

TEST_F(IpcDevice, WhatTheDriverLacksIsAnInvalidArgument) {
  apart([&] {
    const Process own(*control_, ids_[0]);
    ASSERT_TRUE(own.ready);
    KfdBo bo;
    ASSERT_EQ(alloc(own.kfd.get(), ids_[0], kVa, kBytes, kVram, &bo), 0);
    struct {
      std::uint64_t handle;
      std::uint32_t flags, fd;
    } args = {bo.handle, O_CLOEXEC, 0};
    EXPECT_EQ(call(own.kfd.get(), _IOWR('K', 0x24, args), &args), is_oldest() ? EINVAL : 0)
        << "EXPORT_DMABUF";
    EXPECT_EQ(call(own.kfd.get(), _IOWR('K', 0x28, args), &args), EINVAL) << "PROFILER as in Linux 7.2";
  });
}

}  // namespace
}  // namespace vamdgpu::tests
