// SPDX-License-Identifier: MIT
// Questions to a render node: the core's own, BOs, GPU maps, and what is shared by dma-buf.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

#include "render.h"

namespace vamdgpu::questions {
namespace {

constexpr const char* kOwnMode =
    "the driver's dma-buf has the access of its first export, the virtual one's has its own";

std::string plain(int fd, unsigned nr, unsigned bytes) {
  Args args(bytes);
  return name_of(drm(fd, nr, args));
}

std::string version(int fd) {
  std::array<char, 32> name{};
  Args args(64);
  args.u64(16, name.size() - 1).pointer(24, name.data());
  const int error = drm(fd, 0x00, args);
  if (error != 0) return name_of(error);
  return std::to_string(args.get32(0)) + "." + std::to_string(args.get32(4)) + " " + name.data();
}

std::string capability(int fd, std::uint64_t which) {
  Args args(16);
  args.u64(0, which);
  const int error = drm(fd, 0x0c, args);
  return error == 0 ? "ok " + std::to_string(args.get64(8)) : name_of(error);
}

// What a map of the BO answers.
std::string map(int fd, std::uint64_t offset, std::uint64_t bytes, int flags = MAP_SHARED,
                int protection = PROT_READ | PROT_WRITE) {
  void* at = ::mmap(nullptr, bytes, protection, flags, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return name_of(errno);
  ::munmap(at, bytes);
  return "ok";
}

std::string gem_mmap(int fd, std::uint32_t handle) {
  Args args(8);
  args.u32(0, handle);
  return name_of(drm(fd, 0x41, args));
}

std::string userptr(int fd, const void* at, std::uint64_t bytes, unsigned flags,
                    std::uint32_t* handle = nullptr) {
  Args args(24);
  args.pointer(0, at).u64(8, bytes).u32(16, flags);
  const int error = drm(fd, 0x51, args);
  if (error == 0 && handle != nullptr)
    *handle = args.get32(20);
  else if (error == 0)
    close_bo(fd, args.get32(20));
  return name_of(error);
}

std::string op(int fd, std::uint32_t handle, unsigned which, std::uint64_t value,
               unsigned argument_bytes = 16) {
  Args args(argument_bytes);
  args.u32(0, handle).u32(4, which).u64(8, value);
  return name_of(drm(fd, 0x50, args));
}

std::string set_metadata(int fd, std::uint32_t handle, std::uint64_t flags, std::uint64_t tiling,
                         unsigned bytes, unsigned which = 1) {
  Args args(288);
  args.u32(0, handle).u32(4, which).u64(8, flags).u64(16, tiling).u32(24, bytes);
  for (unsigned i = 0; i < bytes / 4 && i < 64; ++i) args.u32(28 + 4 * i, 0x1000 + i);
  return name_of(drm(fd, 0x46, args));
}

std::string get_metadata(int fd, std::uint32_t handle) {
  Args args(288);
  args.u32(0, handle).u32(4, 2);
  const int error = drm(fd, 0x46, args);
  if (error != 0) return name_of(error);
  return "ok flags " + hex(args.get64(8)) + " tiling " + hex(args.get64(16)) + " bytes " +
         std::to_string(args.get32(24)) + " first " + hex(args.get32(28));
}

std::string idle(int fd, std::uint32_t handle, bool domain) {
  Args args(16);
  args.u32(0, handle).u64(8, 0);
  const int error = drm(fd, 0x47, args);
  if (error != 0) return name_of(error);
  return "ok status " + std::to_string(args.get32(0)) + (domain ? " domain " + hex(args.get32(4)) : "");
}

std::string change(int fd, std::uint32_t from, std::uint32_t to) {
  Args args(8);
  args.u32(0, from).u32(4, to);
  return name_of(drm(fd, 0xd2, args));
}

std::string made(const Bo& bo) {
  return bo.error == 0 ? "ok handle " + std::to_string(bo.handle) : name_of(bo.error);
}

std::string descriptor(int fd) {
  if (fd < 0) return name_of(-fd);
  ::close(fd);
  return "ok";
}

// A value of the descriptor's fdinfo, "none" without.
std::string fdinfo(int fd, const std::string& name) {
  std::ifstream in("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, name.size() + 1, name + ":") == 0) {
      const std::size_t at = line.find_first_not_of(" \t", name.size() + 1);
      return at == std::string::npos ? "" : line.substr(at);
    }
  return "none";
}

std::string link_of(int fd) {
  std::array<char, 64> text{};
  return ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text.data(), text.size() - 1) < 0
             ? name_of(errno)
             : text.data();
}

std::string seek(int fd, off_t to, int whence) {
  const off_t at = ::lseek(fd, to, whence);
  return at < 0 ? name_of(errno) : std::to_string(at);
}

ino_t inode(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 ? st.st_ino : 0;
}

// The list's file, or a line that says why there is none.
int open_or_fail(List& list) {
  const int fd = open_render(first_gpu());
  if (fd < 0) list.fail(std::string("render node: ") + name_of(errno));
  return fd;
}

}  // namespace

void ask_render_core(List& list) {
  const int fd = open_or_fail(list);
  if (fd < 0) return;
  list.ask("VERSION", version(fd), {"3.49 amdgpu", "3.61 amdgpu", "3.64 amdgpu"});
  list.ask("GET_UNIQUE", plain(fd, 0x01, 16), "EACCES");
  Args client(40);
  list.ask("GET_CLIENT 0", name_of(drm(fd, 0x05, client)), "EACCES");
  list.ask("GET_CLIENT 1", name_of(drm(fd, 0x05, Args(40).u32(0, 1))), "EACCES");
  list.ask("GET_CAP DUMB_BUFFER", capability(fd, 1), "ok 1");
  list.ask("GET_CAP PRIME", capability(fd, 5), "ok 3");
  list.ask("GET_CAP TIMESTAMP_MONOTONIC", capability(fd, 6), "ok 1");
  list.ask("GET_CAP ADDFB2_MODIFIERS", capability(fd, 0x10), "ok 1");
  list.ask("GET_CAP SYNCOBJ", capability(fd, 0x13), "ok 1");
  list.ask("GET_CAP SYNCOBJ_TIMELINE", capability(fd, 0x14), "ok 1");
  list.ask("GET_CAP 99", capability(fd, 99), "EINVAL");
  list.ask("SET_CLIENT_CAP", plain(fd, 0x0d, 16), "EACCES");
  list.ask("SET_CLIENT_NAME, no name", plain(fd, 0xd1, 16), {"EINVAL", "EINVAL", "ok"});
  list.ask("a driver's number that there is not: 0x5f", plain(fd, 0x5f, 8), "EINVAL");
  list.ask("number 0xfe", plain(fd, 0xfe, 8), "EINVAL");
  Args other(8);
  list.ask("an ioctl of type 'X' on the render node", name_of(call(fd, 'X', 0, other)), "ENOTTY");
  list.ask("VM RESERVE_VMID", name_of(drm(fd, 0x53, Args(8).u32(0, 1))), "ok");
  list.ask("VM UNRESERVE_VMID", name_of(drm(fd, 0x53, Args(8).u32(0, 2))), "ok");
  list.ask("VM, op 9", name_of(drm(fd, 0x53, Args(8).u32(0, 9))), "EINVAL");
  list.ask("GEM_LIST_HANDLES of a file without any", listed(fd), {"EINVAL", "EINVAL", "ok 0"});
  list.ask("GEM_LIST_HANDLES, padding", name_of(drm(fd, 0x59, Args(16).u32(12, 1))),
           {"EINVAL", "EINVAL", "ok"});
  list.ask("fdinfo of a render file: drm-driver", fdinfo(fd, "drm-driver"), "amdgpu", "none", kOrdinaryFile);
}

void ask_render_bos(List& list) {
  const int fd = open_or_fail(list);
  if (fd < 0) return;
  // What becomes of size, alignment, domains and flags.
  list.ask("GEM_CREATE of no bytes", created(fd, 0, 0, kVram, 0), "ENOSPC");
  list.ask("GEM_CREATE of no domain", created(fd, kPage, 0, 0, 0),
           {"ok 4096 align 0 domains 0 flags 0", "ok 4096 align 0 domains 0 flags 0x208",
            "ok 4096 align 0 domains 0 flags 0x208"});
  list.ask("GEM_CREATE of an unknown domain", created(fd, kPage, 0, 0x80, 0), "EINVAL");
  list.ask("GEM_CREATE with an unknown flag", created(fd, kPage, 0, kVram, std::uint64_t{1} << 40), "EINVAL");
  list.ask("GEM_CREATE larger than the VRAM", created(fd, std::uint64_t{1} << 42, 0, kVram, 0), "ENOMEM");
  list.ask("GEM_CREATE of 1 byte of VRAM", created(fd, 1, 0, kVram, 0),
           {"ok 4096 align 0 domains 0x4 flags 0", "ok 4096 align 0 domains 0x4 flags 0x208",
            "ok 4096 align 0 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE of 4097 bytes of GTT", created(fd, 4097, 0, kGtt, 0),
           {"ok 8192 align 0 domains 0x2 flags 0", "ok 8192 align 0 domains 0x2 flags 0x208",
            "ok 8192 align 0 domains 0x2 flags 0x208"});
  list.ask("GEM_CREATE, VRAM", created(fd, kPage, 0, kVram, 0),
           {"ok 4096 align 0 domains 0x4 flags 0", "ok 4096 align 0 domains 0x4 flags 0x208",
            "ok 4096 align 0 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, GTT", created(fd, kPage, 0, kGtt, 0),
           {"ok 4096 align 0 domains 0x2 flags 0", "ok 4096 align 0 domains 0x2 flags 0x208",
            "ok 4096 align 0 domains 0x2 flags 0x208"});
  list.ask("GEM_CREATE, CPU", created(fd, kPage, 0, kCpu, 0),
           {"ok 4096 align 0 domains 0x1 flags 0", "ok 4096 align 0 domains 0x1 flags 0x208",
            "ok 4096 align 0 domains 0x1 flags 0x208"});
  list.ask("GEM_CREATE, VRAM and GTT", created(fd, kPage, 0, kVram | kGtt, 0),
           {"ok 4096 align 0 domains 0x6 flags 0", "ok 4096 align 0 domains 0x6 flags 0x208",
            "ok 4096 align 0 domains 0x6 flags 0x208"});
  list.ask("GEM_CREATE, CPU and VRAM", created(fd, kPage, 0, kCpu | kVram, 0),
           {"ok 4096 align 0 domains 0x5 flags 0", "ok 4096 align 0 domains 0x5 flags 0x208",
            "ok 4096 align 0 domains 0x5 flags 0x208"});
  list.ask("GEM_CREATE, GDS", created(fd, 64, 0, kGds, 0),
           {"ok 262144 align 0 domains 0x8 flags 0x2", "ok 262144 align 0 domains 0x8 flags 0x20a",
            "ok 262144 align 0 domains 0x8 flags 0x20a"},
           "EINVAL", "the virtual GPUs have no GDS");
  list.ask("GEM_CREATE, DOORBELL", created(fd, kPage, 0, kDoorbell, 0),
           {"EINVAL", "EINVAL", "ok 4096 align 0 domains 0x40 flags 0x208"}, "EINVAL",
           "the virtual render nodes give out no doorbells");
  list.ask("GEM_CREATE, alignment 1", created(fd, kPage, 1, kVram, 0),
           {"ok 4096 align 4096 domains 0x4 flags 0", "ok 4096 align 4096 domains 0x4 flags 0x208",
            "ok 4096 align 4096 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, alignment 4096", created(fd, kPage, kPage, kVram, 0),
           {"ok 4096 align 4096 domains 0x4 flags 0", "ok 4096 align 4096 domains 0x4 flags 0x208",
            "ok 4096 align 4096 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, alignment 65536", created(fd, kPage, 65536, kVram, 0),
           {"ok 4096 align 65536 domains 0x4 flags 0", "ok 4096 align 65536 domains 0x4 flags 0x208",
            "ok 4096 align 65536 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, alignment 2 MiB, GTT", created(fd, kPage, 2 << 20, kGtt, 0),
           {"ok 4096 align 2097152 domains 0x2 flags 0", "ok 4096 align 2097152 domains 0x2 flags 0x208",
            "ok 4096 align 2097152 domains 0x2 flags 0x208"});
  list.ask("GEM_CREATE, alignment 12345", created(fd, kPage, 12345, kVram, 0),
           {"ok 4096 align 16384 domains 0x4 flags 0", "ok 4096 align 16384 domains 0x4 flags 0x208",
            "ok 4096 align 16384 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, VRAM, CPU_ACCESS_REQUIRED", created(fd, kPage, 0, kVram, kCpuAccess),
           {"ok 4096 align 0 domains 0x4 flags 0", "ok 4096 align 0 domains 0x4 flags 0x208",
            "ok 4096 align 0 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, GTT, CPU_ACCESS_REQUIRED", created(fd, kPage, 0, kGtt, kCpuAccess),
           {"ok 4096 align 0 domains 0x2 flags 0", "ok 4096 align 0 domains 0x2 flags 0x208",
            "ok 4096 align 0 domains 0x2 flags 0x208"});
  list.ask("GEM_CREATE, VRAM, NO_CPU_ACCESS", created(fd, kPage, 0, kVram, kNoCpuAccess),
           {"ok 4096 align 0 domains 0x4 flags 0x2", "ok 4096 align 0 domains 0x4 flags 0x20a",
            "ok 4096 align 0 domains 0x4 flags 0x20a"});
  list.ask("GEM_CREATE, VRAM, both CPU flags", created(fd, kPage, 0, kVram, kCpuAccess | kNoCpuAccess),
           {"ok 4096 align 0 domains 0x4 flags 0x2", "ok 4096 align 0 domains 0x4 flags 0x20a",
            "ok 4096 align 0 domains 0x4 flags 0x20a"});
  list.ask("GEM_CREATE, GTT, CPU_GTT_USWC", created(fd, kPage, 0, kGtt, kUswc),
           {"ok 4096 align 0 domains 0x2 flags 0x4", "ok 4096 align 0 domains 0x2 flags 0x20c",
            "ok 4096 align 0 domains 0x2 flags 0x20c"});
  list.ask("GEM_CREATE, VRAM, VRAM_CLEARED", created(fd, kPage, 0, kVram, kCleared),
           {"ok 4096 align 0 domains 0x4 flags 0x8", "ok 4096 align 0 domains 0x4 flags 0x208",
            "ok 4096 align 0 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, GTT, VRAM_CLEARED", created(fd, kPage, 0, kGtt, kCleared),
           {"ok 4096 align 0 domains 0x2 flags 0x8", "ok 4096 align 0 domains 0x2 flags 0x208",
            "ok 4096 align 0 domains 0x2 flags 0x208"});
  list.ask("GEM_CREATE, VRAM, VRAM_CONTIGUOUS", created(fd, kPage, 0, kVram, kContiguous), "EINVAL");
  list.ask("GEM_CREATE, VRAM, VM_ALWAYS_VALID", created(fd, kPage, 0, kVram, kAlwaysValid),
           {"ok 4096 align 0 domains 0x4 flags 0x40", "ok 4096 align 0 domains 0x4 flags 0x248",
            "ok 4096 align 0 domains 0x4 flags 0x248"});
  list.ask("GEM_CREATE, VRAM, EXPLICIT_SYNC", created(fd, kPage, 0, kVram, kExplicitSync),
           {"ok 4096 align 0 domains 0x4 flags 0x80", "ok 4096 align 0 domains 0x4 flags 0x288",
            "ok 4096 align 0 domains 0x4 flags 0x288"});
  list.ask("GEM_CREATE, VRAM, CP_MQD_GFX9", created(fd, kPage, 0, kVram, kMqd), "EINVAL");
  list.ask("GEM_CREATE, VRAM, VRAM_WIPE_ON_RELEASE", created(fd, kPage, 0, kVram, kWipe),
           {"EINVAL", "EINVAL", "ok 4096 align 0 domains 0x4 flags 0x208"});
  list.ask("GEM_CREATE, GTT, VRAM_WIPE_ON_RELEASE", created(fd, kPage, 0, kGtt, kWipe),
           {"EINVAL", "EINVAL", "ok 4096 align 0 domains 0x2 flags 0x208"});
  list.ask("GEM_CREATE, VRAM, ENCRYPTED", created(fd, kPage, 0, kVram, kEncrypted), "EINVAL",
           {"ok 4096 align 0 domains 0x4 flags 0x400", "ok 4096 align 0 domains 0x4 flags 0x608",
            "ok 4096 align 0 domains 0x4 flags 0x608"},
           "a chip with TMZ takes it, and no dump can save such a BO");
  list.ask("GEM_CREATE, GTT, PREEMPTIBLE", created(fd, kPage, 0, kGtt, kPreemptible), "EINVAL");
  list.ask("GEM_CREATE, VRAM, DISCARDABLE", created(fd, kPage, 0, kVram, kDiscardable),
           {"ok 4096 align 0 domains 0x4 flags 0x1000", "ok 4096 align 0 domains 0x4 flags 0x1208",
            "ok 4096 align 0 domains 0x4 flags 0x1208"});
  list.ask("GEM_CREATE, VRAM, COHERENT", created(fd, kPage, 0, kVram, kCoherent),
           {"EINVAL", "EINVAL", "ok 4096 align 0 domains 0x4 flags 0x2208"});
  list.ask("GEM_CREATE, VRAM, UNCACHED", created(fd, kPage, 0, kVram, kUncached),
           {"EINVAL", "EINVAL", "ok 4096 align 0 domains 0x4 flags 0x4208"});
  list.ask("GEM_CREATE, VRAM, EXT_COHERENT", created(fd, kPage, 0, kVram, kExtCoherent),
           {"EINVAL", "EINVAL", "ok 4096 align 0 domains 0x4 flags 0x8208"});
  list.ask(
      "GEM_CREATE, VRAM, GFX12_DCC", created(fd, kPage, 0, kVram, kGfx12Dcc),
      {"EINVAL", "ok 4096 align 0 domains 0x4 flags 0x10208", "ok 4096 align 0 domains 0x4 flags 0x10208"});
  list.ask("GEM_CREATE, VRAM, the flag of bit 4", created(fd, kPage, 0, kVram, 0x10), "EINVAL");

  // The life of one BO.
  const Bo bo = create(fd, 2 * kPage, 0, kVram, kCpuAccess);
  list.ask("the first handle of a file, after others were closed", made(bo), "ok handle 1");
  list.ask("GEM_OP 0 of a handle that there is not", op(fd, 999, 0, 0), "ENOENT");
  list.ask("GEM_OP 0 to address 8", op(fd, bo.handle, 0, 8), "EFAULT");
  list.ask("GEM_OP 99", op(fd, bo.handle, 99, 0), "EINVAL");
  list.ask("GEM_MMAP of a handle that there is not", gem_mmap(fd, 999), "ENOENT");
  const std::uint64_t offset = mmap_offset(fd, bo.handle);
  list.ask("mmap of a BO", map(fd, offset, 2 * kPage), "ok");
  list.ask("mmap of a BO's first page", map(fd, offset, kPage), "ok");
  list.ask("mmap of a BO's second page", map(fd, offset + kPage, kPage), "EINVAL");
  list.ask("mmap beyond a BO's end", map(fd, offset, 3 * kPage), "EINVAL");
  list.ask("mmap at offset 0", map(fd, 0, kPage), "EINVAL");
  list.ask("mmap of a BO, private", map(fd, offset, kPage, MAP_PRIVATE), "EINVAL");
  list.ask("mmap of a BO, private and not accessible", map(fd, offset, kPage, MAP_PRIVATE, PROT_NONE), "ok");
  list.ask("mmap of a BO, readable", map(fd, offset, kPage, MAP_SHARED, PROT_READ), "ok");
  const int stranger = open_render(first_gpu());
  list.ask("mmap of a BO through another file", map(stranger, offset, kPage), "EACCES");
  ::close(stranger);
  list.ask("a BO before its first touch by the CPU", described(fd, bo.handle),
           {"ok 8192 align 0 domains 0x4 flags 0", "ok 8192 align 0 domains 0x4 flags 0x208",
            "ok 8192 align 0 domains 0x4 flags 0x208"},
           {"ok 8192 align 0 domains 0x4 flags 0x1", "ok 8192 align 0 domains 0x4 flags 0x209",
            "ok 8192 align 0 domains 0x4 flags 0x209"},
           "the front sees no page fault: a map counts as the first touch");
  if (auto* bytes = static_cast<volatile unsigned char*>(map_bo(fd, bo.handle, 2 * kPage));
      bytes != nullptr) {
    bytes[0] = 1;
    list.ask("a BO after its first touch by the CPU", described(fd, bo.handle),
             {"ok 8192 align 0 domains 0x4 flags 0x1", "ok 8192 align 0 domains 0x4 flags 0x209",
              "ok 8192 align 0 domains 0x4 flags 0x209"});
    ::munmap(const_cast<unsigned char*>(bytes), 2 * kPage);
  }
  list.ask("GEM_LIST_HANDLES", listed(fd),
           {"EINVAL", "EINVAL", "ok 1, handle 1 8192 domains 0x4 flags 0x209 align 0"});
  list.ask("GEM_WAIT_IDLE", idle(fd, bo.handle, true), "ok status 0 domain 0");
  list.ask("GEM_WAIT_IDLE of a handle that there is not", idle(fd, 999, false), "ENOENT");
  list.ask("GEM_OP 1, to GTT", op(fd, bo.handle, 1, kGtt), "ok");
  list.ask("a BO after GEM_OP 1", described(fd, bo.handle),
           {"ok 8192 align 0 domains 0x2 flags 0x1", "ok 8192 align 0 domains 0x2 flags 0x209",
            "ok 8192 align 0 domains 0x2 flags 0x209"});
  list.ask("GEM_OP 1, to no domain", op(fd, bo.handle, 1, 0), "ok");
  list.ask("GEM_OP 1, to GDS", op(fd, bo.handle, 1, kGds), "ok");
  list.ask("a BO after GEM_OP 1 to GDS", described(fd, bo.handle),
           {"ok 8192 align 0 domains 0 flags 0x1", "ok 8192 align 0 domains 0 flags 0x209",
            "ok 8192 align 0 domains 0 flags 0x209"});

  // Metadata.
  list.ask("GEM_METADATA of a fresh BO", get_metadata(fd, bo.handle), "ok flags 0 tiling 0 bytes 0 first 0");
  list.ask("GEM_METADATA, op 0", set_metadata(fd, bo.handle, 0, 0, 0, 0), "ok");
  list.ask("GEM_METADATA, op 3", set_metadata(fd, bo.handle, 0, 0, 0, 3), "ok");
  list.ask("GEM_METADATA of a handle that there is not", get_metadata(fd, 999), "ENOENT");
  list.ask("GEM_METADATA set, 257 bytes", set_metadata(fd, bo.handle, 0, 0, 257), "EINVAL");
  list.ask("GEM_METADATA set, tiling alone", set_metadata(fd, bo.handle, 7, 0x1234, 0), "ok");
  list.ask("GEM_METADATA after tiling alone", get_metadata(fd, bo.handle),
           "ok flags 0 tiling 0x1234 bytes 0 first 0");
  list.ask("GEM_METADATA set, 8 bytes", set_metadata(fd, bo.handle, 7, 0x1234, 8), "ok");
  list.ask("GEM_METADATA after 8 bytes", get_metadata(fd, bo.handle),
           "ok flags 0x7 tiling 0x1234 bytes 8 first 0x1000");
  list.ask("GEM_METADATA set, 256 bytes", set_metadata(fd, bo.handle, 9, 0, 256), "ok");
  list.ask("GEM_METADATA after 256 bytes", get_metadata(fd, bo.handle),
           "ok flags 0x9 tiling 0 bytes 256 first 0x1000");
  list.ask("GEM_METADATA set, 0 bytes again", set_metadata(fd, bo.handle, 3, 0, 0), "ok");
  list.ask("GEM_METADATA after 0 bytes", get_metadata(fd, bo.handle),
           "ok flags 0x9 tiling 0 bytes 0 first 0");
  list.ask("GEM_METADATA set, tiling of all ones", set_metadata(fd, bo.handle, 0, ~std::uint64_t{0}, 0),
           "ok");

  // Without a CPU map.
  const Bo hidden = create(fd, kPage, 0, kVram, kNoCpuAccess);
  list.ask("the second handle of a file", made(hidden), "ok handle 2");
  list.ask("GEM_MMAP, NO_CPU_ACCESS", gem_mmap(fd, hidden.handle), "EPERM");

  // Memory of the process.
  auto* memory = static_cast<unsigned char*>(
      ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  list.ask("GEM_USERPTR, address not of a page", userptr(fd, memory + 8, kPage, 0xe), "EINVAL");
  list.ask("GEM_USERPTR, 100 bytes", userptr(fd, memory, 100, 0xe), "EINVAL");
  list.ask("GEM_USERPTR, no bytes", userptr(fd, memory, 0, 0xe), "ENOSPC");
  list.ask("GEM_USERPTR, unknown flag", userptr(fd, memory, kPage, 0x1e), "EINVAL");
  list.ask("GEM_USERPTR, no flags", userptr(fd, memory, kPage, 0), "EACCES");
  list.ask("GEM_USERPTR, READONLY", userptr(fd, memory, kPage, 1), "ok");
  list.ask("GEM_USERPTR, REGISTER", userptr(fd, memory, kPage, 8), "ok");
  list.ask("GEM_USERPTR, not there", userptr(fd, reinterpret_cast<void*>(0x10000), kPage, 0xe), "EFAULT");
  list.ask("GEM_USERPTR, not there, not validated", userptr(fd, reinterpret_cast<void*>(0x10000), kPage, 8),
           "ok");
  const int memfd = ::memfd_create("file", MFD_CLOEXEC);
  (void)!::ftruncate(memfd, kPage);
  void* file = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  list.ask("GEM_USERPTR of a file, ANONONLY", userptr(fd, file, kPage, 0xe), "EPERM");
  list.ask("GEM_USERPTR of a file", userptr(fd, file, kPage, 0xc), "ok");
  std::uint32_t own = 0;
  list.ask("GEM_USERPTR", userptr(fd, memory, 4 * kPage, 0xe, &own), "ok");
  list.ask("GEM_OP 0 of a userptr", described(fd, own),
           {"ok 16384 align 0 domains 0x2 flags 0", "ok 16384 align 0 domains 0x2 flags 0x200",
            "ok 16384 align 0 domains 0x2 flags 0x200"});
  list.ask("GEM_OP 1 of a userptr", op(fd, own, 1, kVram), "EPERM");
  list.ask("GEM_MMAP of a userptr", gem_mmap(fd, own), "EPERM");
  list.ask("GEM_METADATA of a userptr", get_metadata(fd, own), "ok flags 0 tiling 0 bytes 0 first 0");
  list.ask("GEM_LIST_HANDLES with a userptr", listed(fd),
           {"EINVAL", "EINVAL",
            "ok 3, handle 1 8192 domains 0 flags 0x209 align 0, handle 2 4096 domains 0x4 flags 0x20a align "
            "0, handle 3 16384 domains 0x2 flags 0x200 align 0"});
  list.ask("GEM_CLOSE of a userptr", name_of(close_bo(fd, own)), "ok");

  // Handles.
  list.ask("GEM_CHANGE_HANDLE to one that is free", change(fd, bo.handle, 70), "EINVAL");
  list.ask("GEM_CHANGE_HANDLE to itself", change(fd, bo.handle, bo.handle), "EINVAL");
  list.ask("GEM_CHANGE_HANDLE to one that is taken", change(fd, bo.handle, hidden.handle), "EINVAL");
  list.ask("GEM_CHANGE_HANDLE of one that there is not", change(fd, 999, 1000), "EINVAL");
  list.ask("GEM_CLOSE", name_of(close_bo(fd, bo.handle)), "ok");
  list.ask("GEM_CLOSE again", name_of(close_bo(fd, bo.handle)), "EINVAL");
  list.ask("GEM_CLOSE of handle 0", name_of(close_bo(fd, 0)), "EINVAL");
  list.ask("the lowest handle is given again", made(create(fd, kPage, 0, kGtt, 0)), "ok handle 1");
}

void ask_render_va(List& list) {
  const int fd = open_or_fail(list);
  if (fd < 0) return;
  const std::uint32_t bo = create(fd, 4 * kPage, 0, kGtt, 0).handle,
                      second = create(fd, 4 * kPage, 0, kVram, 0).handle;
  const auto map_at = [&](std::uint64_t address, std::uint64_t bytes) {
    return va(fd, {bo, kMap, kRwx, address, 0, bytes});
  };
  const auto map_and_unmap = [&](std::uint64_t address) {
    std::string answer = map_at(address, kPage);
    if (answer == "ok") answer += ", " + va(fd, {bo, kUnmap, 0, address, 0, kPage});
    return answer;
  };
  list.ask("GEM_VA map at 0", map_and_unmap(0), "EINVAL");
  list.ask("GEM_VA map at 64 KiB less a page", map_and_unmap(0xf000), "EINVAL");
  list.ask("GEM_VA map at 64 KiB", map_and_unmap(0x10000), {"EINVAL", "ok, ok", "ok, ok"});
  list.ask("GEM_VA map at 2 MiB", map_and_unmap(0x200000), "ok, ok");
  list.ask("GEM_VA map of the last page below the hole", map_and_unmap(0x7ffffffff000), "ok, ok");
  list.ask("GEM_VA map at the hole", map_and_unmap(0x800000000000), "EINVAL");
  list.ask("GEM_VA map of the last page in the hole", map_and_unmap(0xffff7ffffffff000), "EINVAL");
  list.ask("GEM_VA map above the hole", map_and_unmap(0xffff800000000000), "ok, ok");
  list.ask("GEM_VA map near the top", map_and_unmap(0xffffffffffe00000), "EINVAL");
  list.ask("GEM_VA map of the last page", map_and_unmap(0xfffffffffffff000), "EINVAL");
  list.ask("GEM_VA map into the hole", map_at(0x7ffffffff000, 4 * kPage), "ok");
  list.ask("GEM_VA map, address not of a page", map_at(kFreeVa + 8, kPage), "EINVAL");
  list.ask("GEM_VA map, 100 bytes", map_at(kFreeVa, 100), "EINVAL");
  list.ask("GEM_VA map, no bytes", map_at(kFreeVa, 0), "EINVAL");
  list.ask("GEM_VA map, more than the BO", map_at(kFreeVa, 5 * kPage), "EINVAL");
  list.ask("GEM_VA map, offset not of a page", va(fd, {bo, kMap, kRwx, kFreeVa, 8, kPage}), "EINVAL");
  list.ask("GEM_VA map, offset beyond the BO", va(fd, {bo, kMap, kRwx, kFreeVa, 4 * kPage, kPage}), "EINVAL");
  list.ask("GEM_VA map, handle that there is not", va(fd, {999, kMap, kRwx, kFreeVa, 0, kPage}), "ENOENT");
  list.ask("GEM_VA map, unknown flag", va(fd, {bo, kMap, 0x1000, kFreeVa, 0, kPage}), "EINVAL");
  list.ask("GEM_VA, op 0", va(fd, {bo, 0, kRwx, kFreeVa, 0, kPage}), "EINVAL");
  list.ask("GEM_VA, op 9", va(fd, {bo, 9, kRwx, kFreeVa, 0, kPage}), "EINVAL");
  list.ask("GET_MAPPING_INFO of a BO without maps", mappings(fd, bo),
           {"EINVAL", "EINVAL", "ok 1 0x7ffffffff000+0x4000@0 flags 0xe"});
  list.ask("GEM_VA map", map_at(kFreeVa, 4 * kPage), "ok");
  list.ask("GEM_VA map of the same again", map_at(kFreeVa, 4 * kPage), "EINVAL");
  list.ask("GEM_VA map over part of a map", va(fd, {second, kMap, kRwx, kFreeVa + kPage, 0, kPage}),
           "EINVAL");
  list.ask("GEM_VA map that ends in a map", va(fd, {second, kMap, kRwx, kFreeVa - kPage, 0, 2 * kPage}),
           "EINVAL");
  list.ask("GEM_VA map of a second place, 64-byte argument",
           va(fd, {bo, kMap, kReadable, kFreeVa + 0x100000, kPage, 2 * kPage}, 64), "ok");
  list.ask("GET_MAPPING_INFO of two maps", mappings(fd, bo),
           {"EINVAL", "EINVAL",
            "ok 3 0x100000000+0x4000@0 flags 0xe 0x100100000+0x2000@0x1000 flags 0x2 0x7ffffffff000+0x4000@0 "
            "flags 0xe"});
  Args few(24);
  const std::string of_few = name_of(drm(fd, 0x50, few.u32(0, bo).u32(4, 2)));
  list.ask("GET_MAPPING_INFO without room", of_few + " " + std::to_string(few.get32(16)),
           {"EINVAL 0", "EINVAL 0", "ok 3"});
  list.ask("GET_MAPPING_INFO, padding", name_of(drm(fd, 0x50, Args(24).u32(0, bo).u32(4, 2).u32(20, 1))),
           "EINVAL");
  list.ask("GET_MAPPING_INFO to address 8",
           name_of(drm(fd, 0x50, Args(24).u32(0, bo).u32(4, 2).u64(8, 8).u32(16, 4))),
           {"EINVAL", "EINVAL", "EFAULT"});
  list.ask("GEM_VA unmap from inside a map", va(fd, {bo, kUnmap, 0, kFreeVa + kPage, 0, kPage}), "ENOENT");
  list.ask("GEM_VA unmap of another BO's map", va(fd, {second, kUnmap, 0, kFreeVa, 0, kPage}), "ENOENT");
  list.ask("GEM_VA unmap where nothing is", va(fd, {bo, kUnmap, 0, kFreeVa + 0x800000, 0, kPage}), "ENOENT");
  list.ask("GEM_VA unmap of part of a map", va(fd, {bo, kUnmap, 0, kFreeVa + 0x100000, 0, kPage}), "ok");
  list.ask("GEM_VA clear in the middle", va(fd, {0, kClear, 0, kFreeVa + kPage, 0, kPage}), "ok");
  list.ask("GET_MAPPING_INFO after the clear", mappings(fd, bo),
           {"EINVAL", "EINVAL",
            "ok 3 0x100000000+0x1000@0 flags 0xe 0x100002000+0x2000@0x2000 flags 0xe 0x7ffffffff000+0x4000@0 "
            "flags 0xe"});
  list.ask("GEM_VA clear where nothing is", va(fd, {0, kClear, 0, kFreeVa + 0x800000, 0, kPage}), "ok");
  list.ask("GEM_VA clear of no bytes", va(fd, {0, kClear, 0, kFreeVa, 0, 0}), "EINVAL");
  list.ask("GEM_VA replace over two maps", va(fd, {second, kReplace, kReadable, kFreeVa, 0, 3 * kPage}),
           "ok");
  list.ask("GET_MAPPING_INFO of what replaced", mappings(fd, second),
           {"EINVAL", "EINVAL", "ok 1 0x100000000+0x3000@0 flags 0x2"});
  list.ask(
      "GET_MAPPING_INFO of what is left", mappings(fd, bo),
      {"EINVAL", "EINVAL", "ok 2 0x100003000+0x1000@0x3000 flags 0xe 0x7ffffffff000+0x4000@0 flags 0xe"});
  list.ask("GEM_VA map of nothing, PRT", va(fd, {0, kMap, kPrt, kFreeVa + 0x900000, 0, kPage}), "ok");
  list.ask("GEM_VA unmap of nothing, PRT", va(fd, {0, kUnmap, kPrt, kFreeVa + 0x900000, 0, kPage}), "ok");
  list.ask("GEM_VA map, every MTYPE bit", va(fd, {bo, kMap, kRwx | 0x1e0, kFreeVa + 0xa00000, 0, kPage}),
           "ok");
  list.ask("GEM_VA map, NOALLOC", va(fd, {bo, kMap, kRwx | 0x200, kFreeVa + 0xb00000, 0, kPage}), "ok");
  list.ask("GEM_VA map, delayed", va(fd, {bo, kMap, kRwx | 1, kFreeVa + 0xc00000, 0, kPage}), "ok");
  list.ask("GET_MAPPING_INFO with rare flags", mappings(fd, bo),
           {"EINVAL", "EINVAL",
            "ok 5 0x100003000+0x1000@0x3000 flags 0xe 0x100a00000+0x1000@0 flags 0x1ee 0x100b00000+0x1000@0 "
            "flags 0x20e 0x100c00000+0x1000@0 flags 0xf 0x7ffffffff000+0x4000@0 flags 0xe"});
  list.ask("GEM_CLOSE of a BO with maps", name_of(close_bo(fd, second)), "ok");
  list.ask("GEM_VA map where a closed BO was", map_at(kFreeVa, kPage), "ok");
  list.ask("GEM_VA map above the hole of a BO", va(fd, {bo, kMap, kRwx, 0xffff800000000000, 0, kPage}),
           "EINVAL");
  list.ask("GET_MAPPING_INFO of a map above the hole", mappings(fd, bo),
           {"EINVAL", "EINVAL",
            "ok 6 0x100000000+0x1000@0 flags 0xe 0x100003000+0x1000@0x3000 flags 0xe 0x100a00000+0x1000@0 "
            "flags 0x1ee 0x100b00000+0x1000@0 flags 0x20e 0x100c00000+0x1000@0 flags 0xf "
            "0x7ffffffff000+0x4000@0 flags 0xe"});
}

void ask_render_sharing(List& list) {
  const int fd = open_or_fail(list);
  const int other = open_render(first_gpu());
  if (fd < 0) return;
  const std::uint32_t bo = create(fd, 2 * kPage, 0, kVram, 0).handle;
  list.ask("PRIME_HANDLE_TO_FD, handle that there is not", descriptor(export_bo(fd, 999, O_CLOEXEC)),
           "ENOENT");
  list.ask("PRIME_HANDLE_TO_FD, unknown flag", descriptor(export_bo(fd, bo, O_APPEND)), "EINVAL");
  list.ask("PRIME_HANDLE_TO_FD, no flags", descriptor(export_bo(fd, bo, 0)), "ok");
  const std::uint32_t always = create(fd, kPage, 0, kVram, kAlwaysValid).handle;
  list.ask("PRIME_HANDLE_TO_FD, VM_ALWAYS_VALID", descriptor(export_bo(fd, always, O_CLOEXEC)), "EPERM");
  void* memory = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::uint32_t own = 0;
  (void)userptr(fd, memory, kPage, 0xe, &own);
  list.ask("PRIME_HANDLE_TO_FD, userptr", descriptor(export_bo(fd, own, O_CLOEXEC)), "EPERM");
  const int dmabuf = export_bo(fd, bo, O_CLOEXEC | O_RDWR), again = export_bo(fd, bo, O_CLOEXEC);
  list.ask("PRIME_HANDLE_TO_FD", dmabuf < 0 ? name_of(-dmabuf) : "ok", "ok");
  list.ask("two exports of a BO are one dma-buf", inode(dmabuf) == inode(again) ? "yes" : "no", "yes");
  list.ask("access mode of an export, O_RDWR",
           hex(static_cast<unsigned>(::fcntl(dmabuf, F_GETFL) & O_ACCMODE)), "0", "0x2", kOwnMode);
  list.ask("access mode of a second export, no O_RDWR",
           hex(static_cast<unsigned>(::fcntl(again, F_GETFL) & O_ACCMODE)), "0");
  list.ask("link of a dma-buf's descriptor", link_of(dmabuf), "/dmabuf:");
  list.ask("seek to a dma-buf's end", seek(dmabuf, 0, SEEK_END), "8192");
  list.ask("seek to a dma-buf's start", seek(dmabuf, 0, SEEK_SET), "0");
  list.ask("seek into a dma-buf", seek(dmabuf, 4096, SEEK_SET), "EINVAL", "4096", kOrdinaryFile);
  std::array<char, 8> some{};
  list.ask("read of a dma-buf", ::read(dmabuf, some.data(), some.size()) < 0 ? name_of(errno) : "ok",
           "EINVAL", "ok", kOrdinaryFile);
  list.ask("mmap of a dma-buf", map(dmabuf, 0, 2 * kPage), "EACCES", "ok", kOwnMode);
  list.ask("mmap of a dma-buf beyond its end", map(dmabuf, 0, 3 * kPage), "EACCES", "EINVAL", kOwnMode);
  list.ask("fdinfo of a dma-buf: size", fdinfo(dmabuf, "size"), "8192");
  list.ask("fdinfo of a dma-buf: exp_name", fdinfo(dmabuf, "exp_name"), "drm");
  list.ask("PRIME_FD_TO_HANDLE, same file",
           import_bo(fd, dmabuf).handle == bo ? "the same handle" : "another", "the same handle");
  list.ask("PRIME_FD_TO_HANDLE, fd -1", made(import_bo(other, -1)), "EBADF");
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  list.ask("PRIME_FD_TO_HANDLE, no dma-buf", made(import_bo(other, null)), "EINVAL");
  list.ask("PRIME_FD_TO_HANDLE, a render file", made(import_bo(other, fd)), "EINVAL");
  const Bo imported = import_bo(other, dmabuf);
  list.ask("PRIME_FD_TO_HANDLE, another file", made(imported), "ok handle 1");
  list.ask("PRIME_FD_TO_HANDLE, another file again", made(import_bo(other, dmabuf)), "ok handle 1");
  list.ask("a BO that was imported", described(other, imported.handle),
           {"ok 8192 align 0 domains 0x4 flags 0", "ok 8192 align 0 domains 0x4 flags 0x208",
            "ok 8192 align 0 domains 0x4 flags 0x208"});
  list.ask("GEM_LIST_HANDLES with an import", listed(other),
           {"EINVAL", "EINVAL", "ok 1, handle 1 8192 domains 0x4 flags 0x208 align 0"});
  list.ask("mmap offset of an import",
           mmap_offset(other, imported.handle) == mmap_offset(fd, bo) ? "the same" : "another", "the same");
  list.ask("GEM_VA map of an import", va(other, {imported.handle, kMap, kRwx, kFreeVa, 0, 2 * kPage}), "ok");
  list.ask("GET_MAPPING_INFO of an import", mappings(other, imported.handle),
           {"EINVAL", "EINVAL", "ok 1 0x100000000+0x2000@0 flags 0xe"});
  list.ask("GET_MAPPING_INFO of the BO elsewhere", mappings(fd, bo), {"EINVAL", "EINVAL", "ok 0"});
  const int third = export_bo(other, imported.handle, O_CLOEXEC);
  list.ask("an export of an import is the same dma-buf",
           third >= 0 && inode(third) == inode(dmabuf) ? "yes" : "no", "yes");
  list.ask("GEM_OP 1 of what is exported", op(fd, bo, 1, kGtt), "ok");
  close_bo(fd, bo);
  ::close(again);
  ::close(third);
  close_bo(other, imported.handle);
  list.ask("PRIME_FD_TO_HANDLE when all handles are gone", made(import_bo(fd, dmabuf)), "ok handle 1");
}

}  // namespace vamdgpu::questions
