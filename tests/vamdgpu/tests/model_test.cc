// SPDX-License-Identifier: MIT
// The device model by itself, without an OS underneath: ids, pools, packets, and CRIU operations over private
// data in plain memory, good and corrupted.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/sdma.h"
#include "model_kit.h"

namespace vamdgpu::tests {
namespace {

// Seeded; the same numbers on every run.
class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

// ---- tables
// ----------------------------------------------------------------------------------------------------------

TEST(ModelIds, AreLowestFreeFirstWhateverIsTaken) {
  Machine machine;
  vam_idr idr{};
  std::map<std::uint32_t, std::uint32_t> reference;
  Random random(7);
  for (int step = 0; step < 20000; ++step) {
    const std::uint32_t what = random() % 10;
    if (what < 5) {
      std::uint32_t id = 0, expected = 1;
      while (reference.count(expected) != 0) ++expected;
      ASSERT_EQ(vam_idr_add(machine.model(), &idr, 1, VAM_IDR_MAX, static_cast<std::uint32_t>(step) + 1, &id),
                0);
      ASSERT_EQ(id, expected);
      reference[id] = static_cast<std::uint32_t>(step) + 1;
    } else if (what < 6) {
      const std::uint32_t id = random() % 3000;
      const int result = vam_idr_add_at(machine.model(), &idr, id, 1);
      ASSERT_EQ(result, reference.count(id) != 0 ? -VAM_ENOSPC : 0);
      reference.emplace(id, 1);
    } else if (!reference.empty()) {
      auto it = reference.lower_bound(random() % 3000);
      if (it == reference.end()) it = reference.begin();
      ASSERT_EQ(vam_idr_remove(machine.model(), &idr, it->first), it->second);
      reference.erase(it);
    }
  }
  std::uint32_t id = 0, value = 0;
  for (const auto& [expected, kept] : reference) {
    value = vam_idr_next(machine.model(), &idr, &id);
    ASSERT_EQ(id, expected);
    ASSERT_EQ(value, kept);
    ++id;
  }
  EXPECT_EQ(vam_idr_next(machine.model(), &idr, &id), 0u);
  vam_idr_clear(machine.model(), &idr);
  EXPECT_EQ(machine.model()->table[VAM_T_IDR_NODE].live, 0u);
}

TEST(ModelIds, ReachTheLargestNumber) {
  Machine machine;
  vam_idr idr{};
  EXPECT_EQ(vam_idr_add_at(machine.model(), &idr, VAM_IDR_MAX, 5), 0);
  EXPECT_EQ(vam_idr_find(machine.model(), &idr, VAM_IDR_MAX), 5u);
  std::uint32_t id = 0;
  EXPECT_EQ(vam_idr_add(machine.model(), &idr, 1, VAM_IDR_MAX, 6, &id), 0);
  EXPECT_EQ(id, 1u);
  EXPECT_EQ(vam_idr_add(machine.model(), &idr, VAM_IDR_MAX, VAM_IDR_MAX, 6, &id), -VAM_ENOSPC);
}

TEST(ModelPools, PiecesNeverOverlapAndFreedMemoryJoins) {
  Machine machine;
  vam_model* model = machine.model();
  const std::uint32_t ranges = model->table[VAM_T_RANGE].live;
  Random random(3);
  std::vector<std::uint32_t> bos;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 3 != 0) {
      std::uint32_t bo = 0;
      const std::uint64_t size = 4096ull * (1 + random() % 100), alignment = 4096ull << (random() % 5);
      if (vam_bo_create(model, 0, VAM_POOL_VRAM, VAM_BO_GEM, size, alignment, &bo) != 0) continue;
      EXPECT_EQ(VAM_BO_AT(model, bo)->pool_offset % alignment, 0u);
      bos.push_back(bo);
    } else if (!bos.empty()) {
      std::swap(bos[random() % bos.size()], bos.back());
      vam_bo_unref(model, bos.back());
      bos.pop_back();
    }
  }
  std::map<std::uint64_t, std::uint64_t> pieces;
  std::uint64_t used = 0;
  for (const std::uint32_t bo : bos) {
    pieces[VAM_BO_AT(model, bo)->pool_offset] = VAM_BO_AT(model, bo)->size;
    used += VAM_BO_AT(model, bo)->size;
    EXPECT_EQ(vam_bo_at_mmap_offset(model, vam_bo_mmap_offset(model, bo)), bo);
  }
  EXPECT_EQ(model->gpu[0].used_bytes[VAM_POOL_VRAM], used);
  std::uint64_t end = 0;
  for (const auto& [start, size] : pieces) {
    EXPECT_GE(start, end);
    end = start + size;
  }
  for (const std::uint32_t bo : bos) vam_bo_unref(model, bo);
  EXPECT_EQ(model->table[VAM_T_RANGE].live, ranges);
  std::uint32_t whole = 0;
  EXPECT_EQ(vam_bo_create(model, 0, VAM_POOL_VRAM, VAM_BO_GEM, 64 << 20, 4096, &whole), 0);
}

