// SPDX-License-Identifier: MIT
// Questions to a render node about contexts, submissions, fences, syncobjs, and what INFO says.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "render.h"

namespace vamdgpu::questions {
namespace {

constexpr unsigned kDma = 2;
constexpr std::uint32_t kNop = 0;

std::string context(int fd, unsigned op, std::uint32_t id, int priority = 0, std::uint32_t* made = nullptr) {
  Args args(16);
  args.u32(0, op).u32(8, id).u32(12, static_cast<std::uint32_t>(priority));
  const int error = drm(fd, 0x42, args);
  if (error == 0 && made != nullptr) *made = args.get32(0);
  return name_of(error);
}

std::string bo_list(int fd, unsigned operation, std::uint32_t list, std::uint32_t handle,
                    unsigned entry_bytes = 8, unsigned count = 1, std::uint32_t* made = nullptr) {
  const std::array<std::uint32_t, 4> entries = {handle, 0, handle, 0};
  Args args(24);
  args.u32(0, operation).u32(4, list).u32(8, count).u32(12, entry_bytes).pointer(16, entries.data());
  const int error = drm(fd, 0x43, args);
  if (error == 0 && made != nullptr) *made = args.get32(0);
  return name_of(error);
}

struct Job {
  std::uint32_t ctx, list;
  std::uint64_t va;
  std::uint32_t bytes;
  unsigned ip = kDma, instance = 0, ring = 0, chunks = 1, ibs = 1, chunk_id = 1;
};

// "ok" or what CS refuses with; the sequence number in *seq.
std::string submit(int fd, const Job& job, std::uint64_t* seq = nullptr) {
  std::array<std::uint32_t, 8> ib{};
  ib[2] = static_cast<std::uint32_t>(job.va);
  ib[3] = static_cast<std::uint32_t>(job.va >> 32);
  ib[4] = job.bytes;
  ib[5] = job.ip;
  ib[6] = job.instance;
  ib[7] = job.ring;
  Args chunk(16);
  chunk.u32(0, job.chunk_id).u32(4, 8).pointer(8, ib.data());
  std::array<std::uint64_t, 64> chunks{};
  chunks.fill(reinterpret_cast<std::uintptr_t>(chunk.data()));
  Args args(24);
  args.u32(0, job.ctx).u32(4, job.list).u32(8, job.chunks == 0 ? 0 : job.ibs).pointer(16, chunks.data());
  const int error = drm(fd, 0x44, args);
  if (error == 0 && seq != nullptr) *seq = args.get64(0);
  return name_of(error);
}

std::string wait(int fd, std::uint32_t ctx, std::uint64_t seq, std::uint64_t timeout = ~std::uint64_t{0} >> 1,
                 unsigned ip = kDma, unsigned ring = 0) {
  Args args(32);
  args.u64(0, seq).u64(8, timeout).u32(16, ip).u32(24, ring).u32(28, ctx);
  const int error = drm(fd, 0x49, args);
  return error == 0 ? "ok " + std::to_string(args.get64(0)) : name_of(error);
}

std::string fence_to_handle(int fd, std::uint32_t ctx, std::uint64_t seq, unsigned what,
                            std::uint32_t* made = nullptr) {
  Args args(32);
  args.u32(0, ctx).u32(4, kDma).u64(16, seq).u32(24, what);
  const int error = drm(fd, 0x54, args);
  if (error == 0 && made != nullptr) *made = args.get32(0);
  return name_of(error);
}

std::string wait_fences(int fd, std::uint32_t ctx, std::uint64_t seq, unsigned count) {
  Args fence(24);
  fence.u32(0, ctx).u32(4, kDma).u64(16, seq);
  Args args(24);
  args.pointer(0, fence.data()).u32(8, count).u32(12, 1).u64(16, ~std::uint64_t{0} >> 1);
  const int error = drm(fd, 0x52, args);
  return error == 0 ? "ok " + std::to_string(args.get32(0)) : name_of(error);
}

// INFO; `words` of the answer, from word `from` on.
std::string info(int fd, unsigned query, unsigned bytes, unsigned from = 0, unsigned words = 0,
                 std::uint32_t a = 0, std::uint32_t b = 0, std::uint32_t c = 0) {
  std::array<std::uint32_t, 128> out{};
  Args args(32);
  args.pointer(0, out.data()).u32(8, bytes).u32(12, query).u32(16, a).u32(20, b).u32(24, c);
  const int error = drm(fd, 0x45, args);
  std::string answer = name_of(error);
  for (unsigned i = 0; error == 0 && i < words; ++i) answer += " " + hex(out.at(from + i));
  return answer;
}

std::string syncobj(int fd, unsigned nr, std::uint32_t first, std::uint32_t second = 0,
                    std::uint32_t* made = nullptr) {
  Args args(8);
  args.u32(0, first).u32(4, second);
  const int error = drm(fd, nr, args);
  if (error == 0 && made != nullptr) *made = args.get32(0);
  return name_of(error);
}

// RESET, SIGNAL: a list of one.
std::string syncobj_list(int fd, unsigned nr, std::uint32_t handle, unsigned count = 1) {
  Args args(16);
  args.pointer(0, &handle).u32(8, count);
  return name_of(drm(fd, nr, args));
}

std::string syncobj_wait(int fd, std::uint32_t handle, std::uint64_t timeout, unsigned flags) {
  Args args(32);
  args.pointer(0, &handle).u64(8, timeout).u32(16, 1).u32(20, flags);
  return name_of(drm(fd, 0xc3, args));
}

}  // namespace

void ask_render_jobs(List& list) {
  const int fd = open_render(first_gpu());
  if (fd < 0) return list.fail(std::string("render node: ") + name_of(errno));
  const Bo bo = create(fd, 4 * kPage, 0, kGtt, 0);
  auto* words = static_cast<volatile std::uint32_t*>(map_bo(fd, bo.handle, 4 * kPage));
  if (words == nullptr || va(fd, {bo.handle, kMap, kRwx, kFreeVa, 0, 4 * kPage}) != "ok")
    return list.fail("a BO for jobs");
  for (unsigned i = 0; i < 1024; ++i) words[i] = kNop;

  list.ask("CTX of op 9", context(fd, 9, 0), "EINVAL");
  list.ask("CTX free of what there is not", context(fd, 2, 77), "EINVAL");
  list.ask("CTX query of what there is not", context(fd, 3, 77), "EINVAL");
  list.ask("CTX of priority 5000", context(fd, 1, 0, 5000), "ok");
  std::uint32_t ctx = 0;
  list.ask("CTX", context(fd, 1, 0, 0, &ctx), "ok");
  list.ask("the first context's number", std::to_string(ctx), "2");
  std::uint32_t high = 0;
  list.ask("CTX of high priority, as root", context(fd, 1, 0, 512, &high), "ok");
  list.ask("CTX free", context(fd, 2, high), "ok");
  list.ask("CTX free again", context(fd, 2, high), "EINVAL");
  list.ask("CTX query", context(fd, 3, ctx), "ok");
  list.ask("CTX query 2", context(fd, 4, ctx), "ok");

  list.ask("BO_LIST of a handle that there is not", bo_list(fd, 0, 0, 999), "ENOENT");
  list.ask("BO_LIST of op 9", bo_list(fd, 9, 0, bo.handle), "EINVAL");
  list.ask("BO_LIST with entries of 16 bytes", bo_list(fd, 0, 0, bo.handle, 16), "ok");
  list.ask("BO_LIST of the same BO twice", bo_list(fd, 0, 0, bo.handle, 8, 2), "ok");
  list.ask("BO_LIST of none", bo_list(fd, 0, 0, bo.handle, 8, 0), "ok");
  std::uint32_t bos = 0;
  list.ask("BO_LIST", bo_list(fd, 0, 0, bo.handle, 8, 1, &bos), "ok");
  list.ask("BO_LIST destroy of what there is not", bo_list(fd, 1, 77, 0, 8, 0), "ok");

  list.ask("CS of no chunks", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 0, 0, 0}), "EINVAL");
  list.ask("CS of a context that there is not", submit(fd, {77, bos, kFreeVa, 32}), "EINVAL");
  list.ask("CS of a BO list that there is not", submit(fd, {ctx, 77, kFreeVa, 32}), "ENOENT");
  list.ask("CS on IP 77", submit(fd, {ctx, bos, kFreeVa, 32, 77}), "EINVAL");
  list.ask("CS on instance 1", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 1}), "EINVAL");
  list.ask("CS on DMA ring 2", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 0, 2}), "EINVAL");
  list.ask("CS of a chunk that there is not", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 0, 0, 1, 1, 99}),
           "EINVAL");
  list.ask("CS of 4 MiB of IB", submit(fd, {ctx, bos, kFreeVa, 4 << 20}), {"ok", "EINVAL", "EINVAL"},
           "EINVAL", kStricter);
  std::uint64_t first = 0, second = 0, third = 0;
  list.ask("CS", submit(fd, {ctx, bos, kFreeVa, 32}, &first), "ok");
  list.ask("the first job's number", std::to_string(first), {"2", "1", "1"}, "1", kStricter);
  list.ask("WAIT_CS", wait(fd, ctx, first), "ok 0");
  list.ask("WAIT_CS again, without waiting", wait(fd, ctx, first, 0), "ok 0");
  list.ask("WAIT_CS of a number to come", wait(fd, ctx, first + 5, 0), "EINVAL");
  list.ask("WAIT_CS of number 0", wait(fd, ctx, 0, 0), "ok 0");
  list.ask("WAIT_CS of all ones", wait(fd, ctx, ~std::uint64_t{0}, 0), "ok 0");
  list.ask("WAIT_CS of a context that there is not", wait(fd, 77, first), "EINVAL");
  list.ask("WAIT_CS on IP 77", wait(fd, ctx, first, 0, 77), "EINVAL");
  list.ask("WAIT_CS on ring 2", wait(fd, ctx, first, 0, kDma, 2), "EINVAL");
  list.ask("CS on DMA ring 1", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 0, 1}, &second), "ok");
  list.ask("the first number of ring 1", std::to_string(second), "1");
  list.ask("CS of two IBs", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 0, 0, 1, 2}, &third), "ok");
  list.ask("WAIT_CS of two IBs", wait(fd, ctx, third), "ok 0");
  list.ask("CS of 50 IBs", submit(fd, {ctx, bos, kFreeVa, 32, kDma, 0, 0, 1, 50}), {"ok", "EINVAL", "EINVAL"},
           "EINVAL", kStricter);
  list.ask("WAIT_FENCES of none", wait_fences(fd, ctx, first, 0), {"ok 1", "ok 1", "EINVAL"});
  list.ask("WAIT_FENCES", wait_fences(fd, ctx, first, 1), "ok 1");
  std::uint32_t file = 0;
  list.ask("FENCE_TO_HANDLE, what 9", fence_to_handle(fd, ctx, third, 9), "EINVAL");
  list.ask("FENCE_TO_HANDLE of a number to come", fence_to_handle(fd, ctx, third + 5, 2), "EINVAL");
  list.ask("FENCE_TO_HANDLE, a sync file", fence_to_handle(fd, ctx, third, 2, &file), "ok");
  pollfd ready = {static_cast<int>(file), POLLIN, 0};
  list.ask("poll of a sync file",
           ::poll(&ready, 1, 60000) == 1 && (ready.revents & POLLIN) != 0 ? "ready" : "not", "ready");
  ::close(static_cast<int>(file));

  // A copy and a fence, by the first engine that is free.
  const Bo vram = create(fd, kPage, 0, kVram, kCpuAccess);
  const std::uint64_t to = kFreeVa + 0x100000;
  if (va(fd, {vram.handle, kMap, kRwx, to, 0, kPage}) != "ok") return list.fail("a BO to copy to");
  for (unsigned i = 0; i < 1024; ++i) words[1024 + i] = i * 2654435761U;
  const std::uint64_t from = kFreeVa + kPage;
  const std::array<std::uint32_t, 8> copy = {1,
                                             kPage - 1,
                                             0,
                                             static_cast<std::uint32_t>(from),
                                             static_cast<std::uint32_t>(from >> 32),
                                             static_cast<std::uint32_t>(to),
                                             static_cast<std::uint32_t>(to >> 32),
                                             kNop};
  for (unsigned i = 0; i < copy.size(); ++i) words[i] = copy[i];
  std::uint32_t both = 0;
  const std::array<std::uint32_t, 4> entries = {bo.handle, 0, vram.handle, 0};
  Args make(24);
  make.u32(8, 2).u32(12, 8).pointer(16, entries.data());
  if (drm(fd, 0x43, make) == 0) both = make.get32(0);
  std::uint64_t seq = 0;
  list.ask("CS of a copy", submit(fd, {ctx, both, kFreeVa, 32}, &seq), "ok");
  list.ask("WAIT_CS of a copy", wait(fd, ctx, seq), "ok 0");
  unsigned wrong = 0;
  if (auto* copied = static_cast<volatile std::uint32_t*>(map_bo(fd, vram.handle, kPage)); copied != nullptr)
    for (unsigned i = 0; i < 1024; ++i) wrong += copied[i] != i * 2654435761U;
  list.ask("words that differ after the copy", std::to_string(wrong), "0");
  list.ask("BO_LIST destroy", bo_list(fd, 1, bos, 0, 8, 0), "ok");
  list.ask("CS with a BO list that was destroyed", submit(fd, {ctx, bos, kFreeVa, 32}), "ENOENT");

  // Syncobjs.
  std::uint32_t unsignaled = 0, signaled = 0;
  list.ask("SYNCOBJ_CREATE with an unknown flag", syncobj(fd, 0xbf, 0, 8), "EINVAL");
  list.ask("SYNCOBJ_CREATE", syncobj(fd, 0xbf, 0, 0, &unsignaled), "ok");
  list.ask("SYNCOBJ_CREATE, signaled", syncobj(fd, 0xbf, 0, 1, &signaled), "ok");
  list.ask("SYNCOBJ_WAIT, signaled", syncobj_wait(fd, signaled, 0, 0), "ok");
  list.ask("SYNCOBJ_WAIT, nothing in it", syncobj_wait(fd, unsignaled, 0, 0), "EINVAL");
  list.ask("SYNCOBJ_WAIT for a submission", syncobj_wait(fd, unsignaled, 0, 2), "ETIME");
  list.ask("SYNCOBJ_WAIT of what there is not", syncobj_wait(fd, 77, 0, 0), "ENOENT");
  list.ask("SYNCOBJ_WAIT with an unknown flag", syncobj_wait(fd, signaled, 0, 0x80), "EINVAL");
  list.ask("SYNCOBJ_SIGNAL", syncobj_list(fd, 0xc5, unsignaled), "ok");
  list.ask("SYNCOBJ_WAIT after SIGNAL", syncobj_wait(fd, unsignaled, 0, 0), "ok");
  list.ask("SYNCOBJ_RESET", syncobj_list(fd, 0xc4, unsignaled), "ok");
  list.ask("SYNCOBJ_RESET of none", syncobj_list(fd, 0xc4, unsignaled, 0), "EINVAL");
  list.ask("SYNCOBJ_SIGNAL of what there is not", syncobj_list(fd, 0xc5, 77), "ENOENT");
  const int event = ::eventfd(0, EFD_CLOEXEC);
  list.ask("SYNCOBJ_EVENTFD of a timeline's point 1",
           name_of(drm(fd, 0xcf,
                       Args(24).u32(0, unsignaled).u64(8, 1).u32(16, static_cast<std::uint32_t>(event)))),
           {"EINVAL", "ok", "ok"});
  list.ask("SYNCOBJ_EVENTFD, unknown flag",
           name_of(drm(
               fd, 0xcf,
               Args(24).u32(0, unsignaled).u32(4, 2).u64(8, 1).u32(16, static_cast<std::uint32_t>(event)))),
           "EINVAL");
  list.ask("SYNCOBJ_EVENTFD, fd -1",
           name_of(drm(fd, 0xcf, Args(24).u32(0, unsignaled).u64(8, 1).u32(16, ~0U))),
           {"EINVAL", "EBADF", "EBADF"});
  const std::uint64_t point = 1;
  list.ask("SYNCOBJ_TIMELINE_SIGNAL of that point",
           name_of(drm(fd, 0xcd, Args(24).pointer(0, &unsignaled).pointer(8, &point).u32(16, 1))), "ok");
  list.ask("SYNCOBJ_DESTROY", syncobj(fd, 0xc0, signaled), "ok");
  list.ask("SYNCOBJ_DESTROY again", syncobj(fd, 0xc0, signaled), "EINVAL");
  list.ask("CTX free of one that was used", context(fd, 2, ctx), "ok");
}

