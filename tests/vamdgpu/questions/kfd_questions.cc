// SPDX-License-Identifier: MIT
// Questions to /dev/kfd: what is refused without a GPU of that name, memory and its sharing, events, SVM, and
// what else a runtime asks at its start.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <tuple>
#include <vector>

#include "kfd_call.h"
#include "render.h"

namespace vamdgpu::questions {
namespace {

constexpr std::uint32_t kQueryDebugEvent = 11;  // of DBG_TRAP
constexpr std::size_t kApertureWords = 7, kMostNodes = 64;
constexpr const char* kOneContext = "the virtual driver has one context a process";

std::string map(int fd, std::uint64_t offset, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return name_of(errno);
  ::munmap(at, bytes);
  return "ok";
}

std::string allocated(const Kfd& kfd, std::uint64_t va, std::uint64_t bytes, std::uint32_t flags,
                      std::uint64_t user = 0) {
  const Memory memory = allocate(kfd, va, bytes, flags, user);
  if (memory.error != 0) return name_of(memory.error);
  return "ok, freed: " + name_of(free_memory(kfd, memory));
}

std::string map_devices(const Kfd& kfd, std::uint64_t handle, const std::vector<std::uint32_t>& ids,
                        unsigned nr) {
  Args args(24);
  args.u64(0, handle).pointer(8, ids.data()).u32(16, ids.size());
  const int error = questions::kfd(kfd.fd, nr, args);
  return name_of(error) + ", done " + std::to_string(args.get32(20));
}

int export_memory(const Kfd& kfd, std::uint64_t handle, unsigned flags) {
  Args args(16);
  args.u64(0, handle).u32(8, flags);
  const int error = questions::kfd(kfd.fd, 0x24, args);
  return error == 0 ? static_cast<int>(args.get32(12)) : -error;
}

std::string descriptor(int fd) {
  if (fd < 0) return name_of(-fd);
  ::close(fd);
  return "ok";
}

std::string dmabuf_info(const Kfd& kfd, int dmabuf, std::uint32_t room = 0) {
  std::array<std::uint32_t, 64> metadata{};
  Args args(32);
  args.u32(16, room).u32(28, static_cast<std::uint32_t>(dmabuf));
  if (room != 0) args.pointer(8, metadata.data());
  const int error = questions::kfd(kfd.fd, 0x1c, args);
  if (error != 0) return name_of(error);
  return "ok size " + std::to_string(args.get64(0)) + " metadata " + std::to_string(args.get32(16)) +
         (args.get32(20) == kfd.gpu.id ? " of the GPU" : " of another") + " flags " + hex(args.get32(24));
}

std::string import_memory(const Kfd& kfd, int dmabuf, std::uint64_t va, std::uint32_t gpu,
                          Memory* memory = nullptr) {
  Args args(24);
  args.u64(0, va).u32(16, gpu).u32(20, static_cast<std::uint32_t>(dmabuf));
  const int error = questions::kfd(kfd.fd, 0x1d, args);
  if (error == 0 && memory != nullptr) *memory = {0, args.get64(8), 0, va, 0};
  return name_of(error);
}

std::string apertures(const Kfd& kfd, unsigned nodes) {
  std::array<std::uint64_t, kApertureWords * kMostNodes> room{};
  Args args(16);
  args.pointer(0, room.data()).u32(8, nodes);
  const int error = questions::kfd(kfd.fd, 0x14, args);
  return error == 0 ? "ok " + std::to_string(args.get32(8)) : name_of(error);
}

// A word of the first GPU's apertures.
std::string aperture(const Kfd& kfd, unsigned word) {
  std::array<std::uint64_t, kApertureWords * kMostNodes> room{};
  Args args(16);
  args.pointer(0, room.data()).u32(8, 1);
  return questions::kfd(kfd.fd, 0x14, args) == 0 ? hex(room.at(word)) : "none";
}

std::string event(const Kfd& kfd, unsigned type, Args* made = nullptr) {
  Args args(32);
  args.u32(12, type).u32(16, 1);
  const int error = questions::kfd(kfd.fd, 0x08, args);
  if (made != nullptr) *made = args;
  return error == 0 ? "ok id " + hex(args.get32(24)) + " slot " + hex(args.get32(28)) + " trigger " +
                          hex(args.get32(8)) + " page " + hex(args.get64(0))
                    : name_of(error);
}

std::string wait_for(const Kfd& kfd, std::uint32_t id, std::uint32_t timeout) {
  std::array<std::uint32_t, 12> data{};
  data[10] = id;
  Args args(24);
  args.pointer(0, data.data()).u32(8, 1).u32(12, 1).u32(16, timeout);
  const int error = questions::kfd(kfd.fd, 0x0c, args);
  return error == 0 ? "ok result " + std::to_string(args.get32(20)) : name_of(error);
}

std::string svm(const Kfd& kfd, std::uint64_t start, std::uint64_t bytes, unsigned op,
                const std::vector<std::pair<std::uint32_t, std::uint32_t>>& attributes, unsigned shown = 0) {
  Args args(24 + 8 * static_cast<unsigned>(attributes.size()));
  args.u64(0, start).u64(8, bytes).u32(16, op).u32(20, attributes.size());
  for (unsigned i = 0; i < attributes.size(); ++i)
    args.u32(24 + 8 * i, attributes[i].first).u32(28 + 8 * i, attributes[i].second);
  const int error = questions::kfd(kfd.fd, 0x20, args);
  std::string answer = name_of(error);
  for (unsigned i = 0; error == 0 && i < shown; ++i)
    answer += " " + std::to_string(args.get32(24 + 8 * i)) + "=" +
              (args.get32(28 + 8 * i) == kfd.gpu.id ? "the GPU" : hex(args.get32(28 + 8 * i)));
  return answer;
}

}  // namespace

// Before any VM: what a /dev/kfd says of itself, and of GPUs that there are not.
void ask_without_gpu(List& list) {
  const int fd = ::open("/dev/kfd", O_RDWR | O_CLOEXEC);
  if (fd < 0) return list.fail(std::string("/dev/kfd: ") + name_of(errno));
  list.ask("GET_VERSION", asked(fd, 0x01, Args(8), {0, 4}), {"ok 1 11", "ok 1 17", "ok 1 23"});
  list.ask("GET_VERSION with room to spare", asked(fd, 0x01, Args(64), {0, 4}),
           {"ok 1 11", "ok 1 17", "ok 1 23"});
  list.ask("number 0", asked(fd, 0x00, Args(8)), "ENOTTY");
  list.ask("number 0x7f", asked(fd, 0x7f, Args(16)), "ENOTTY");
  list.ask("number 0xf0", asked(fd, 0xf0, Args(16)), "ENOTTY");
  list.ask("CREATE_QUEUE, share above 100 %", asked(fd, 0x02, Args(96).u32(44, 101)), "EINVAL");
  list.ask("CREATE_QUEUE, priority 16", asked(fd, 0x02, Args(96).u32(48, 16)), "EINVAL");
  list.ask("CREATE_QUEUE, ring of 3000 bytes", asked(fd, 0x02, Args(96).u32(32, 3000)), "EINVAL");
  list.ask("CREATE_QUEUE, type 77", asked(fd, 0x02, Args(96).u32(40, 77)), "errno 524");
  list.ask("CREATE_QUEUE, no such GPU", asked(fd, 0x02, Args(96).u32(32, 4096).u32(36, kNoGpu)), "EINVAL");
  list.ask("DESTROY_QUEUE, no such queue", asked(fd, 0x03, Args(8).u32(0, 5)), "EINVAL");
  list.ask("SET_MEMORY_POLICY, no such GPU", asked(fd, 0x04, Args(32).u32(16, kNoGpu)), "EINVAL");
  list.ask("SET_MEMORY_POLICY, policy 9", asked(fd, 0x04, Args(32).u32(16, kNoGpu).u32(20, 9)), "EINVAL");
  list.ask("GET_CLOCK_COUNTERS, GPU 0", asked(fd, 0x05, Args(40)), "ok");
  list.ask("UPDATE_QUEUE, no such queue", asked(fd, 0x07, Args(24).u32(8, 5)), "EFAULT");
  list.ask("UPDATE_QUEUE, share above 100 %", asked(fd, 0x07, Args(24).u32(16, 101)), "EINVAL");
  list.ask("CREATE_EVENT HW_EXCEPTION", asked(fd, 0x08, Args(32).u32(12, 3), {24}), "ok 1073741824");
  list.ask("CREATE_EVENT MEMORY", asked(fd, 0x08, Args(32).u32(12, 8), {24}), "ok 1073741825");
  list.ask("CREATE_EVENT of type 1", asked(fd, 0x08, Args(32).u32(12, 1)), "ok");
  list.ask("CREATE_EVENT of type 99", asked(fd, 0x08, Args(32).u32(12, 99)), "ok");
  list.ask("SET_EVENT MEMORY", asked(fd, 0x0a, Args(8).u32(0, 0x40000001)), "EINVAL");
  list.ask("RESET_EVENT HW_EXCEPTION", asked(fd, 0x0b, Args(8).u32(0, 0x40000000)), "EINVAL");
  list.ask("SET_EVENT, no such event", asked(fd, 0x0a, Args(8).u32(0, 77)), "EINVAL");
  list.ask("RESET_EVENT, no such event", asked(fd, 0x0b, Args(8).u32(0, 77)), "EINVAL");
  list.ask("DESTROY_EVENT, no such event", asked(fd, 0x09, Args(8).u32(0, 77)), "EINVAL");
  list.ask("DESTROY_EVENT MEMORY", asked(fd, 0x09, Args(8).u32(0, 0x40000001)), "ok");
  list.ask("DESTROY_EVENT MEMORY again", asked(fd, 0x09, Args(8).u32(0, 0x40000001)), "EINVAL");
  list.ask("WAIT_EVENTS for none", asked(fd, 0x0c, Args(24)), "ok");
  list.ask("WAIT_EVENTS, 5000 of them", asked(fd, 0x0c, Args(24).u32(8, 5000)),
           {"EFAULT", "EFAULT", "ENOMEM"});
  list.ask("WAIT_EVENTS, list at address 8", asked(fd, 0x0c, Args(24).u32(0, 8).u32(8, 1)), "EFAULT");
  list.ask("DBG_REGISTER", asked(fd, 0x0d, Args(8)), "EPERM");
  list.ask("DBG_UNREGISTER", asked(fd, 0x0e, Args(8)), "EPERM");
  list.ask("DBG_ADDRESS_WATCH", asked(fd, 0x0f, Args(16)), "EPERM");
  list.ask("DBG_WAVE_CONTROL", asked(fd, 0x10, Args(16)), "EPERM");
  list.ask("SET_SCRATCH_BACKING_VA, no such GPU", asked(fd, 0x11, Args(16).u32(8, kNoGpu)), "EINVAL");
  list.ask("GET_TILE_CONFIG, no such GPU", asked(fd, 0x12, Args(40).u32(32, kNoGpu)), "EINVAL");
  list.ask("SET_TRAP_HANDLER, no such GPU", asked(fd, 0x13, Args(24).u32(16, kNoGpu)), "EINVAL");
  list.ask("ACQUIRE_VM, fd -1", asked(fd, 0x15, Args(8).u32(0, 0xffffffff).u32(4, kNoGpu)), "EINVAL");
  list.ask("ACQUIRE_VM, no such GPU", asked(fd, 0x15, Args(8).u32(0, 0).u32(4, kNoGpu)), "EINVAL");
  list.ask("ALLOC_MEMORY of no bytes", asked(fd, 0x16, Args(40).u32(24, kNoGpu).u32(28, 1)), "EINVAL");
  list.ask("ALLOC_MEMORY, no such GPU",
           asked(fd, 0x16, Args(40).u32(0, 0x10000000).u32(8, 4096).u32(32, kNoGpu).u32(36, 1)), "EINVAL");
  list.ask("FREE_MEMORY, no such handle", asked(fd, 0x17, Args(8).u32(0, 1).u32(4, kNoGpu)), "EINVAL");
  list.ask("MAP_MEMORY on no device", asked(fd, 0x18, Args(24).u32(0, 1).u32(4, kNoGpu)), "EINVAL");
  list.ask("MAP_MEMORY, list at address 8",
           asked(fd, 0x18, Args(24).u32(0, 1).u32(4, kNoGpu).u32(8, 8).u32(16, 1)), "EFAULT");
  list.ask("MAP_MEMORY, more done than asked",
           asked(fd, 0x18, Args(24).u32(0, 1).u32(4, kNoGpu).u32(16, 1).u32(20, 2)), "EINVAL");
  list.ask("UNMAP_MEMORY on no device", asked(fd, 0x19, Args(24).u32(0, 1).u32(4, kNoGpu)), "EINVAL");
  list.ask("SET_CU_MASK, no bits", asked(fd, 0x1a, Args(16)), "EINVAL");
  list.ask("GET_DMABUF_INFO, fd -1", asked(fd, 0x1c, Args(32).u32(24, 0xffffffff)), "EINVAL");
  list.ask("IMPORT_DMABUF, no such GPU", asked(fd, 0x1d, Args(24).u32(16, kNoGpu).u32(20, 0xffffffff)),
           {"EBADF", "EINVAL", "EINVAL"});
  list.ask("ALLOC_QUEUE_GWS, no such queue", asked(fd, 0x1e, Args(16).u32(0, 5)), "EINVAL");
  list.ask("SMI_EVENTS, no such GPU", asked(fd, 0x1f, Args(8).u32(0, kNoGpu)), "EINVAL");
  list.ask("SVM, no bytes", asked(fd, 0x20, Args(24).u32(0, 0x10000000)), {"EPERM", "EPERM", "EINVAL"},
           "EINVAL", kWithSvm);
  list.ask("SVM, address not of a page", asked(fd, 0x20, Args(24).u32(0, 0x10000001).u32(8, 4096)),
           {"EPERM", "EPERM", "EINVAL"}, "EINVAL", kWithSvm);
  list.ask("SVM set, before any VM", asked(fd, 0x20, Args(24).u32(0, 0x10000000).u32(8, 4096)),
           {"EPERM", "EPERM", "EINVAL"}, "EINVAL", kWithSvm);
  list.ask("SVM, op 9", asked(fd, 0x20, Args(24).u32(0, 0x10000000).u32(8, 4096).u32(16, 9)),
           {"EPERM", "EPERM", "EINVAL"}, "EINVAL", kWithSvm);
  list.ask("SVM, more attributes than bytes",
           asked(fd, 0x20, Args(24).u32(0, 0x10000000).u32(8, 4096).u32(20, 3)), "EINVAL");
  list.ask("SET_XNACK_MODE, asked", asked(fd, 0x21, Args(4).u32(0, 0xffffffff), {0}),
           {"EPERM", "EPERM", "ok 0"}, "ok 0", kWithSvm);
  list.ask("CRIU_OP 9", asked(fd, 0x22, Args(56).u32(48, 9)), "EINVAL");
  list.ask("CRIU_OP CHECKPOINT of nothing", asked(fd, 0x22, Args(56).u32(48, 1)), "EINVAL");
  list.ask("CRIU_OP UNPAUSE of what is not paused", asked(fd, 0x22, Args(56).u32(48, 2)), "EINVAL");
  list.ask("CRIU_OP RESTORE of nothing", asked(fd, 0x22, Args(56).u32(48, 3)), "EINVAL");
  list.ask("CRIU_OP RESUME of no process", asked(fd, 0x22, Args(56).u32(44, 0x7ffffff).u32(48, 4)), "ESRCH");
  list.ask("AVAILABLE_MEMORY, no such GPU", asked(fd, 0x23, Args(16).u32(8, kNoGpu)), "EINVAL");
  list.ask("EXPORT_DMABUF, no such handle", asked(fd, 0x24, Args(16).u32(0, 1).u32(4, kNoGpu)),
           {"ENOTTY", "EINVAL", "EINVAL"});
  list.ask("RUNTIME_ENABLE", asked(fd, 0x25, Args(16).u32(8, 1)), {"ENOTTY", "ok", "ok"});
  list.ask("RUNTIME_ENABLE again", asked(fd, 0x25, Args(16).u32(8, 1)), {"ENOTTY", "EBUSY", "EBUSY"});
  list.ask("RUNTIME_ENABLE, off", asked(fd, 0x25, Args(16)), {"ENOTTY", "ok", "ok"});
  list.ask("DBG_TRAP, no such process", asked(fd, 0x26, Args(32).u32(0, 0x7ffffff)),
           {"ENOTTY", "ESRCH", "ESRCH"});
  list.ask("DBG_TRAP, an event of a process that nobody debugs",
           asked(fd, 0x26, Args(32).u32(0, static_cast<std::uint32_t>(::getpid())).u32(4, kQueryDebugEvent)),
           {"ENOTTY", "EINVAL", "EINVAL"});
  list.ask("an ioctl at address 8",
           ::ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'K', 1U, 8U), 8) == 0 ? "ok" : name_of(errno), "EFAULT");
  list.ask("an ioctl of type 'X'", ::ioctl(fd, _IOC(_IOC_READ, 'X', 1U, 8U), 8) == 0 ? "ok" : name_of(errno),
           "EFAULT");
  const std::uint64_t gpu = std::uint64_t{kNoGpu} << 46;
  list.ask("mmap of doorbells, no such GPU", map(fd, std::uint64_t{3} << 62 | gpu, kDoorbellBytes), "ENODEV");
  list.ask("mmap of MMIO, no such GPU", map(fd, gpu, kPage), "ENODEV");
  list.ask("mmap of events, of which there is no page", map(fd, std::uint64_t{2} << 62, 32768), "EINVAL");
  list.ask("mmap of the reserved type, no such GPU", map(fd, std::uint64_t{1} << 62 | gpu, kPage),
           {"ENODEV", "ENODEV", "EINVAL"});
  // The GPU is there, but its VM was not acquired.
  Kfd kfd;
  kfd.fd = fd;
  kfd.gpu = first_gpu();
  if (kfd.gpu.id == 0) return list.fail("a GPU in the topology");
  list.ask("ALLOC_MEMORY before any VM", allocated(kfd, kKfdVa, kPage, kAllocVram | kWritable), "ENODEV");
  list.ask("SET_MEMORY_POLICY before any VM", asked(fd, 0x04, Args(32).u32(16, kfd.gpu.id)), "ESRCH");
  list.ask("SET_TRAP_HANDLER before any VM", asked(fd, 0x13, Args(24).u32(16, kfd.gpu.id)), "ESRCH");
  list.ask("SET_SCRATCH_BACKING_VA before any VM", asked(fd, 0x11, Args(16).u32(8, kfd.gpu.id)), "ENODEV");
  list.ask("CREATE_QUEUE before any VM",
           asked(fd, 0x02, Args(96).u32(32, 4096).u32(36, kfd.gpu.id).u32(40, 1)), "ESRCH");
  list.ask("GET_TILE_CONFIG", asked(fd, 0x12, Args(40).u32(24, kfd.gpu.id), {16, 20}), "ok 0 0");
  list.ask("AVAILABLE_MEMORY before any VM", asked(fd, 0x23, Args(16).u32(8, kfd.gpu.id)), "ok");
  list.ask("MAP_MEMORY of no handle, before any VM",
           asked(fd, 0x18, Args(24).u32(0, 1).u32(4, kfd.gpu.id).pointer(8, &kfd.gpu.id).u32(16, 1)),
           "ENODEV");
  list.ask("FREE_MEMORY of no handle, before any VM", asked(fd, 0x17, Args(8).u32(0, 1).u32(4, kfd.gpu.id)),
           "EINVAL");
  list.ask("EXPORT_DMABUF of no handle, before any VM",
           asked(fd, 0x24, Args(16).u32(0, 1).u32(4, kfd.gpu.id)), {"ENOTTY", "EINVAL", "EINVAL"});
  list.ask("IMPORT_DMABUF, fd -1, before any VM", import_memory(kfd, -1, kKfdVa, kfd.gpu.id),
           {"EBADF", "ENODEV", "ENODEV"});
  list.ask("GET_CLOCK_COUNTERS of the GPU", asked(fd, 0x05, Args(40).u32(32, kfd.gpu.id)), "ok");
  list.ask("ACQUIRE_VM with /dev/kfd",
           asked(fd, 0x15, Args(8).u32(0, static_cast<unsigned>(fd)).u32(4, kfd.gpu.id)), "EINVAL");
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  list.ask("ACQUIRE_VM with /dev/null",
           asked(fd, 0x15, Args(8).u32(0, static_cast<unsigned>(null)).u32(4, kfd.gpu.id)), "EINVAL");
  if (list.since_612()) {  // Linux 6.1 oopses in UNPAUSE
    list.ask("CRIU_OP PROCESS_INFO before any VM", asked(fd, 0x22, Args(56)), "ok");
    list.ask("CRIU_OP UNPAUSE before any VM", asked(fd, 0x22, Args(56).u32(48, 2)), "ok");
  }
  // Since Linux 7.2 this makes the file one of a second context, which has neither SVM nor a debugger.
  const int second = ::open("/dev/kfd", O_RDWR | O_CLOEXEC);
  list.ask("CREATE_PROCESS", asked(second, 0x27, Args(8)), {"ENOTTY", "ENOTTY", "ok"},
           {"ENOTTY", "ENOTTY", "EINVAL"}, kOneContext);
  if (list.since_72()) {
    list.ask("CREATE_PROCESS again", asked(second, 0x27, Args(8)), "EINVAL", "EINVAL", kOneContext);
    list.ask("SVM of a second context", asked(second, 0x20, Args(24).u32(0, 0x10000000).u32(8, 4096)),
             "EOPNOTSUPP", "EINVAL", kOneContext);
    list.ask("CRIU_OP PROCESS_INFO of a second context", asked(second, 0x22, Args(56)), "ok");
    list.ask("CRIU_OP UNPAUSE of a second context", asked(second, 0x22, Args(56).u32(48, 2)), "ok");
  }
  list.ask("PROFILER, op 0", asked(fd, 0x28, Args(16)), {"ENOTTY", "ENOTTY", "EINVAL"});
}