// ---- packets
// -----------------------------------------------------------------------------------------------------------

struct Packets {
  explicit Packets(std::vector<std::uint32_t> words) : dwords(std::move(words)) {
    reader.dwords = dwords.data();
    reader.count = static_cast<std::uint32_t>(dwords.size());
    reader.max_bytes = 4 << 20;
    reader.count_is_bytes_less_one = 1;
  }
  std::vector<std::uint32_t> dwords;
  vam_sdma_reader reader{};
};

TEST(ModelPackets, LinearCopyCountsBytesLessOne) {
  Packets p({1, 0xfff, 0, 0x1000, 2, 0x3000, 4, 0});
  ASSERT_EQ(vam_sdma_decode(&p.reader), 1);
  EXPECT_EQ(p.reader.packet.bytes, 4096u);
  EXPECT_EQ(p.reader.packet.src, 0x200001000u);
  EXPECT_EQ(p.reader.packet.dst, 0x400003000u);
  EXPECT_EQ(vam_sdma_decode(&p.reader), 0);
  Packets old({1, 4096, 0, 0, 1, 0, 2});
  old.reader.count_is_bytes_less_one = 0;
  ASSERT_EQ(vam_sdma_decode(&old.reader), 1);
  EXPECT_EQ(old.reader.packet.bytes, 4096u);
}

TEST(ModelPackets, NopSkipsItsCount) {
  Packets p({2u << 16, 0xffffffff, 0xffffffff, 11u | 2u << 30, 0x1000, 0, 9, 63});
  ASSERT_EQ(vam_sdma_decode(&p.reader), 1);
  EXPECT_EQ(p.reader.packet.kind, VAM_SDMA_FILL);
  EXPECT_EQ(p.reader.packet.bytes, 64u);
  EXPECT_EQ(p.reader.packet.value, 9u);
}

TEST(ModelPackets, WhatTheHardwareWouldNotTakeIsRefused) {
  const std::vector<std::uint32_t> bad[] = {
      {1, 0xfff, 0, 0, 1, 0},                 // short of a dword
      {1, 4 << 20, 0, 0, 1, 0, 2},            // above the limit
      {1, 0xc0000000, 0, 0, 1, 0, 2},         // count's upper bits
      {1u | 1u << 8, 0xfff, 0, 0, 1, 0, 2},   // not linear
      {1u | 1u << 25, 0xfff, 0, 0, 1, 0, 2},  // backwards
      {1, 0xfff, 1u << 16, 0, 1, 0, 2},       // swap
      {11u | 1u << 30, 0x1000, 0, 9, 63},     // fill size
      {11u | 2u << 30, 0x1002, 0, 9, 63},     // fill address
      {11u | 2u << 30, 0x1000, 0, 9, 64},     // fill count
      {4, 0, 0, 0, 0, 0},                     // nested IB
      {8, 0, 0, 0, 0, 0},                     // polling
      {5u << 16},                             // NOP beyond the end
  };
  for (const auto& dwords : bad) {
    Packets p(dwords);
    EXPECT_EQ(vam_sdma_decode(&p.reader), -VAM_EINVAL) << dwords[0];
    EXPECT_NE(p.reader.fault, nullptr);
  }
}

