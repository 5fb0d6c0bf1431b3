// SPDX-License-Identifier: MIT
// BOs imported into the KFD, over a KFD made of one function: under the handle that is wanted or not at all,
// and nothing but them is left.
#include "kfd/memory/bo_import.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <set>

#include "base/unique_fd.h"
#include "kfd/uapi.h"

namespace sluice::kfd {
namespace {

constexpr std::uint64_t kBytes = 8192;

std::uint64_t handle_of(std::uint32_t gpu_id, std::uint64_t handle) {
  return std::uint64_t{gpu_id} << 32 | handle;
}

// The lowest free handle of a GPU, as the kernel gives them.
class FakeKfd {
 public:
  IoctlFunction function() {
    return [this](int fd, unsigned long request, void* argument) { return call(fd, request, argument); };
  }

  std::map<std::uint32_t, std::set<std::uint64_t>> taken;  // by gpu_id
  std::map<std::uint64_t, std::vector<std::uint32_t>> mapped;
  unsigned long failing = 0;  // a request
  int err = 0;
  std::size_t imports = 0;
  std::uint64_t last_va = 0;

 private:
  int call(int fd, unsigned long request, void* argument) {
    EXPECT_EQ(fd, 3);
    if (request == failing) {
      errno = err;
      return -1;
    }
    if (request == kIocImportDmabuf) {
      auto& args = *static_cast<ImportDmabufArgs*>(argument);
      std::uint64_t handle = next_[args.gpu_id];
      while (taken[args.gpu_id].contains(handle)) ++handle;
      if (handle == next_[args.gpu_id]) ++next_[args.gpu_id];
      taken[args.gpu_id].insert(handle);
      args.handle = handle_of(args.gpu_id, handle);
      last_va = args.va_addr;
      ++imports;
      return 0;
    }
    if (request == kIocMapMemory) {
      auto& args = *static_cast<MapMemoryArgs*>(argument);
      const auto* gpu_ids = reinterpret_cast<const std::uint32_t*>(args.device_ids);
      mapped[args.handle].assign(gpu_ids, gpu_ids + args.num_devices);
      return 0;
    }
    EXPECT_EQ(request, kIocFreeMemory);
    const std::uint64_t handle = static_cast<FreeMemoryArgs*>(argument)->handle;
    const auto gpu_id = static_cast<std::uint32_t>(handle >> 32);
    EXPECT_EQ(taken[gpu_id].erase(handle & UINT32_MAX), 1U);
    next_[gpu_id] = 0;
    return 0;
  }

  std::map<std::uint32_t, std::uint64_t> next_;  // all below are taken
};

class BoImportTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::ftruncate(memory_.get(), kBytes), 0); }

  FakeKfd kernel_;
  UniqueFd memory_{::memfd_create("dma-buf", MFD_CLOEXEC)};
};

TEST_F(BoImportTest, takes_the_handle_that_is_wanted_and_frees_what_held_those_below) {
  kernel_.taken[7] = {0, 2};
  {
    BoImport kfd(3, kernel_.function());
    ASSERT_TRUE(kfd.import({0x1000, kBytes, 7, 5, {7, 8}}, memory_.get()).ok());
    ASSERT_TRUE(kfd.import({0x5000, kBytes, 7, 6, {}}, memory_.get()).ok());
    EXPECT_EQ(kernel_.last_va, 0x5000U);
    ASSERT_TRUE(kfd.import({0x5000, kBytes, 8, 1, {8}}, memory_.get()).ok());
  }
  EXPECT_EQ(kernel_.taken[7], (std::set<std::uint64_t>{0, 2, 5, 6}));
  EXPECT_EQ(kernel_.taken[8], (std::set<std::uint64_t>{1}));
  const std::map<std::uint64_t, std::vector<std::uint32_t>> mapped = {{handle_of(7, 5), {7, 8}},
                                                                      {handle_of(8, 1), {8}}};
  EXPECT_EQ(kernel_.mapped, mapped);
}

TEST_F(BoImportTest, refuses_a_handle_that_is_taken_and_leaves_nothing) {
  kernel_.taken[7] = {0, 3};
  {
    BoImport kfd(3, kernel_.function());
    const auto imported = kfd.import({0x1000, kBytes, 7, 3, {7}}, memory_.get());
    ASSERT_FALSE(imported.ok());
    EXPECT_EQ(imported.error().err, EEXIST);
    EXPECT_NE(imported.error().what.find("handle 3 of the BO at 0x1000 of GPU 7"), std::string::npos)
        << imported.error().what;
  }
  EXPECT_EQ(kernel_.taken[7], (std::set<std::uint64_t>{0, 3}));
  EXPECT_TRUE(kernel_.mapped.empty());
}

TEST_F(BoImportTest, bounds_the_handles_that_it_holds) {
  {
    BoImport kfd(3, kernel_.function());
    ASSERT_TRUE(kfd.import({0x1000, kBytes, 7, kMostHeldHandles, {}}, memory_.get()).ok());
    ASSERT_TRUE(kfd.import({0x1000, kBytes, 7, kMostHeldHandles + 1, {}}, memory_.get()).ok());
    const auto imported = kfd.import({0x1000, kBytes, 7, 2 * kMostHeldHandles + 1, {}}, memory_.get());
    ASSERT_FALSE(imported.ok());
    EXPECT_EQ(imported.error().err, E2BIG);
    EXPECT_LE(kernel_.imports, kMostHeldHandles + 3);
  }
  EXPECT_EQ(kernel_.taken[7], (std::set<std::uint64_t>{kMostHeldHandles, kMostHeldHandles + 1}));
}

TEST_F(BoImportTest, refuses_memory_that_is_too_small_and_what_is_none) {
  BoImport kfd(3, kernel_.function());
  EXPECT_EQ(kfd.import({0x1000, kBytes + 1, 7, 0, {}}, memory_.get()).error().err, EINVAL);
  EXPECT_EQ(kfd.import({0x1000, kBytes, 7, 0, {}}, -1).error().err, EBADF);
  EXPECT_EQ(kernel_.imports, 0U);
}

TEST_F(BoImportTest, says_which_call_failed) {
  const struct {
    unsigned long request;
    int err;
    const char* words;
  } cases[] = {{kIocImportDmabuf, ENOMEM, "IMPORT_DMABUF of the BO at 0x1000"},
               {kIocMapMemory, ENOMEM, "MAP_MEMORY_TO_GPU of the BO at 0x1000"}};
  for (const auto& failing : cases) {
    kernel_.failing = failing.request;
    kernel_.err = failing.err;
    BoImport kfd(3, kernel_.function());
    const auto imported = kfd.import({0x1000, kBytes, 7, 0, {7}}, memory_.get());
    ASSERT_FALSE(imported.ok());
    EXPECT_EQ(imported.error().err, failing.err);
    EXPECT_NE(imported.error().what.find(failing.words), std::string::npos) << imported.error().what;
  }
}

}  // namespace
}  // namespace sluice::kfd
