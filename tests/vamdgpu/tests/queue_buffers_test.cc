// SPDX-License-Identifier: MIT
// What CREATE_QUEUE of the model takes, where one GPU and one process (questions/queue_questions.cc) do not
// show it: several XCCs, and several processes.
#include <gtest/gtest.h>

#include "model_kit.h"

namespace vamdgpu::tests {
namespace {

constexpr std::uint64_t kVa = 0x100000000;
constexpr std::uint32_t kXccs = 8;

vamdgpu_machine_config config(std::uint32_t kfd_minor_version) {
  vamdgpu_machine_config config = two_gpus();
  config.kfd_minor_version = kfd_minor_version;
  for (vamdgpu_gpu_config& gpu : config.gpus) gpu.xccs = kXccs;
  return config;
}

class QueueBuffers : public ::testing::Test {
 protected:
  // A KFD file of the process that calls, with the VM of GPU 0 and a page for each small buffer.
  std::uint32_t open_process(Machine& machine) {
    const std::uint32_t kfd = machine.open_kfd();
    EXPECT_EQ(machine.acquire(kfd, machine.open_render(0), gpu_id(machine)), 0);
    for (unsigned page = 0; page < 4; ++page) map(machine, kfd, kVa + page * 0x10000, VAM_PAGE);
    return kfd;
  }
  static std::uint32_t gpu_id(Machine& machine) { return machine.model()->gpu[0].config.gpu_id; }
  static void map(Machine& machine, std::uint32_t kfd, std::uint64_t va, std::uint64_t bytes) {
    vam_alloc_memory_args args{};
    args.va = va;
    args.size = bytes;
    args.gpu_id = gpu_id(machine);
    args.flags = VAM_ALLOC_GTT | VAM_ALLOC_WRITABLE;
    ASSERT_EQ(machine.kfd(kfd, VAM_KFD_ALLOC_MEMORY, &args), 0);
    const std::uint32_t id = gpu_id(machine);
    vam_map_memory_args on{};
    on.handle = args.handle;
    on.device_ids = reinterpret_cast<std::uint64_t>(&id);
    on.n_devices = 1;
    ASSERT_EQ(machine.kfd(kfd, VAM_KFD_MAP_MEMORY, &on), 0);
  }
  static vam_create_queue_args queue(Machine& machine, std::uint32_t type) {
    vam_create_queue_args args{};
    args.ring_base = kVa;
    args.write_pointer = kVa + 0x10000;
    args.read_pointer = kVa + 0x20000;
    args.ring_size = VAM_PAGE;
    args.gpu_id = gpu_id(machine);
    args.type = type;
    args.percentage = 100;
    args.eop_address = kVa + 0x30000;
    args.eop_size = VAM_PAGE;
    args.ctl_stack_size = machine.model()->gpu[0].config.ctl_stack_bytes;
    args.ctx_size = machine.model()->gpu[0].config.cwsr_bytes;
    return args;
  }
};

TEST_F(QueueBuffers, SaveAreaIsOneMappingOfAllXccsWithTheDebuggersBytes) {
  Machine machine(config(17));
  const std::uint32_t kfd = open_process(machine);
  const vamdgpu_gpu_config& gpu = machine.model()->gpu[0].config;
  const std::uint64_t one = std::uint64_t{gpu.cwsr_bytes} + gpu.debug_bytes;
  map(machine, kfd, kVa + 0x1000000, one * kXccs);
  map(machine, kfd, kVa + 0x2000000, one);
  map(machine, kfd, kVa + 0x3000000, std::uint64_t{gpu.cwsr_bytes} * kXccs);
  vam_create_queue_args args = queue(machine, VAM_QUEUE_COMPUTE_AQL);
  args.ctx_address = kVa + 0x2000000;
  EXPECT_EQ(machine.kfd(kfd, VAM_KFD_CREATE_QUEUE, &args), VAM_EINVAL) << "one XCC's";
  args.ctx_address = kVa + 0x3000000;
  EXPECT_EQ(machine.kfd(kfd, VAM_KFD_CREATE_QUEUE, &args), VAM_EINVAL) << "without the debugger's";
  args.ctx_address = kVa + 0x1000000;
  EXPECT_EQ(machine.kfd(kfd, VAM_KFD_CREATE_QUEUE, &args), 0);
}

TEST_F(QueueBuffers, Linux61TakesAnySaveArea) {
  Machine machine(config(11));
  const std::uint32_t kfd = open_process(machine);
  vam_create_queue_args args = queue(machine, VAM_QUEUE_COMPUTE_AQL);
  args.ctx_address = kVa + 0x7000000;
  args.ctl_stack_size = 0;
  EXPECT_EQ(machine.kfd(kfd, VAM_KFD_CREATE_QUEUE, &args), 0);
}

TEST_F(QueueBuffers, SdmaQueuesAreNumberedOverAllProcesses) {
  Machine machine(config(23));
  const std::uint32_t first = open_process(machine);
  vam_create_queue_args args = queue(machine, VAM_QUEUE_SDMA);
  ASSERT_EQ(machine.kfd(first, VAM_KFD_CREATE_QUEUE, &args), 0);
  EXPECT_EQ(args.doorbell_offset % 8192, 0x800u);  // engine 0
  machine.be(200);
  const std::uint32_t second = open_process(machine);
  args = queue(machine, VAM_QUEUE_SDMA);
  ASSERT_EQ(machine.kfd(second, VAM_KFD_CREATE_QUEUE, &args), 0);
  EXPECT_EQ(args.doorbell_offset % 8192, 0x850u);  // engine 1
  args = queue(machine, VAM_QUEUE_SDMA);
  ASSERT_EQ(machine.kfd(second, VAM_KFD_CREATE_QUEUE, &args), 0);
  EXPECT_EQ(args.doorbell_offset % 8192, 0x1800u);  // engine 0 again, its second queue
}

}  // namespace
}  // namespace vamdgpu::tests