class ModelCopies : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = machine_.open_render(0);
    ASSERT_EQ(vam_bo_create(machine_.model(), 0, VAM_POOL_VRAM, VAM_BO_GEM, 8192, 4096, &a_), 0);
    ASSERT_EQ(vam_bo_create(machine_.model(), 0, VAM_POOL_GTT, VAM_BO_GEM, 8192, 4096, &b_), 0);
    constexpr std::uint32_t kBoth = VAM_VM_READABLE | VAM_VM_WRITEABLE;
    // a whole at 1 MiB; b's second page, then its first, at 2 MiB.
    ASSERT_EQ(vam_vm_map(machine_.model(), file_, 1 << 20, 8192, a_, 0, kBoth, 0), 0);
    ASSERT_EQ(vam_vm_map(machine_.model(), file_, 2 << 20, 4096, b_, 4096, kBoth, 0), 0);
    ASSERT_EQ(vam_vm_map(machine_.model(), file_, (2 << 20) + 4096, 4096, b_, 0, kBoth, 0), 0);
  }
  Machine machine_;
  std::uint32_t file_ = 0, a_ = 0, b_ = 0;
};

TEST_F(ModelCopies, AreCutAtTheBordersOfMappings) {
  Packets p({1, 5000 - 1, 0, 1 << 20, 0, (2 << 20) + 100, 0});
  p.reader.file = file_;
  vam_sdma_op op;
  ASSERT_EQ(vam_sdma_next(machine_.model(), &p.reader, &op), 1);
  EXPECT_EQ(op.bytes, 3996u);
  EXPECT_EQ(op.dst_offset, 4196u);
  EXPECT_EQ(op.src_offset, 0u);
  ASSERT_EQ(vam_sdma_next(machine_.model(), &p.reader, &op), 1);
  EXPECT_EQ(op.bytes, 1004u);
  EXPECT_EQ(op.dst_bo, b_);
  EXPECT_EQ(op.dst_offset, 0u);
  EXPECT_EQ(op.src_offset, 3996u);
  EXPECT_EQ(vam_sdma_next(machine_.model(), &p.reader, &op), 0);
}

TEST_F(ModelCopies, AByteTooManyIsForgivenOnlyByATolerantMachine) {
  for (const std::uint32_t tolerant : {0u, 1u}) {
    Packets p({1, 8192, 0, 1 << 20, 0, 2 << 20, 0});
    p.reader.file = file_;
    p.reader.tolerant = tolerant;
    vam_sdma_op op;
    int result = 0;
    std::uint64_t bytes = 0;
    while ((result = vam_sdma_next(machine_.model(), &p.reader, &op)) == 1) bytes += op.bytes;
    EXPECT_EQ(bytes, 8192u);
    EXPECT_EQ(result, tolerant != 0 ? 0 : -VAM_EFAULT);
  }
}

// ---- CRIU
// --------------------------------------------------------------------------------------------------------------

struct Image {
  vam_criu_args info{};
  std::vector<vam_criu_device> devices;
  std::vector<vam_criu_bo> bos;
  std::vector<unsigned char> priv;
};