void ask_render_info(List& list) {
  const int fd = open_render(first_gpu());
  if (fd < 0) return list.fail(std::string("render node: ") + name_of(errno));
  list.ask("INFO to address 0", name_of(drm(fd, 0x45, Args(32).u32(8, 4))), "EINVAL");
  list.ask("INFO of 0 bytes", info(fd, 0, 0), "EINVAL");
  list.ask("INFO to address 8", name_of(drm(fd, 0x45, Args(32).u64(0, 8).u32(8, 4))), "EFAULT");
  list.ask("INFO 0x7777", info(fd, 0x7777, 4), "EINVAL");
  list.ask("INFO ACCEL_WORKING", info(fd, 0x00, 4, 0, 1), "ok 0x1");
  list.ask("INFO HW_IP_INFO of DMA: version, capabilities, alignments, rings", info(fd, 0x02, 32, 0, 8, kDma),
           "ok 0x4 0 0 0 0x100 0x4 0x3 0x40400");
  list.ask("INFO HW_IP_INFO of DMA, instance 1", info(fd, 0x02, 32, 0, 0, kDma, 1), "EINVAL");
  list.ask("INFO HW_IP_INFO of GFX: version and rings", info(fd, 0x02, 32, 0, 8, 0),
           "ok 0x9 0 0 0 0x20 0x20 0 0x90402");
  list.ask("INFO HW_IP_INFO of COMPUTE: version and rings", info(fd, 0x02, 32, 0, 8, 1),
           "ok 0x9 0 0 0 0x20 0x20 0xf 0x90402");
  list.ask("INFO HW_IP_INFO of 77", info(fd, 0x02, 32, 0, 0, 77), "EINVAL");
  list.ask("INFO HW_IP_COUNT of DMA", info(fd, 0x03, 4, 0, 1, kDma), {"ok 0x1", "ok 0x5", "ok 0x5"});
  list.ask("INFO HW_IP_COUNT of GFX", info(fd, 0x03, 4, 0, 1, 0), "ok 0x1");
  list.ask("INFO HW_IP_COUNT of COMPUTE", info(fd, 0x03, 4, 0, 1, 1), "ok 0x1");
  list.ask("INFO HW_IP_COUNT of 77", info(fd, 0x03, 4, 0, 0, 77), "EINVAL");
  list.ask("INFO TIMESTAMP", info(fd, 0x05, 8), "ok");
  list.ask("INFO FW_VERSION 77", info(fd, 0x0e, 8, 0, 0, 77), "EINVAL");
  list.ask("INFO VRAM_USAGE", info(fd, 0x10, 8), "ok");
  list.ask("INFO GTT_USAGE", info(fd, 0x11, 8), "ok");
  list.ask("INFO GDS_CONFIG", info(fd, 0x13, 32), "ok");
  list.ask("INFO VRAM_GTT", info(fd, 0x14, 24), "ok");
  list.ask("INFO READ_MMR_REG of GB_ADDR_CONFIG", info(fd, 0x15, 4, 0, 0, 0x263e, 1, ~0U), "ok");
  list.ask("INFO READ_MMR_REG of none", info(fd, 0x15, 4, 0, 0, 0x263e, 0, ~0U), "ok");
  list.ask("INFO READ_MMR_REG of 129", info(fd, 0x15, 512, 0, 0, 0x263e, 129, ~0U), "EINVAL");
  list.ask("INFO READ_MMR_REG of a register that is not told", info(fd, 0x15, 4, 0, 0, 0x1, 1, ~0U),
           "EFAULT");
  list.ask("INFO DEV_INFO: device", info(fd, 0x16, 368, 0, 1), "ok 0x740f");
  list.ask("INFO DEV_INFO: family", info(fd, 0x16, 368, 4, 1), "ok 0x8d");
  list.ask("INFO DEV_INFO: first VA", info(fd, 0x16, 368, 36, 2),
           {"ok 0x200000 0", "ok 0x10000 0", "ok 0x10000 0"});
  list.ask("INFO DEV_INFO: last VA", info(fd, 0x16, 368, 38, 2), "ok 0 0x8000");
  list.ask("INFO DEV_INFO: alignment of VAs, PTE fragment, GART page", info(fd, 0x16, 368, 40, 3),
           "ok 0x1000 0x200000 0x1000");
  list.ask("INFO DEV_INFO: first high VA", info(fd, 0x16, 368, 84, 2), "ok 0 0xffff8000");
  list.ask("INFO DEV_INFO: last high VA", info(fd, 0x16, 368, 86, 2),
           {"ok 0xffe00000 0xffffffff", "ok 0xffbf0000 0xffffffff", "ok 0xffbf0000 0xffffffff"});
  list.ask("INFO DEV_INFO: wavefront", info(fd, 0x16, 368, 60, 1), "ok 0x40");
  list.ask("INFO DEV_INFO, room to spare", info(fd, 0x16, 500), "ok");
  list.ask("INFO VIS_VRAM_USAGE", info(fd, 0x17, 8), "ok");
  list.ask("INFO MEMORY", info(fd, 0x19, 96), "ok");
  list.ask("INFO VRAM_LOST_COUNTER", info(fd, 0x1f, 4, 0, 1), "ok 0");
  list.ask("INFO MAX_IBS", info(fd, 0x22, 36), {"EINVAL", "ok", "ok"});
}

}  // namespace vamdgpu::questions