void ask_kfd_memory(List& list) {
  const Kfd kfd = open_kfd(list);
  if (kfd.fd < 0) return;
  Args again(8);
  again.u32(0, static_cast<unsigned>(kfd.render)).u32(4, kfd.gpu.id);
  list.ask("ACQUIRE_VM again, same file", asked(kfd.fd, 0x15, again), "ok");
  const int other = open_render(kfd.gpu);
  Args second(8);
  second.u32(0, static_cast<unsigned>(other)).u32(4, kfd.gpu.id);
  list.ask("ACQUIRE_VM again, another file", asked(kfd.fd, 0x15, second), "EBUSY");

  // Sizes, types and addresses.
  list.ask("ALLOC_MEMORY, VRAM", allocated(kfd, kKfdVa, kPage, kAllocVram | kWritable), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, VRAM, public", allocated(kfd, kKfdVa, kPage, kAllocVram | kWritable | kPublic),
           "ok, freed: ok");
  list.ask("ALLOC_MEMORY, VRAM, contiguous",
           allocated(kfd, kKfdVa, kPage, kAllocVram | kWritable | kContiguousBo), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, GTT", allocated(kfd, kKfdVa, kPage, kAllocGtt | kWritable), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, GTT, memory of a queue",
           allocated(kfd, kKfdVa, 2 * kPage, kAllocGtt | kWritable | kQueueMemory), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, VRAM and GTT", allocated(kfd, kKfdVa, kPage, kAllocVram | kAllocGtt),
           "ok, freed: ok");
  list.ask("ALLOC_MEMORY of no type", allocated(kfd, kKfdVa, kPage, kWritable), "EINVAL");
  list.ask("ALLOC_MEMORY, unknown flag", allocated(kfd, kKfdVa, kPage, kAllocVram | 1U << 10),
           "ok, freed: ok");
  list.ask("ALLOC_MEMORY of 100 bytes", allocated(kfd, kKfdVa, 100, kAllocGtt | kWritable), "ok, freed: ok");
  list.ask("ALLOC_MEMORY at address 0", allocated(kfd, 0, kPage, kAllocGtt | kWritable), "ok, freed: ok");
  list.ask("ALLOC_MEMORY at an address not of a page",
           allocated(kfd, kKfdVa + 8, kPage, kAllocGtt | kWritable), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, more than there is", allocated(kfd, kKfdVa, std::uint64_t{1} << 42, kAllocVram),
           "ENOMEM");
  list.ask("ALLOC_MEMORY, userptr at 0", allocated(kfd, kKfdVa, kPage, kAllocUserptr | kWritable, 0),
           "EINVAL");
  auto* memory = static_cast<unsigned char*>(
      ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto user = reinterpret_cast<std::uintptr_t>(memory);
  list.ask("ALLOC_MEMORY, userptr", allocated(kfd, kKfdVa, kPage, kAllocUserptr | kWritable, user),
           "ok, freed: ok");
  list.ask("ALLOC_MEMORY, userptr not of a page",
           allocated(kfd, kKfdVa, kPage, kAllocUserptr | kWritable, user + 8), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, userptr not there",
           allocated(kfd, kKfdVa, kPage, kAllocUserptr | kWritable, 0x10000), "EFAULT");
  list.ask("ALLOC_MEMORY, doorbells", allocated(kfd, kKfdVa, kDoorbellBytes, kAllocDoorbell | kWritable),
           "ok, freed: ok");
  list.ask("ALLOC_MEMORY, doorbells of a page", allocated(kfd, kKfdVa, kPage, kAllocDoorbell | kWritable),
           "EINVAL");
  list.ask("ALLOC_MEMORY, MMIO", allocated(kfd, kKfdVa, kPage, kAllocMmio | kWritable), "ok, freed: ok");
  list.ask("ALLOC_MEMORY, MMIO of two pages", allocated(kfd, kKfdVa, 2 * kPage, kAllocMmio | kWritable),
           "EINVAL");

  // One buffer's life.
  const Memory bo = allocate(kfd, kKfdVa, 2 * kPage, kAllocVram | kWritable | kPublic);
  list.ask("the upper half of a handle", bo.handle >> 32 == kfd.gpu.id ? "the gpu_id" : hex(bo.handle >> 32),
           "the gpu_id");
  list.ask("the lower half of a handle, after others were freed", hex(bo.handle & 0xffffffff), "0");
  list.ask("mmap of KFD memory by the render file", map(kfd.render, bo.offset, 2 * kPage), "ok");
  list.ask("mmap of KFD memory by another render file", map(other, bo.offset, 2 * kPage), "EACCES");
  list.ask("mmap of KFD memory by /dev/kfd", map(kfd.fd, bo.offset, 2 * kPage), "ENODEV");
  list.ask("MAP_MEMORY of a handle that there is not", map_devices(kfd, bo.handle + 50, {kfd.gpu.id}, 0x18),
           "ENOMEM, done 0");
  list.ask("MAP_MEMORY to a GPU that there is not", map_devices(kfd, bo.handle, {kNoGpu}, 0x18),
           "EINVAL, done 0");
  list.ask("MAP_MEMORY to the GPU and one that there is not",
           map_devices(kfd, bo.handle, {kfd.gpu.id, kNoGpu}, 0x18), "EINVAL, done 1");
  list.ask("MAP_MEMORY", map_devices(kfd, bo.handle, {kfd.gpu.id}, 0x18), "ok, done 1");
  list.ask("MAP_MEMORY again", map_devices(kfd, bo.handle, {kfd.gpu.id}, 0x18), "ok, done 1");
  list.ask("MAP_MEMORY of one GPU twice", map_devices(kfd, bo.handle, {kfd.gpu.id, kfd.gpu.id}, 0x18),
           "ok, done 2");
  list.ask("FREE_MEMORY of what is mapped", name_of(free_memory(kfd, bo)), "EBUSY");
  const Memory same = allocate(kfd, kKfdVa, kPage, kAllocGtt | kWritable);
  list.ask("ALLOC_MEMORY at an address that is in use", name_of(same.error), "ok");
  if (same.error == 0) {
    list.ask("MAP_MEMORY where something is", name_of(map_to_gpu(kfd, same)), "EINVAL");
    list.ask("FREE_MEMORY of what could not be mapped", name_of(free_memory(kfd, same)), "ok");
  }
  list.ask("UNMAP_MEMORY of a handle that there is not", map_devices(kfd, bo.handle + 50, {kfd.gpu.id}, 0x19),
           "ENOMEM, done 0");
  list.ask("UNMAP_MEMORY from a GPU that there is not", map_devices(kfd, bo.handle, {kNoGpu}, 0x19),
           "EINVAL, done 0");
  list.ask("UNMAP_MEMORY", map_devices(kfd, bo.handle, {kfd.gpu.id}, 0x19), "ok, done 1");
  list.ask("UNMAP_MEMORY again", map_devices(kfd, bo.handle, {kfd.gpu.id}, 0x19), "EINVAL, done 0");
  list.ask("FREE_MEMORY", name_of(free_memory(kfd, bo)), "ok");
  list.ask("FREE_MEMORY again", name_of(free_memory(kfd, bo)), "EINVAL");
  const Memory unaligned = allocate(kfd, kKfdVa + 8, kPage, kAllocGtt | kWritable);
  if (unaligned.error == 0) {
    list.ask("MAP_MEMORY at an address not of a page", name_of(map_to_gpu(kfd, unaligned)), "EINVAL");
    free_memory(kfd, unaligned);
  }
  const Memory low = allocate(kfd, 0x1000, kPage, kAllocGtt | kWritable);
  list.ask("MAP_MEMORY below the first VA",
           low.error == 0 ? name_of(map_to_gpu(kfd, low)) : name_of(low.error), {"EINVAL", "ok", "ok"});
  unmap_from_gpu(kfd, low);
  free_memory(kfd, low);

  // Sharing.
  const Memory shared = mapped(kfd, kKfdVa, 2 * kPage, kAllocVram | kWritable | kPublic);
  const Memory plain = mapped(kfd, kKfdVa + 0x100000, kPage, kAllocVram);
  const Memory own = allocate(kfd, kKfdVa + 0x200000, kPage, kAllocUserptr | kWritable, user);
  list.ask("EXPORT_DMABUF of a handle that there is not",
           descriptor(export_memory(kfd, shared.handle + 50, O_CLOEXEC)), {"ENOTTY", "EINVAL", "EINVAL"});
  list.ask("EXPORT_DMABUF, userptr", descriptor(export_memory(kfd, own.handle, O_CLOEXEC)),
           {"ENOTTY", "EPERM", "EPERM"});
  list.ask("EXPORT_DMABUF of what is not writable", descriptor(export_memory(kfd, plain.handle, O_CLOEXEC)),
           {"ENOTTY", "ok", "ok"});
  list.ask("EXPORT_DMABUF, unknown flags", descriptor(export_memory(kfd, shared.handle, 0x10)),
           {"ENOTTY", "ok", "ok"});
  int dmabuf = export_memory(kfd, shared.handle, O_CLOEXEC | O_RDWR);
  list.ask("EXPORT_DMABUF", dmabuf < 0 ? name_of(-dmabuf) : "ok", {"ENOTTY", "ok", "ok"});
  if (dmabuf < 0) {  // before Linux 6.2; what a render file exports serves as well
    const Bo gem = create(other, 2 * kPage, 0, kVram, 0);
    dmabuf = export_bo(other, gem.handle, O_CLOEXEC | O_RDWR);
  } else {
    list.ask("PRIME_FD_TO_HANDLE of KFD memory by the render file",
             "handle " + std::to_string(import_bo(kfd.render, dmabuf).handle), "handle 1");
    list.ask("KFD memory as a render file has it",
             described(kfd.render, import_bo(kfd.render, dmabuf).handle),
             "ok 8192 align 4096 domains 0x4 flags 0x208");
    const Bo foreign = import_bo(other, dmabuf);
    list.ask("PRIME_FD_TO_HANDLE of KFD memory by another render file", name_of(foreign.error), "ok");
    list.ask("KFD memory as another render file lists it", listed(other),
             {"", "EINVAL", "ok 1, handle 1 8192 domains 0x4 flags 0x208 align 1"});
    list.ask("GET_MAPPING_INFO of KFD memory, by the file whose VM it is",
             mappings(kfd.render, import_bo(kfd.render, dmabuf).handle),
             {"", "EINVAL", "ok 1 0x10000000000+0x2000@0 flags 0x6"});
    const Memory coherent = allocate(kfd, kKfdVa + 0x500000, kPage, kAllocGtt | kWritable | kCoherentBo);
    for (const auto& [question, shown, expected] :
         {std::tuple{"KFD memory that is not public, as a render file has it", plain,
                     "ok 4096 align 4096 domains 0x4 flags 0x208"},
          std::tuple{"KFD memory that is coherent, as a render file has it", coherent,
                     "ok 4096 align 4096 domains 0x2 flags 0x2200"}}) {
      const int fd = export_memory(kfd, shown.handle, O_CLOEXEC);
      list.ask(question, described(other, import_bo(other, fd).handle), expected);
      ::close(fd);
    }
    list.ask("the same dma-buf again", descriptor(export_memory(kfd, shared.handle, O_CLOEXEC)), "ok");
  }
  list.ask("GET_DMABUF_INFO", dmabuf_info(kfd, dmabuf), "ok size 8192 metadata 0 of the GPU flags 0x1");
  list.ask("GET_DMABUF_INFO with room for metadata", dmabuf_info(kfd, dmabuf, 64),
           "ok size 8192 metadata 0 of the GPU flags 0x1");
  const Bo told = create(other, kPage, 0, kGtt, 0);
  Args metadata(288);
  (void)drm(other, 0x46, metadata.u32(0, told.handle).u32(4, 1).u32(24, 8));
  const int told_dmabuf = export_bo(other, told.handle, O_CLOEXEC | O_RDWR);
  list.ask("GET_DMABUF_INFO of 8 bytes of metadata, not asked for", dmabuf_info(kfd, told_dmabuf),
           {"ok size 4096 metadata 0 of the GPU flags 0x2", "EINVAL", "EINVAL"});
  list.ask("GET_DMABUF_INFO of 8 bytes of metadata", dmabuf_info(kfd, told_dmabuf, 8),
           "ok size 4096 metadata 8 of the GPU flags 0x2");
  ::close(told_dmabuf);
  list.ask("GET_DMABUF_INFO of a render file", dmabuf_info(kfd, other), "EINVAL");
  list.ask("IMPORT_DMABUF to a GPU that there is not", import_memory(kfd, dmabuf, kKfdVa + 0x300000, kNoGpu),
           "EINVAL");
  list.ask("IMPORT_DMABUF of a render file", import_memory(kfd, other, kKfdVa + 0x300000, kfd.gpu.id),
           "EINVAL");
  list.ask("IMPORT_DMABUF, fd -1", import_memory(kfd, -1, kKfdVa + 0x300000, kfd.gpu.id), "EBADF");
  Memory imported;
  list.ask("IMPORT_DMABUF", import_memory(kfd, dmabuf, kKfdVa + 0x300000, kfd.gpu.id, &imported), "ok");
  list.ask("MAP_MEMORY of an import", name_of(map_to_gpu(kfd, imported)), "ok");
  list.ask("EXPORT_DMABUF of an import", descriptor(export_memory(kfd, imported.handle, O_CLOEXEC)),
           {"ENOTTY", "ok", "ok"});
  list.ask("UNMAP_MEMORY of an import", name_of(unmap_from_gpu(kfd, imported)), "ok");
  list.ask("FREE_MEMORY of an import", name_of(free_memory(kfd, imported)), "ok");
  list.ask("FREE_MEMORY of a userptr", name_of(free_memory(kfd, own)), "ok");
  // The VM is the render file's, too.
  const Bo gem = create(kfd.render, kPage, 0, kGtt, 0);
  list.ask("GEM_VA on the VM of the KFD",
           va(kfd.render, {gem.handle, kMap, kRwx, kKfdVa + 0x400000, 0, kPage}), "ok");
  list.ask("GEM_VA where KFD memory is", va(kfd.render, {gem.handle, kMap, kRwx, kKfdVa, 0, kPage}),
           "EINVAL");
  const Memory over = allocate(kfd, kKfdVa + 0x400000, kPage, kAllocGtt | kWritable);
  list.ask("MAP_MEMORY where a GEM BO is", name_of(map_to_gpu(kfd, over)), "EINVAL");
}

void ask_kfd_rest(List& list) {
  const Kfd kfd = open_kfd(list);
  if (kfd.fd < 0) return;
  const unsigned nodes = topology_nodes();
  list.ask("GET_PROCESS_APERTURES_NEW, how many",
           apertures(kfd, 0) == "ok " + std::to_string(visible_gpus()) ? "the GPUs" : apertures(kfd, 0),
           "the GPUs");
  list.ask("GET_PROCESS_APERTURES_NEW of one", apertures(kfd, 1), "ok 1");
  list.ask(
      "GET_PROCESS_APERTURES_NEW of as many as there are nodes",
      apertures(kfd, nodes) == "ok " + std::to_string(visible_gpus()) ? "the GPUs" : apertures(kfd, nodes),
      "the GPUs");
  list.ask("GET_PROCESS_APERTURES_NEW of more than there are nodes", apertures(kfd, nodes + 1),
           {"ok 1", "EINVAL", "EINVAL"});
  list.ask("GET_PROCESS_APERTURES_NEW to address 8", asked(kfd.fd, 0x14, Args(16).u64(0, 8).u32(8, 1)),
           "EFAULT");
  list.ask("LDS aperture: first", aperture(kfd, 0), "0x1000000000000");
  list.ask("LDS aperture: last", aperture(kfd, 1), "0x10000ffffffff");
  list.ask("scratch aperture: first", aperture(kfd, 2), "0x2000000000000");
  list.ask("scratch aperture: last", aperture(kfd, 3), "0x20000ffffffff");
  list.ask("GPUVM aperture: first", aperture(kfd, 4), {"0x4000", "0x10000", "0x10000"});
  list.ask("GPUVM aperture: last", aperture(kfd, 5), "0x7fffffffffff");
  list.ask("SET_MEMORY_POLICY", asked(kfd.fd, 0x04, Args(32).u32(16, kfd.gpu.id)), "ok");
  list.ask("SET_MEMORY_POLICY 9", asked(kfd.fd, 0x04, Args(32).u32(16, kfd.gpu.id).u32(20, 9)), "EINVAL");
  list.ask("SET_TRAP_HANDLER", asked(kfd.fd, 0x13, Args(24).u32(16, kfd.gpu.id)), "ok");
  list.ask("SET_SCRATCH_BACKING_VA", asked(kfd.fd, 0x11, Args(16).u64(0, kKfdVa).u32(8, kfd.gpu.id)), "ok");
  list.ask("AVAILABLE_MEMORY", asked(kfd.fd, 0x23, Args(16).u32(8, kfd.gpu.id)), "ok");
  list.ask("SMI_EVENTS of the GPU", asked(kfd.fd, 0x1f, Args(8).u32(0, kfd.gpu.id)), "ok", "EINVAL",
           "the virtual GPUs report no events");
  const std::uint64_t gpu = std::uint64_t{kfd.gpu.id} << 46;
  list.ask("mmap of doorbells", map(kfd.fd, std::uint64_t{3} << 62 | gpu, kDoorbellBytes), "ok");
  list.ask("mmap of a page of doorbells", map(kfd.fd, std::uint64_t{3} << 62 | gpu, kPage), "EINVAL");
  list.ask("mmap of MMIO", map(kfd.fd, gpu, kPage), "ok");
  list.ask("mmap of two pages of MMIO", map(kfd.fd, gpu, 2 * kPage), "EINVAL");
  list.ask("mmap of reserved memory", map(kfd.fd, std::uint64_t{1} << 62 | gpu, kPage), "EINVAL");

  // Events, with a page of the runtime's.
  list.ask("mmap of the event page before there is one", map(kfd.fd, std::uint64_t{2} << 62, 32768),
           "EINVAL");
  list.ask("CREATE_EVENT with a page that there is not",
           asked(kfd.fd, 0x08, Args(32).u32(0, 77).u32(4, kfd.gpu.id)), "EINVAL");
  const Memory small = mapped(kfd, kKfdVa, kPage);
  list.ask("CREATE_EVENT with a page of 4096 bytes", asked(kfd.fd, 0x08, Args(32).u64(0, small.handle)),
           "EINVAL");
  const Memory page = mapped(kfd, kKfdVa + 0x100000, 32768, kAllocGtt | kWritable | kCoherentBo);
  Args first(32);
  first.u64(0, page.handle).u32(16, 1);
  const int error = questions::kfd(kfd.fd, 0x08, first);
  list.ask("CREATE_EVENT with a page",
           error == 0 ? "ok id " + hex(first.get32(24)) + " slot " + hex(first.get32(28)) + " trigger " +
                            hex(first.get32(8)) + " page " + hex(first.get64(0))
                      : name_of(error),
           "ok id 0x1 slot 0x1 trigger 0x1 page 0x8000000000000000");
  list.ask("CREATE_EVENT with a page again", asked(kfd.fd, 0x08, Args(32).u64(0, page.handle)), "EINVAL");
  list.ask("FREE_MEMORY of the event page", name_of(free_memory(kfd, page)), "EPERM");
  list.ask("mmap of the event page", map(kfd.fd, std::uint64_t{2} << 62, 32768), "ok");
  list.ask("CREATE_EVENT SIGNAL", event(kfd, 0), "ok id 0x2 slot 0x2 trigger 0x2 page 0x8000000000000000");
  list.ask("CREATE_EVENT DEBUG", event(kfd, 5), "ok id 0x3 slot 0x3 trigger 0x3 page 0x8000000000000000");
  list.ask("CREATE_EVENT of type 2", event(kfd, 2), "ok id 0x40000000 slot 0 trigger 0x40000000 page 0");
  list.ask("CREATE_EVENT HW_EXCEPTION, with a VM", event(kfd, 3),
           "ok id 0x40000001 slot 0 trigger 0x40000001 page 0");
  const std::uint32_t id = first.get32(24);
  list.ask("WAIT_EVENTS, not set, no time", wait_for(kfd, id, 0), "ok result 1");
  list.ask("SET_EVENT", asked(kfd.fd, 0x0a, Args(8).u32(0, id)), "ok");
  list.ask("WAIT_EVENTS, set", wait_for(kfd, id, 0), "ok result 0");
  list.ask("WAIT_EVENTS, set and reset by the wait", wait_for(kfd, id, 0), "ok result 1");
  list.ask("RESET_EVENT", asked(kfd.fd, 0x0b, Args(8).u32(0, id)), "ok");
  list.ask("WAIT_EVENTS of one that there is not", wait_for(kfd, 999, 0), "EINVAL");
  list.ask("DESTROY_EVENT", asked(kfd.fd, 0x09, Args(8).u32(0, id)), "ok");
  list.ask("CREATE_EVENT SIGNAL, the lowest number again", event(kfd, 0),
           "ok id 0x1 slot 0x1 trigger 0x1 page 0x8000000000000000");

  // SVM, where the driver was built with it.
  auto* memory = static_cast<unsigned char*>(
      ::mmap(nullptr, 16 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  memory[0] = 1;
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  list.ask("SVM get of what nobody set", svm(kfd, at, kPage, 1, {{0, 0}, {7, 0}, {5, 0}}, 3),
           {"EPERM", "EPERM", "ok 0=0xffffffff 7=0x9 5=0x3"}, "ok 0=0xffffffff 7=0x9 5=0x3", kWithSvm);
  list.ask("SVM set of attribute 99", svm(kfd, at, kPage, 0, {{99, 0}}), {"EPERM", "EPERM", "EINVAL"},
           "EINVAL", kWithSvm);
  list.ask("SVM set, location that there is not", svm(kfd, at, kPage, 0, {{0, kNoGpu}}),
           {"EPERM", "EPERM", "EINVAL"}, "EINVAL", kWithSvm);
  list.ask("SVM set, access of a GPU that there is not", svm(kfd, at, kPage, 0, {{2, kNoGpu}}),
           {"EPERM", "EPERM", "EINVAL"}, "EINVAL", kWithSvm);
  list.ask("SVM set, granularity 63", svm(kfd, at, kPage, 0, {{7, 63}}), {"EPERM", "EPERM", "ok"}, "ok",
           kWithSvm);
  list.ask("SVM set of what is not mapped", svm(kfd, 0x20000, kPage, 0, {{2, kfd.gpu.id}}),
           {"EPERM", "EPERM", "EFAULT"}, "EFAULT", kWithSvm);
  list.ask("SVM set: access, flags, granularity, location",
           svm(kfd, at, 4 * kPage, 0, {{2, kfd.gpu.id}, {5, 3}, {7, 4}, {0, 0}}), {"EPERM", "EPERM", "ok"},
           "ok", kWithSvm);
  list.ask("SVM get of it", svm(kfd, at, 4 * kPage, 1, {{0, 0}, {7, 0}, {5, 0}, {2, kfd.gpu.id}}, 4),
           {"EPERM", "EPERM", "ok 0=0 7=0x4 5=0x3 2=the GPU"}, "ok 0=0 7=0x4 5=0x3 2=the GPU", kWithSvm);
  list.ask("ALLOC_MEMORY where SVM is", allocated(kfd, at, kPage, kAllocGtt | kWritable),
           {"ok, freed: ok", "ok, freed: ok", "EADDRINUSE"}, "EADDRINUSE", kWithSvm);
  list.ask("SET_XNACK_MODE, off", asked(kfd.fd, 0x21, Args(4), {0}), {"EPERM", "EPERM", "ok 0"}, "ok 0",
           kWithSvm);
  list.ask("SET_XNACK_MODE, on", asked(kfd.fd, 0x21, Args(4).u32(0, 1)), {"EPERM", "EPERM", "ok"});
  list.ask("SET_XNACK_MODE, asked, with a VM", asked(kfd.fd, 0x21, Args(4).u32(0, ~0U), {0}),
           {"EPERM", "EPERM", "ok 1"}, {"ok 0", "ok 0", "ok 1"}, kWithSvm);
}

}  // namespace vamdgpu::questions