class ModelCriu : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  static vamdgpu_machine_config config() {
    vamdgpu_machine_config result = two_gpus();
    result.bo_record_bytes = GetParam();
    return result;
  }

  // Process 100 with BOs of all kinds, a queue, events and SVM ranges.
  void SetUp() override {
    kfd_ = machine_.open_kfd();
    for (std::uint32_t gpu = 0; gpu < 2; ++gpu)
      ASSERT_EQ(machine_.acquire(kfd_, machine_.open_render(gpu), 1000 + gpu), 0);
    std::uint64_t va = 1ull << 40;
    const std::uint32_t kinds[] = {VAM_ALLOC_VRAM, VAM_ALLOC_GTT, VAM_ALLOC_USERPTR, VAM_ALLOC_DOORBELL,
                                   VAM_ALLOC_MMIO};
    for (std::uint32_t i = 0; i < 10; ++i) {
      vam_alloc_memory_args args{};
      args.va = va;
      const std::uint32_t kind = kinds[i % 5];
      args.size = kind == VAM_ALLOC_DOORBELL ? 8192 : kind == VAM_ALLOC_MMIO ? 4096 : 65536;
      args.flags = kind | VAM_ALLOC_WRITABLE;
      args.gpu_id = 1000 + i % 2;
      args.mmap_offset = kind == VAM_ALLOC_USERPTR ? 0x10000 : 0;
      ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_ALLOC_MEMORY, &args), 0);
      if (i == 1) page_handle_ = args.handle;
      const std::uint32_t ids[2] = {1000, 1001};
      vam_map_memory_args map{};
      map.handle = args.handle;
      map.device_ids = reinterpret_cast<std::uint64_t>(ids);
      map.n_devices = 1 + i % 2;
      ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_MAP_MEMORY, &map), 0);
      va += 1 << 20;
    }
    vam_create_event_args event{};
    event.page_offset = page_handle_;
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_CREATE_EVENT, &event), 0);
    event = {};
    event.type = VAM_EVENT_MEMORY;
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_CREATE_EVENT, &event), 0);
    struct {
      vam_svm_args args;
      vam_svm_attr attrs[1];
    } svm{{1ull << 41, 65536, 0, 1}, {{7, 5}}};
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_SVM, &svm, sizeof(svm)), 0);
    make_queue();
  }

  void make_queue() {
    const std::uint32_t ids[1] = {1000};
    std::uint64_t addresses[3] = {1ull << 42, (1ull << 42) + (1 << 20), (1ull << 42) + (2 << 20)};
    for (const std::uint64_t va : addresses) {
      vam_alloc_memory_args args{};
      args.va = va;
      args.size = 4096;
      args.flags = VAM_ALLOC_GTT | VAM_ALLOC_WRITABLE;
      args.gpu_id = 1000;
      ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_ALLOC_MEMORY, &args), 0);
      vam_map_memory_args map{args.handle, reinterpret_cast<std::uint64_t>(ids), 1, 0};
      ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_MAP_MEMORY, &map), 0);
    }
    vam_create_queue_args queue{};
    queue.ring_base = addresses[0];
    queue.read_pointer = addresses[1];
    queue.write_pointer = addresses[2];
    queue.ring_size = 4096;
    queue.gpu_id = 1000;
    queue.type = VAM_QUEUE_SDMA;
    queue.percentage = 100;
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_CREATE_QUEUE, &queue), 0);
  }

  int op(std::uint32_t file, std::uint32_t which, vam_criu_args* args) {
    args->op = which;
    return machine_.kfd(file, VAM_KFD_CRIU_OP, args);
  }

  // PROCESS_INFO and CHECKPOINT.
  int dump(Image* image) {
    int error = op(kfd_, VAM_CRIU_PROCESS_INFO, &image->info);
    if (error != 0) return error;
    image->devices.resize(image->info.num_devices);
    image->bos.resize(image->info.num_bos);
    image->priv.resize(image->info.priv_data_size);
    point(image);
    return op(kfd_, VAM_CRIU_CHECKPOINT, &image->info);
  }
  static void point(Image* image) {
    image->info.devices = reinterpret_cast<std::uint64_t>(image->devices.data());
    image->info.bos = reinterpret_cast<std::uint64_t>(image->bos.data());
    image->info.priv_data = reinterpret_cast<std::uint64_t>(image->priv.data());
    image->info.priv_data_size = image->priv.size();
  }

  // RESTORE in a new process of a machine of its own.
  static int restore(Machine* machine, Image image, std::uint32_t* kfd_file) {
    machine->be(200);
    *kfd_file = machine->open_kfd();
    for (vam_criu_device& device : image.devices)
      device.drm_fd = machine->open_render(device.actual_gpu_id == 1000 ? 0 : 1);
    point(&image);
    image.info.op = VAM_CRIU_RESTORE;
    return machine->kfd(*kfd_file, VAM_KFD_CRIU_OP, &image.info);
  }

  Machine machine_{config()};
  std::uint32_t kfd_ = 0;
  std::uint64_t page_handle_ = 0;
};

TEST_P(ModelCriu, WhatIsRestoredCheckpointsToTheSameBytes) {
  Image first;
  ASSERT_EQ(dump(&first), 0);
  Machine other(config());
  std::uint32_t file = 0;
  ASSERT_EQ(restore(&other, first, &file), 0);
  vam_criu_args args{};
  args.pid = 200;
  args.op = VAM_CRIU_RESUME;
  EXPECT_EQ(other.kfd(file, VAM_KFD_CRIU_OP, &args), 0);
  EXPECT_EQ(other.kfd(file, VAM_KFD_CRIU_OP, &args), VAM_EINVAL);
  Image second;
  second.info.op = VAM_CRIU_PROCESS_INFO;
  ASSERT_EQ(other.kfd(file, VAM_KFD_CRIU_OP, &second.info), 0);
  second.devices.resize(second.info.num_devices);
  second.bos.resize(second.info.num_bos);
  second.priv.resize(second.info.priv_data_size);
  point(&second);
  second.info.op = VAM_CRIU_CHECKPOINT;
  ASSERT_EQ(other.kfd(file, VAM_KFD_CRIU_OP, &second.info), 0);
  EXPECT_EQ(first.priv, second.priv);
}

