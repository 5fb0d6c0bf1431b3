// SPDX-License-Identifier: MIT
// Questions to AMDKFD_IOC_CRIU_OP. The process of the list dumps itself (its owner may), and processes that
// it forks are restored into, each with files of its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <vector>

#include "kfd_call.h"
#include "render.h"

namespace vamdgpu::questions {
namespace {

constexpr unsigned kProcessInfo = 0, kCheckpoint = 1, kUnpause = 2, kRestore = 3, kResume = 4;
constexpr std::uint32_t kNoFd = 0xffffffff;

struct DeviceBucket {
  std::uint32_t user_gpu_id, actual_gpu_id, drm_fd, pad;
};
struct BoBucket {
  std::uint64_t addr, size, offset, restored_offset;
  std::uint32_t gpu_id, alloc_flags, dmabuf_fd, pad;
};

// What a dump has, and RESTORE takes.
struct Image {
  std::vector<DeviceBucket> devices;
  std::vector<BoBucket> bos;
  std::vector<unsigned char> data;
  std::uint32_t objects = 0;
};

Args criu(Image& image, unsigned op) {
  Args args(56);
  args.pointer(0, image.devices.data()).pointer(8, image.bos.data()).pointer(16, image.data.data());
  args.u64(24, image.data.size())
      .u32(32, image.devices.size())
      .u32(36, image.bos.size())
      .u32(40, image.objects);
  args.u32(48, op);
  return args;
}

int simple(int fd, unsigned op, std::uint32_t pid = 0) {
  Args args(56);
  args.u32(44, pid).u32(48, op);
  return kfd(fd, 0x22, args);
}

// Makes room in the image for what PROCESS_INFO counts.
int process_info(int fd, Image& image) {
  Args args(56);
  args.u32(48, kProcessInfo);
  const int error = kfd(fd, 0x22, args);
  if (error != 0) return error;
  image.devices.assign(args.get32(32), {});
  image.bos.assign(args.get32(36), {});
  image.objects = args.get32(40);
  image.data.assign(args.get64(24), 0);
  return 0;
}

std::string counted(const Image& image) {
  return "bos " + std::to_string(image.bos.size()) + " objects " + std::to_string(image.objects);
}

// PROCESS_INFO's answer, and what it counts.
std::string info(int fd, Image& image) {
  const int error = process_info(fd, image);
  return name_of(error) + " " + counted(image);
}

// CHECKPOINT with something wrong in the argument; the buffers are large enough for a driver that does not
// mind.
std::string checkpoint(int fd, const Image& image, const std::function<void(Args&)>& spoil) {
  Image copy = image;
  copy.devices.resize(copy.devices.size() + 2);
  copy.bos.resize(copy.bos.size() + 2);
  copy.data.resize(copy.data.size() + 4096);
  Args args = criu(copy, kCheckpoint);
  args.u64(24, image.data.size()).u32(32, image.devices.size()).u32(36, image.bos.size());
  spoil(args);
  const int error = kfd(fd, 0x22, args);
  for (const BoBucket& bo : copy.bos)
    if (error == 0 && bo.dmabuf_fd != kNoFd && bo.size != 0) ::close(static_cast<int>(bo.dmabuf_fd));
  return name_of(error);
}

// The text that `work` says in a process of its own.
std::string in_child(const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return name_of(errno);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = work();
    ::_exit(::write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  std::array<char, 512> text{};
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  (void)::waitpid(child, &status, 0);
  return status != 0 || n < 0 ? "ended with status " + std::to_string(status)
                              : std::string(text.data(), static_cast<std::size_t>(n));
}

struct Restored {
  int fd, render;
  Image& image;
};

// RESTORE in a fresh process, after `spoil`; `then` says more when it succeeds.
std::string restore(const Image& image, const std::function<void(Image&, Args&)>& spoil,
                    const std::function<std::string(Restored)>& then = {}) {
  return in_child([&] {
    Image copy = image;
    const int fd = ::open("/dev/kfd", O_RDWR | O_CLOEXEC), render = open_render(first_gpu());
    if (fd < 0 || render < 0) return "open: " + name_of(errno);
    for (DeviceBucket& device : copy.devices)
      if (device.actual_gpu_id == first_gpu().id) device.drm_fd = static_cast<std::uint32_t>(render);
    // A machine of several GPUs: each needs a file of its own.
    for (DeviceBucket& device : copy.devices)
      for (unsigned minor = 128; device.drm_fd == 0 && minor < 144; ++minor) {
        Gpu other;
        other.minor = minor;
        if (minor != first_gpu().minor) device.drm_fd = static_cast<std::uint32_t>(open_render(other));
      }
    Args args = criu(copy, kRestore);
    spoil(copy, args);
    const int error = kfd(fd, 0x22, args);
    if (error != 0 || !then) return name_of(error);
    return "ok, " + then({fd, render, copy});
  });
}

// Where the first object of this type (0 queue, 1 event) begins in the private data, 0 when there is none.
// The queues come first, and each says how long it is.
std::size_t record_of(const Image& image, std::size_t bo_record_bytes, std::uint32_t type) {
  std::size_t at = 8 + image.devices.size() * 8 + image.bos.size() * bo_record_bytes;
  while (at + 120 <= image.data.size()) {
    std::uint32_t record[30];
    std::memcpy(record, &image.data[at], sizeof(record));
    if (record[0] == type) return at;
    if (record[0] != 0) return 0;
    at += 120 + record[28] + record[27];
  }
  return 0;
}

std::uint32_t word_at(const Image& image, std::size_t at) {
  std::uint32_t word = 0;
  if (at + 4 <= image.data.size()) std::memcpy(&word, &image.data[at], 4);
  return word;
}

void put_word(Image& image, std::size_t at, std::uint32_t word) {
  std::memcpy(&image.data[at], &word, 4);
}

std::string kind_of_offset(const BoBucket& bo, const Gpu& gpu) {
  const std::uint64_t place = std::uint64_t{gpu.id} << 46;
  if (bo.offset == (std::uint64_t{3} << 62 | place)) return "doorbells of the GPU";
  if (bo.offset == place) return "MMIO of the GPU";
  return bo.offset >= std::uint64_t{1} << 32 ? "render node" : hex(bo.offset);
}

// One line for the BO at this address.
std::string bucket(const Image& image, std::uint64_t va, const Gpu& gpu) {
  for (const BoBucket& bo : image.bos) {
    if (bo.addr != va) continue;
    return "size " + std::to_string(bo.size) + " flags " + hex(bo.alloc_flags) + " offset of " +
           kind_of_offset(bo, gpu) + (bo.dmabuf_fd == kNoFd ? " no fd" : " fd") + " restored offset " +
           hex(bo.restored_offset) + (bo.gpu_id == gpu.id ? "" : " another GPU");
  }
  return "none";
}

}  // namespace

void ask_criu(List& list) {
  const Kfd kfd = open_kfd(list);
  if (kfd.fd < 0) return;
  const std::size_t record = list.since_612() ? 272 : 80;
  list.ask("another process asks for the version on this file",
           in_child([&] { return asked(kfd.fd, 0x01, Args(8)); }), "EBADF");
  list.ask("another process that traces nobody asks for PROCESS_INFO",
           in_child([&] { return name_of(simple(kfd.fd, kProcessInfo)); }), "EBADF");
  Image image;
  list.ask("PROCESS_INFO of a process without anything", info(kfd.fd, image), "ok bos 0 objects 0");
  list.ask("private data for each of its devices, and 8 bytes",
           std::to_string((image.data.size() - 8) / image.devices.size()), "8");
  list.ask("UNPAUSE of it", name_of(simple(kfd.fd, kUnpause)), "ok");
  list.ask("RESUME of a process that was not restored",
           name_of(simple(kfd.fd, kResume, static_cast<std::uint32_t>(::getpid()))), "EINVAL");

  // What a runtime has.
  const Memory vram = mapped(kfd, kKfdVa, 2 * kPage, kAllocVram | kWritable | kExecutableBo | kPublic);
  const Memory gtt = mapped(kfd, kKfdVa + 0x100000, kPage, kAllocGtt | kWritable | kCoherentBo);
  const Memory read_only = mapped(kfd, kKfdVa + 0x200000, kPage, kAllocVram);
  auto* memory = static_cast<unsigned char*>(
      ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const Memory own = allocate(kfd, kKfdVa + 0x300000, kPage, kAllocUserptr | kWritable,
                              reinterpret_cast<std::uintptr_t>(memory));
  (void)map_to_gpu(kfd, own);
  const Memory bells =
      allocate(kfd, kKfdVa + 0x400000, kDoorbellBytes, kAllocDoorbell | kWritable | kCoherentBo);
  const Memory mmio = allocate(kfd, kKfdVa + 0x500000, kPage, kAllocMmio | kWritable | kCoherentBo);
  const Bo gem = create(kfd.render, kPage, 0, kGtt, 0);
  const int dmabuf = export_bo(kfd.render, gem.handle, O_CLOEXEC | O_RDWR);
  Args import(24);
  import.u64(0, kKfdVa + 0x600000).u32(16, kfd.gpu.id).u32(20, static_cast<std::uint32_t>(dmabuf));
  if (vram.handle == 0 || gtt.handle == 0 || read_only.handle == 0 || own.error != 0 || bells.error != 0 ||
      mmio.error != 0 || questions::kfd(kfd.fd, 0x1d, import) != 0)
    return list.fail("the memory of a process");
  list.ask("PROCESS_INFO of seven kinds of memory", info(kfd.fd, image), "ok bos 7 objects 0");
  list.ask("private data for each BO",
           std::to_string((image.data.size() - 8 - 8 * image.devices.size()) / image.bos.size()),
           {"80", "272", "272"});
  (void)simple(kfd.fd, kUnpause);
  const Memory placeless = allocate(kfd, 0, kPage, kAllocGtt | kWritable);
  list.ask("PROCESS_INFO with a BO at address 0", info(kfd.fd, image),
           {"ok bos 7 objects 0", "ok bos 8 objects 0", "ok bos 8 objects 0"});
  (void)simple(kfd.fd, kUnpause);
  free_memory(kfd, placeless);
  const Memory page = mapped(kfd, kKfdVa + 0x700000, 32768, kAllocGtt | kWritable | kCoherentBo);
  Args first_event(32);
  first_event.u64(0, page.handle).u32(16, 1);
  Args second_event(32);
  second_event.u32(12, 3);
  if (questions::kfd(kfd.fd, 0x08, first_event) != 0 || questions::kfd(kfd.fd, 0x08, second_event) != 0)
    return list.fail("events");
  std::size_t before = (process_info(kfd.fd, image), image.data.size()) - record;
  list.ask("private data for each event",
           std::to_string((before - 8 - 8 * image.devices.size() - record * (image.bos.size() - 1)) / 2),
           "64");
  (void)simple(kfd.fd, kUnpause);
  const QueueBuffers buffers = queue_buffers(kfd, kKfdVa + 0x1000000);
  if (!buffers.made()) return list.fail("buffers of a queue");
  (void)process_info(kfd.fd, image);
  before = image.data.size();
  (void)simple(kfd.fd, kUnpause);
  Args sdma = create_queue(kfd, buffers, kSdma);
  list.ask("a queue to dump, SDMA", name_of(questions::kfd(kfd.fd, 0x02, sdma)), "ok");
  (void)process_info(kfd.fd, image);
  list.ask("private data for an SDMA queue", std::to_string(image.data.size() - before), "632");
  before = image.data.size();
  (void)simple(kfd.fd, kUnpause);
  Args aql = create_queue(kfd, buffers, kAql);
  list.ask("a queue to dump, AQL", name_of(questions::kfd(kfd.fd, 0x02, aql)), "ok");
  (void)process_info(kfd.fd, image);
  list.ask("private data for an AQL queue, beside the control stack",
           std::to_string(image.data.size() - before - save_area(kfd.gpu).ctl_stack_bytes),
           {"2168", "2168", "18446744073709516920"});
  (void)simple(kfd.fd, kUnpause);

  // CHECKPOINT.
  const auto nothing = [](Args&) {};
  list.ask("CHECKPOINT of what is not paused", checkpoint(kfd.fd, image, nothing), "EINVAL");
  list.ask("PROCESS_INFO", info(kfd.fd, image), "ok bos 13 objects 4");
  list.ask("CHECKPOINT without devices", checkpoint(kfd.fd, image, [](Args& a) { a.u64(0, 0); }), "EINVAL");
  list.ask("CHECKPOINT without BOs", checkpoint(kfd.fd, image, [](Args& a) { a.u64(8, 0); }), "EINVAL");
  list.ask("CHECKPOINT without private data", checkpoint(kfd.fd, image, [](Args& a) { a.u64(16, 0); }),
           "EINVAL");
  list.ask("CHECKPOINT, a device more",
           checkpoint(kfd.fd, image, [](Args& a) { a.u32(32, a.get32(32) + 1); }), "EINVAL");
  list.ask("CHECKPOINT, a BO less", checkpoint(kfd.fd, image, [](Args& a) { a.u32(36, a.get32(36) - 1); }),
           "EINVAL");
  list.ask("CHECKPOINT, an object more",
           checkpoint(kfd.fd, image, [](Args& a) { a.u32(40, a.get32(40) + 1); }), "EINVAL");
  list.ask("CHECKPOINT, 8 bytes less", checkpoint(kfd.fd, image, [](Args& a) { a.u64(24, a.get64(24) - 8); }),
           "EINVAL");
  list.ask("CHECKPOINT, BOs to address 8", checkpoint(kfd.fd, image, [](Args& a) { a.u64(8, 8); }), "EFAULT");
  list.ask("CHECKPOINT, devices to address 8", checkpoint(kfd.fd, image, [](Args& a) { a.u64(0, 8); }),
           "EFAULT");
  list.ask("CHECKPOINT, private data to address 8", checkpoint(kfd.fd, image, [](Args& a) { a.u64(16, 8); }),
           "EFAULT");
  Args dump = criu(image, kCheckpoint);
  list.ask("CHECKPOINT", name_of(questions::kfd(kfd.fd, 0x22, dump)), "ok");
  for (BoBucket& bo : image.bos)
    if (bo.dmabuf_fd != kNoFd && bo.addr != kKfdVa) ::close(static_cast<int>(bo.dmabuf_fd));
  bool ids = true, files = true;
  for (const DeviceBucket& device : image.devices) {
    ids = ids && device.user_gpu_id == device.actual_gpu_id && device.user_gpu_id != 0;
    files = files && device.drm_fd == 0;
  }
  list.ask("device buckets: both ids are the GPU's", ids ? "yes" : "no", "yes");
  list.ask("device buckets: drm_fd is 0", files ? "yes" : "no", "yes");
  list.ask("BO bucket, VRAM", bucket(image, vram.va, kfd.gpu),
           "size 8192 flags 0xe0000001 offset of render node fd restored offset 0");
  list.ask("BO bucket, GTT", bucket(image, gtt.va, kfd.gpu),
           "size 4096 flags 0x84000002 offset of render node fd restored offset 0");
  list.ask("BO bucket, VRAM that is not writable", bucket(image, read_only.va, kfd.gpu),
           "size 4096 flags 0x1 offset of render node fd restored offset 0");
  list.ask("BO bucket, userptr", bucket(image, own.va, kfd.gpu),
           "size 4096 flags 0x80000004 offset of render node no fd restored offset 0");
  list.ask("BO bucket, doorbells", bucket(image, bells.va, kfd.gpu),
           "size 8192 flags 0x84000008 offset of doorbells of the GPU no fd restored offset 0");
  list.ask("BO bucket, MMIO", bucket(image, mmio.va, kfd.gpu),
           "size 4096 flags 0x84000010 offset of MMIO of the GPU no fd restored offset 0");
  list.ask("BO bucket, an import", bucket(image, kKfdVa + 0x600000, kfd.gpu),
           "size 4096 flags 0xc0000002 offset of render node fd restored offset 0");
  for (const BoBucket& bo : image.bos) {
    if (bo.addr != vram.va || bo.dmabuf_fd == kNoFd) continue;
    const int fd = static_cast<int>(bo.dmabuf_fd);
    list.ask("a dumped BO's descriptor: close-on-exec",
             (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? "yes" : "no", "no");
    list.ask("a dumped BO's descriptor: access", hex(static_cast<unsigned>(::fcntl(fd, F_GETFL) & O_ACCMODE)),
             "0x2");
    const int other = open_render(kfd.gpu);
    list.ask("a dumped BO as a render file imports it", described(other, import_bo(other, fd).handle),
             {"ok 8192 align 4096 domains 0x4 flags 0x200", "ok 8192 align 4096 domains 0x4 flags 0x208",
              "ok 8192 align 4096 domains 0x4 flags 0x208"});
    ::close(other);
    ::close(fd);
  }
  const std::size_t queue = record_of(image, record, 0);
  list.ask("private data: version", std::to_string(word_at(image, 0)), "1");
  list.ask("private data: the first object", queue != 0 ? "a queue" : "something else", "a queue");
  list.ask("queue record: type, format, number",
           std::to_string(word_at(image, queue + 68)) + " " + std::to_string(word_at(image, queue + 72)) +
               " " + std::to_string(word_at(image, queue + 76)),
           "0 1 1");
  list.ask("queue record: priority, share",
           std::to_string(word_at(image, queue + 80)) + " " + std::to_string(word_at(image, queue + 84)),
           "7 100");
  list.ask("queue record: MQD and control stack",
           std::to_string(word_at(image, queue + 112)) + " " + std::to_string(word_at(image, queue + 108)),
           {"2048 36864", "2048 36864", "2048 0"});
  list.ask("CHECKPOINT again", checkpoint(kfd.fd, image, nothing), "ok");
  list.ask("UNPAUSE", name_of(simple(kfd.fd, kUnpause)), "ok");
  list.ask("UNPAUSE again", name_of(simple(kfd.fd, kUnpause)), "EINVAL");
  list.ask(
      "RESTORE into the process that was dumped",
      [&] {
        Image copy = image;
        for (DeviceBucket& device : copy.devices) device.drm_fd = static_cast<std::uint32_t>(kfd.render);
        Args args = criu(copy, kRestore);
        return name_of(questions::kfd(kfd.fd, 0x22, args));
      }(),
      "EINVAL");
  (void)simple(kfd.fd, kUnpause);

  // RESTORE, while the dumped process lives, and after its queues have gone.
  const auto as_it_is = [](Image&, Args&) {};
  list.ask("RESTORE beside the process that was dumped", restore(image, as_it_is), "EBUSY");
  (void)destroy_queue(kfd, sdma.get32(52));
  list.ask("RESTORE beside it, without its SDMA queue", restore(image, as_it_is), "ok");
  (void)destroy_queue(kfd, aql.get32(52));
  list.ask("RESTORE without devices", restore(image, [](Image&, Args& a) { a.u64(0, 0); }), "EINVAL");
  list.ask("RESTORE of no devices", restore(image, [](Image&, Args& a) { a.u32(32, 0); }), "EINVAL");
  list.ask("RESTORE without BOs", restore(image, [](Image&, Args& a) { a.u64(8, 0); }), "EINVAL");
  list.ask("RESTORE without private data", restore(image, [](Image&, Args& a) { a.u64(16, 0); }), "EINVAL");
  list.ask("RESTORE of no private data", restore(image, [](Image&, Args& a) { a.u64(24, 0); }), "EINVAL");
  list.ask("RESTORE, a device more",
           restore(image, [](Image& i, Args& a) { a.u32(32, i.devices.size() + 1); }), "EINVAL");
  list.ask("RESTORE, version 2", restore(image, [](Image& i, Args&) { put_word(i, 0, 2); }), "EINVAL");
  list.ask("RESTORE, user gpu_id 0", restore(image, [](Image& i, Args&) { i.devices[0].user_gpu_id = 0; }),
           "EINVAL");
  list.ask("RESTORE, GPU that there is not",
           restore(image, [](Image& i, Args&) { i.devices[0].actual_gpu_id = kNoGpu; }), "EINVAL");
  list.ask("RESTORE, drm_fd -1", restore(image, [](Image& i, Args&) { i.devices[0].drm_fd = kNoFd; }),
           "EINVAL");
  list.ask("RESTORE, drm_fd of /dev/null",
           restore(image,
                   [](Image& i, Args&) {
                     i.devices[0].drm_fd =
                         static_cast<std::uint32_t>(::open("/dev/null", O_RDWR | O_CLOEXEC));
                   }),
           "EINVAL");
  list.ask("RESTORE, a BO of a GPU that there is not",
           restore(image, [](Image& i, Args&) { i.bos[0].gpu_id = kNoGpu; }), "ENODEV");
  list.ask("RESTORE, a BO of no bytes", restore(image, [](Image& i, Args&) { i.bos[0].size = 0; }),
           {"ENOSPC", "EINVAL", "EINVAL"});
  list.ask("RESTORE, doorbells of a page",
           restore(image,
                   [](Image& i, Args&) {
                     for (BoBucket& bo : i.bos)
                       if ((bo.alloc_flags & kAllocDoorbell) != 0) bo.size = kPage;
                   }),
           "EINVAL");
  list.ask("RESTORE, a BO's handle beyond INT_MAX",
           restore(image, [](Image& i, Args&) { put_word(i, 8 + 8 * i.devices.size() + 8, 0x80000000); }),
           {"ENOMEM", "EINVAL", "EINVAL"});
  list.ask("RESTORE, two BOs with one handle",
           restore(image,
                   [record](Image& i, Args&) {
                     const std::size_t at = 8 + 8 * i.devices.size() + 8;
                     put_word(i, at, word_at(i, at + record));
                   }),
           "ENOMEM");
  list.ask("RESTORE, a BO mapped to a GPU that there is not",
           restore(image, [](Image& i, Args&) { put_word(i, 8 + 8 * i.devices.size() + 12, kNoGpu); }),
           "EINVAL");
  list.ask("RESTORE, 8 bytes less", restore(image, [](Image& i, Args& a) { a.u64(24, i.data.size() - 8); }),
           "EINVAL");
  list.ask("RESTORE, 8 bytes more",
           restore(image,
                   [](Image& i, Args& a) {
                     i.data.resize(i.data.size() + 8);
                     a.pointer(16, i.data.data()).u64(24, i.data.size());
                   }),
           "EINVAL");
  list.ask("RESTORE, an object less", restore(image, [](Image& i, Args& a) { a.u32(40, i.objects - 1); }),
           "EINVAL");
  list.ask("RESTORE, an object more", restore(image, [](Image& i, Args& a) { a.u32(40, i.objects + 1); }),
           "EINVAL");
  list.ask("RESTORE, an object of type 9",
           restore(image, [queue](Image& i, Args&) { put_word(i, queue, 9); }), "EINVAL");
  list.ask("RESTORE, a queue of type 9",
           restore(image, [queue](Image& i, Args&) { put_word(i, queue + 68, 9); }), "EINVAL");
  list.ask("RESTORE, a queue of a GPU that there is not",
           restore(image, [queue](Image& i, Args&) { put_word(i, queue + 64, kNoGpu); }), "EINVAL");
  list.ask(
      "RESTORE, an MQD of 4 bytes less",
      restore(image, [queue](Image& i, Args&) { put_word(i, queue + 112, word_at(i, queue + 112) - 4); }),
      "EINVAL");
  list.ask("RESTORE, two queues with one number",
           restore(image,
                   [queue, record](Image& i, Args&) {
                     const std::size_t next = queue + 120 + word_at(i, queue + 112) + word_at(i, queue + 108);
                     (void)record;
                     put_word(i, queue + 76, word_at(i, next + 76));
                   }),
           "ENOSPC");
  const std::size_t event = record_of(image, record, 1);
  list.ask("RESTORE, an event of type 77",
           restore(image, [event](Image& i, Args&) { put_word(i, event + 24, 77); }),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("RESTORE, an event's number beyond INT_MAX",
           restore(image, [event](Image& i, Args&) { put_word(i, event + 16, 0x80000000); }), "EINVAL");
  if (list.since_612())  // Linux 6.1 writes beyond the event page
    list.ask("RESTORE, a signal of number 5000",
             restore(image, [event](Image& i, Args&) { put_word(i, event + 16, 5000); }), "EINVAL");

  // One that is right, and what comes after it.
  list.ask("RESTORE", restore(image, as_it_is), "ok");
  list.ask("BO bucket after RESTORE, VRAM",
           restore(image, as_it_is,
                   [&](Restored r) {
                     for (BoBucket& bo : r.image.bos) bo.offset = bo.restored_offset;
                     return bucket(r.image, vram.va, kfd.gpu)
                         .substr(0, bucket(r.image, vram.va, kfd.gpu).find(" restored"));
                   }),
           "ok, size 8192 flags 0xe0000001 offset of render node fd");
  list.ask("BO bucket after RESTORE, doorbells",
           restore(image, as_it_is,
                   [&](Restored r) {
                     for (BoBucket& bo : r.image.bos) bo.offset = bo.restored_offset;
                     return bucket(r.image, bells.va, kfd.gpu)
                         .substr(0, bucket(r.image, bells.va, kfd.gpu).find(" restored"));
                   }),
           "ok, size 8192 flags 0x84000008 offset of doorbells of the GPU no fd");
  list.ask("BO bucket after RESTORE, userptr",
           restore(image, as_it_is, [&](Restored r) { return bucket(r.image, own.va, kfd.gpu); }),
           "ok, size 4096 flags 0x80000004 offset of render node no fd restored offset 0");
  list.ask(
      "a restored BO as its render file has it",
      restore(image, as_it_is,
              [&](Restored r) {
                for (const BoBucket& bo : r.image.bos)
                  if (bo.addr == vram.va)
                    return described(r.render, import_bo(r.render, static_cast<int>(bo.dmabuf_fd)).handle);
                return std::string("none");
              }),
      {"ok, ok 8192 align 4096 domains 0x4 flags 0x200", "ok, ok 8192 align 4096 domains 0x4 flags 0x208",
       "ok, ok 8192 align 4096 domains 0x4 flags 0x208"});
  list.ask("mmap of a restored BO by its render file",
           restore(image, as_it_is,
                   [&](Restored r) {
                     for (const BoBucket& bo : r.image.bos)
                       if (bo.addr == vram.va)
                         return ::mmap(nullptr, bo.size, PROT_READ | PROT_WRITE, MAP_SHARED, r.render,
                                       static_cast<off_t>(bo.restored_offset)) == MAP_FAILED
                                    ? name_of(errno)
                                    : std::string("ok");
                     return std::string("none");
                   }),
           "ok, ok");
  list.ask("UNPAUSE after RESTORE",
           restore(image, as_it_is, [](Restored r) { return name_of(simple(r.fd, kUnpause)); }),
           "ok, EINVAL");
  list.ask("RESTORE after RESTORE",
           restore(image, as_it_is,
                   [](Restored r) {
                     Args args = criu(r.image, kRestore);
                     return name_of(questions::kfd(r.fd, 0x22, args));
                   }),
           "ok, EINVAL");
  const auto resumed = [](Restored r, const std::function<std::string()>& then) {
    const int error = simple(r.fd, kResume, static_cast<std::uint32_t>(::getpid()));
    return error != 0 ? name_of(error) : "resumed, " + then();
  };
  list.ask("RESUME",
           restore(image, as_it_is, [&](Restored r) { return resumed(r, [] { return std::string("ok"); }); }),
           "ok, resumed, ok");
  list.ask("RESUME again",
           restore(image, as_it_is,
                   [&](Restored r) {
                     return resumed(r, [&] {
                       return name_of(simple(r.fd, kResume, static_cast<std::uint32_t>(::getpid())));
                     });
                   }),
           "ok, resumed, EINVAL");
  list.ask("DESTROY_QUEUE of a restored queue",
           restore(image, as_it_is,
                   [&](Restored r) {
                     return resumed(r, [&] {
                       Args args(8);
                       return name_of(questions::kfd(r.fd, 0x03, args));
                     });
                   }),
           "ok, resumed, ok");
  list.ask("UNMAP_MEMORY and FREE_MEMORY of a restored BO",
           restore(image, as_it_is,
                   [&](Restored r) {
                     Kfd restored = kfd;
                     restored.fd = r.fd;
                     return resumed(r, [&] {
                       const std::string unmapped = name_of(unmap_from_gpu(restored, vram));
                       return unmapped + ", " + name_of(free_memory(restored, vram));
                     });
                   }),
           "ok, resumed, ok, ok");
  list.ask("UNMAP_MEMORY of a restored queue's ring",
           restore(image, as_it_is,
                   [&](Restored r) {
                     Kfd restored = kfd;
                     restored.fd = r.fd;
                     return resumed(r, [&] { return name_of(unmap_from_gpu(restored, buffers.ring)); });
                   }),
           {"ok, resumed, ok", "ok, resumed, EBUSY", "ok, resumed, ok"});
  list.ask("PROCESS_INFO of a restored process",
           restore(image, as_it_is,
                   [&](Restored r) {
                     return resumed(r, [&] {
                       Image next;
                       const std::string counts = info(r.fd, next);
                       return counts + (next.data.size() == r.image.data.size() ? ", data as long"
                                                                                : ", data of another length");
                     });
                   }),
           "ok, resumed, ok bos 13 objects 4, data as long");
  list.ask("another user gpu_id: the handle's upper half is it",
           restore(image,
                   [](Image& i, Args&) {
                     for (DeviceBucket& device : i.devices)
                       if (device.actual_gpu_id == first_gpu().id) device.user_gpu_id = kNoGpu;
                     for (BoBucket& bo : i.bos)
                       if (bo.gpu_id == first_gpu().id) bo.gpu_id = kNoGpu;
                     i.objects = 0;
                   }),
           "EINVAL");
}

}  // namespace vamdgpu::questions