TEST_P(ModelCriu, SizesFollowTheFormula) {
  Image image;
  ASSERT_EQ(dump(&image), 0);
  EXPECT_EQ(image.info.num_bos, 13u);
  EXPECT_EQ(image.info.num_objects, 1u + 2u + 1u);
  EXPECT_EQ(image.priv.size(), 8 + 8 * 2 + GetParam() * 13 + (120 + 512) + 2 * 64 + (24 + 8 * (4 + 2)));
  EXPECT_EQ(machine_.fds.size(), 2u + 2u + 3u);  // VRAM and GTT only
}

TEST_P(ModelCriu, CorruptPrivateDataNeverRestoresAsIfNothingWere) {
  Image image;
  ASSERT_EQ(dump(&image), 0);
  const auto attempt = [&](const Image& broken) {
    Machine other(config());
    std::uint32_t file = 0;
    return restore(&other, broken, &file);
  };
  Image broken = image;
  broken.priv.pop_back();
  EXPECT_NE(attempt(broken), 0) << "truncated";
  broken = image;
  broken.priv.push_back(0);
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "longer";
  broken = image;
  broken.priv[0] = 2;
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "version";
  const std::size_t objects = 8 + 8 * 2 + GetParam() * 13;
  broken = image;
  broken.priv[objects] = 9;
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "object type";
  broken = image;
  broken.priv[objects + 112] ^= 1;
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "MQD size";
  broken = image;
  broken.info.num_devices = 1;
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "fewer GPUs than there are";
  broken = image;
  broken.devices[1].actual_gpu_id = 1000;
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "one GPU twice";
  broken = image;
  broken.bos[0].gpu_id = 7;
  EXPECT_EQ(attempt(broken), VAM_ENODEV) << "BO of an unknown GPU";
  broken = image;
  for (vam_criu_bo& bo : broken.bos) {
    if ((bo.alloc_flags & VAM_ALLOC_DOORBELL) != 0) bo.size = 4096;
  }
  EXPECT_EQ(attempt(broken), VAM_EINVAL) << "doorbell size";
}

// RESTORE reads bucket and record of a BO twice: another thread may write between.
TEST_P(ModelCriu, NamesThatChangeWhileTheyAreRestoredAreRefused) {
  Image image;
  ASSERT_EQ(dump(&image), 0);
  constexpr std::uint64_t kNamesOfARecord = 16;  // all that the second look wants of one
  const auto attempt = [&](bool gpu) {
    Machine other(config());
    std::uint32_t buckets = 0;
    other.copied_in = [&](void* copied, std::uint64_t bytes) {
      if (bytes == sizeof(vam_criu_bo)) ++buckets;
      if (buckets <= image.info.num_bos + 2) return;  // two were handed out by then
      if (gpu && bytes == sizeof(vam_criu_bo)) static_cast<vam_criu_bo*>(copied)->gpu_id = 7;
      if (!gpu && bytes == kNamesOfARecord) static_cast<vam_priv_bo*>(copied)->idr_handle = 999;
    };
    std::uint32_t file = 0;
    const int result = restore(&other, image, &file);
    EXPECT_TRUE(other.fds.empty());
    return result;
  };
  EXPECT_EQ(attempt(true), VAM_EINVAL) << "a GPU that the process does not know";
  EXPECT_EQ(attempt(false), VAM_EINVAL) << "a handle that the process does not have";
}

TEST_P(ModelCriu, ARecordOfTheOtherKernelIsRefused) {
  Image image;
  ASSERT_EQ(dump(&image), 0);
  vamdgpu_machine_config other = config();
  other.bo_record_bytes = GetParam() == 80 ? 272 : 80;
  Machine machine(other);
  std::uint32_t file = 0;
  EXPECT_NE(restore(&machine, image, &file), 0);
}

TEST_P(ModelCriu, NoRandomDamageGoesBeyondTheModel) {
  Image image;
  ASSERT_EQ(dump(&image), 0);
  Random random(11);
  int refused = 0;
  for (int i = 0; i < 150; ++i) {
    Image broken = image;
    for (unsigned n = 1 + random() % 4; n > 0; --n) {
      unsigned char& byte = broken.priv[random() % broken.priv.size()];
      byte = static_cast<unsigned char>(byte ^ 1u << (random() % 8));
    }
    Machine other(config());
    std::uint32_t file = 0;
    if (restore(&other, broken, &file) != 0) ++refused;
    const std::uint32_t process = vam_find_process(other.model(), 200, 0);
    if (process != 0) vam_process_died(other.model(), process);
    EXPECT_EQ(other.model()->table[VAM_T_MEM].live, 0u);
    EXPECT_EQ(other.model()->table[VAM_T_QUEUE].live, 0u);
    EXPECT_EQ(other.model()->table[VAM_T_EVENT].live, 0u);
    EXPECT_EQ(other.model()->table[VAM_T_SVM].live, 0u);
  }
  EXPECT_GT(refused, 0);
}

TEST_P(ModelCriu, RunningOutOfDescriptorsGivesBackWhatWasHandedOut) {
  Image image;
  machine_.fds_left = 3;
  EXPECT_EQ(dump(&image), 24);
  EXPECT_TRUE(machine_.fds.empty());
  machine_.fds_left = 100;
  EXPECT_EQ(op(kfd_, VAM_CRIU_CHECKPOINT, &image.info), 0);
}

TEST_P(ModelCriu, DamagedQueueStateIsNoticed) {
  Image image;
  ASSERT_EQ(dump(&image), 0);
  image.priv[8 + 8 * 2 + GetParam() * 13 + 120 + 200] ^= 1;
  Machine other(config());
  std::uint32_t file = 0;
  ASSERT_EQ(restore(&other, image, &file), 0);  // as the kernel would
  EXPECT_EQ(VAM_PROCESS_AT(other.model(), vam_find_process(other.model(), 200, 0))->mqd_damaged, 1u);
}

TEST_P(ModelCriu, WhoMayCall) {
  vam_criu_args args{};
  machine_.be(300);
  EXPECT_EQ(op(kfd_, VAM_CRIU_PROCESS_INFO, &args), VAM_EBADF);
  machine_.privileged = false;
  EXPECT_EQ(op(kfd_, VAM_CRIU_PROCESS_INFO, &args), VAM_EBADF);  // ownership before privilege
  machine_.traced = true;
  EXPECT_EQ(op(kfd_, VAM_CRIU_PROCESS_INFO, &args), VAM_EACCES);
  machine_.privileged = true;
  EXPECT_EQ(op(kfd_, VAM_CRIU_PROCESS_INFO, &args), 0);
  EXPECT_EQ(op(kfd_, 17, &args), VAM_EINVAL);
  vam_get_version_args version{};
  EXPECT_EQ(machine_.kfd(kfd_, VAM_KFD_GET_VERSION, &version), VAM_EBADF);
}

TEST_P(ModelCriu, EvictionIsACounter) {
  vam_criu_args args{};
  const vam_process* process = VAM_PROCESS_AT(machine_.model(), vam_find_process(machine_.model(), 100, 0));
  ASSERT_EQ(op(kfd_, VAM_CRIU_PROCESS_INFO, &args), 0);
  ASSERT_EQ(op(kfd_, VAM_CRIU_PROCESS_INFO, &args), 0);
  EXPECT_EQ(process->pdd[0].evicted, 2u);
  ASSERT_EQ(op(kfd_, VAM_CRIU_UNPAUSE, &args), 0);
  EXPECT_EQ(process->pdd[0].evicted, 1u);
  EXPECT_EQ(op(kfd_, VAM_CRIU_UNPAUSE, &args), VAM_EINVAL);
  vamdgpu_machine_config fixed = config();
  fixed.evict_once = 1;
  Machine other(fixed);
  const std::uint32_t file = other.open_kfd();
  args.op = VAM_CRIU_PROCESS_INFO;
  ASSERT_EQ(other.kfd(file, VAM_KFD_CRIU_OP, &args), 0);
  ASSERT_EQ(other.kfd(file, VAM_KFD_CRIU_OP, &args), 0);
  EXPECT_EQ(VAM_PROCESS_AT(other.model(), vam_find_process(other.model(), 100, 0))->pdd[0].evicted, 1u);
}

INSTANTIATE_TEST_SUITE_P(RecordSizes, ModelCriu, ::testing::Values(80u, 104u, 272u, 288u, 296u));

// ---- events

// Signal events of a process, and waits for them that are told step by step.
class Events : public ::testing::Test {
 protected:
  // A thread that waits for one event.
  struct Wait {
    explicit Wait(std::uint32_t event, std::uint64_t seen_age = 0) {
      data.event_id = event;
      std::memcpy(data.data, &seen_age, sizeof seen_age);
      args.events = reinterpret_cast<std::uint64_t>(&data);
      args.num_events = 1;
      args.timeout_ms = VAM_EVENT_TIMEOUT_INFINITE;
    }
    std::uint64_t age() const {
      std::uint64_t value = 0;
      std::memcpy(&value, data.data, sizeof value);
      return value;
    }
    vam_event_data data{};
    vam_wait_events_args args{};
  };

  void SetUp() override {
    kfd_ = machine_.open_kfd();
    ASSERT_EQ(machine_.acquire(kfd_, machine_.open_render(0), 1000), 0);
    vam_alloc_memory_args page{};
    page.va = 1ull << 40;
    page.size = VAM_SIGNAL_PAGE_BYTES;
    page.flags = VAM_ALLOC_GTT | VAM_ALLOC_WRITABLE;
    page.gpu_id = 1000;
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_ALLOC_MEMORY, &page), 0);
    vam_create_event_args args{};
    args.page_offset = page.handle;
    args.type = VAM_EVENT_SIGNAL;
    args.auto_reset = 1;
    ASSERT_EQ(machine_.kfd(kfd_, VAM_KFD_CREATE_EVENT, &args), 0);
    event_ = args.event_id;
  }
  void set() {
    vam_event_id_args args{};
    args.event_id = event_;
    EXPECT_EQ(machine_.kfd(kfd_, VAM_KFD_SET_EVENT, &args), 0);
  }
  bool sleeps(Wait& wait, int again) {
    const int result = machine_.kfd_step(kfd_, VAM_KFD_WAIT_EVENTS, &wait.args, again);
    EXPECT_TRUE(result == VAM_WOULD_BLOCK || (result == 0 && wait.args.result == VAM_WAIT_COMPLETE))
        << result;
    return result == VAM_WOULD_BLOCK;
  }

  Machine machine_;
  std::uint32_t kfd_ = 0, event_ = 0;
};

// As the kernel's: the first that wakes resets the event, and the others have been woken all the same.
TEST_F(Events, ASetWakesAllThatWaitThoughTheFirstResetsIt) {
  Wait one(event_), other(event_);
  ASSERT_TRUE(sleeps(one, VAM_FIRST));
  ASSERT_TRUE(sleeps(other, VAM_FIRST));
  EXPECT_TRUE(sleeps(one, VAM_AGAIN)) << "something else has changed";
  set();
  EXPECT_FALSE(sleeps(one, VAM_AGAIN));
  EXPECT_FALSE(sleeps(other, VAM_AGAIN));
  Wait late(event_);
  EXPECT_TRUE(sleeps(late, VAM_FIRST)) << "it was reset";
}

TEST_F(Events, ASetThatNobodyWaitsForIsKeptForOne) {
  set();
  Wait one(event_), other(event_);
  EXPECT_FALSE(sleeps(one, VAM_FIRST));
  EXPECT_TRUE(sleeps(other, VAM_FIRST));
}

// Linux 6.5: a set that somebody else has used up is seen by its age.
TEST_F(Events, WhoKnowsAnOlderAgeDoesNotSleep) {
  Wait fresh(event_, 1);
  EXPECT_TRUE(sleeps(fresh, VAM_FIRST)) << "1 is the age of an event that was never set";
  set();
  Wait thief(event_);
  EXPECT_FALSE(sleeps(thief, VAM_FIRST));
  EXPECT_EQ(thief.age(), 0U) << "who gives no age gets none";
  Wait late(event_, 1);
  EXPECT_FALSE(sleeps(late, VAM_FIRST));
  EXPECT_EQ(late.age(), 2U);
  Wait informed(event_, late.age());
  EXPECT_TRUE(sleeps(informed, VAM_FIRST));
}

}  // namespace
}  // namespace vamdgpu::tests
