// SPDX-License-Identifier: MIT
// System calls that the plugin's own instructions make: liburing's. A seccomp filter traps them by the place
// of the instruction; the handler counts the point and makes the call, or does not.
//
// What a ring is asked to do are points, too: io_uring's results. The handler finds the entries where the
// plugin has put them, and what it changes there the kernel itself answers: a transfer of half the bytes, an
// operation on no file, or a wait for what never comes.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <linux/time_types.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "seam.h"

namespace sluice::seam {
namespace {

// Half of a transfer stays what direct I/O takes.
constexpr std::uint32_t kBlockBytes = 4096;

struct Call {
  long number = 0;
  std::array<long, 6> arguments{};
};

// ---- rings of this process

struct Ring {
  std::atomic<int> fd{-1};
  io_sqring_offsets offsets{};
  std::byte* queue = nullptr;  // the plugin's own maps
  io_uring_sqe* entries = nullptr;
};
std::array<Ring, 64> g_rings;

Ring* ring_of(int fd) {
  const auto found =
      std::find_if(g_rings.begin(), g_rings.end(), [fd](const Ring& ring) { return ring.fd == fd; });
  return found != g_rings.end() ? found : nullptr;
}

void note_ring(int fd, const io_uring_params& params) {
  for (Ring& ring : g_rings) {
    int none = -1;
    if (!ring.fd.compare_exchange_strong(none, fd)) continue;
    ring.offsets = params.sq_off;
    ring.queue = nullptr;
    ring.entries = nullptr;
    return;
  }
}

void note_map(int fd, std::uint64_t offset, long address) {
  Ring* ring = ring_of(fd);
  if (ring == nullptr) return;
  if (offset == IORING_OFF_SQ_RING) ring->queue = reinterpret_cast<std::byte*>(address);
  if (offset == IORING_OFF_SQES) ring->entries = reinterpret_cast<io_uring_sqe*>(address);
}

const char* name_of(const io_uring_sqe& entry) {
  switch (entry.opcode) {
    case IORING_OP_READ:
    case IORING_OP_READ_FIXED:
      return "io_uring read";
    case IORING_OP_WRITE:
    case IORING_OP_WRITE_FIXED:
      return "io_uring write";
    case IORING_OP_FSYNC:
      return "io_uring fsync";
    case IORING_OP_POLL_ADD:
      return "io_uring poll";
    case IORING_OP_LINK_TIMEOUT:
      return nullptr;  // of the poll before it: that one fails, or the ring does
    case IORING_OP_ASYNC_CANCEL:
      return nullptr;  // of a poll without a timeout, for want of memory
    default:
      give_up_unlisted("io_uring's operation", entry.opcode);
  }
}

// Beneath its link to a timeout, which a wait for a fence has: that one comes.
void hang(io_uring_sqe& entry) {
  io_uring_sqe wait{};
  wait.opcode = IORING_OP_POLL_ADD;
  wait.flags = entry.flags;
  wait.fd = ::eventfd(0, EFD_CLOEXEC);
  wait.poll32_events = POLLIN;
  wait.user_data = entry.user_data;
  entry = wait;
}

void look_at(io_uring_sqe& entry) {
  const char* name = name_of(entry);
  if (name == nullptr) return;
  const bool transfer = entry.opcode != IORING_OP_FSYNC && entry.opcode != IORING_OP_POLL_ADD;
  const std::uint32_t half = entry.len / 2 / kBlockBytes * kBlockBytes;
  switch (at_request(name, kError | kHang | (transfer && half > 0 ? kShort : kPass))) {
    case kError:
      entry.fd = -1;
      break;
    case kShort:
      entry.len = half;
      break;
    case kHang:
      hang(entry);
      break;
    default:
      break;
  }
}

void look_at_submission(int fd, std::uint32_t count) {
  const Ring* ring = ring_of(fd);
  if (ring == nullptr || ring->queue == nullptr || ring->entries == nullptr) return;
  const auto word = [ring](std::uint32_t offset) {
    return reinterpret_cast<const std::uint32_t*>(ring->queue + offset);
  };
  const std::uint32_t head = *word(ring->offsets.head);
  const std::uint32_t mask = *word(ring->offsets.ring_mask);
  for (std::uint32_t i = 0; i < count; ++i)
    look_at(ring->entries[word(ring->offsets.array)[(head + i) & mask]]);
}

// ---- the calls

struct OwnCall {
  long number;
  const char* name;
  std::uint32_t kinds;
  int error;
};
// A call to io_uring_enter that fails for good is no failure that the kernel has for a ring in order; a
// refusal that passes is.
constexpr OwnCall kOwnCalls[] = {
    {SYS_io_uring_setup, "io_uring_setup", kError | kKill, ENOMEM},
    {SYS_io_uring_register, "io_uring_register", kError | kKill | kHang, ENOMEM},
    {SYS_io_uring_enter, "io_uring_enter", kError | kKill | kHang, EAGAIN},
    {SYS_mmap, "mmap of a ring", kError | kKill, ENOMEM},
    {SYS_madvise, "madvise of a ring", kError | kKill, ENOMEM},
};
// They give back.
constexpr std::array<long, 2> kNoPoints = {SYS_munmap, SYS_close};

long make(const Call& call) {
  const auto& arguments = call.arguments;
  if (call.number == SYS_io_uring_enter)
    look_at_submission(static_cast<int>(arguments[0]), static_cast<std::uint32_t>(arguments[1]));
  if (call.number == SYS_close) {
    if (Ring* ring = ring_of(static_cast<int>(arguments[0])); ring != nullptr) ring->fd = -1;
  }
  const long result = ::syscall(call.number, arguments[0], arguments[1], arguments[2], arguments[3],
                                arguments[4], arguments[5]);
  if (result < 0 && result >= -4095 && call.number != SYS_mmap) return -errno;
  if (call.number == SYS_mmap && reinterpret_cast<void*>(result) == MAP_FAILED) return -errno;
  if (call.number == SYS_io_uring_setup)
    note_ring(static_cast<int>(result), *reinterpret_cast<const io_uring_params*>(arguments[1]));
  if (call.number == SYS_mmap)
    note_map(static_cast<int>(arguments[4]), static_cast<std::uint64_t>(arguments[5]), result);
  return result;
}

long count_and_make(const Call& call) {
  const auto* const known = std::find_if(std::begin(kOwnCalls), std::end(kOwnCalls),
                                         [&call](const OwnCall& each) { return each.number == call.number; });
  if (known != std::end(kOwnCalls)) {
    if (at_point(known->name, known->kinds) == kError) return -known->error;
  } else if (std::find(kNoPoints.begin(), kNoPoints.end(), call.number) == kNoPoints.end()) {
    give_up_unlisted("the plugin's own system call", call.number);
  }
  return make(call);
}

void on_trap(int, siginfo_t* info, void* context) {
  const int saved = errno;
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  auto& registers = machine.gregs;
  const Call call{info->si_syscall,
                  {registers[REG_RDI], registers[REG_RSI], registers[REG_RDX], registers[REG_R10],
                   registers[REG_R8], registers[REG_R9]}};
  registers[REG_RAX] = count_and_make(call);
#elif defined(__aarch64__)
  auto& registers = machine.regs;
  Call call{info->si_syscall, {}};
  std::transform(registers, registers + 6, call.arguments.begin(),
                 [](auto value) { return static_cast<long>(value); });
  registers[0] = static_cast<decltype(+registers[0])>(count_and_make(call));
#else
#error "how this machine passes arguments to system calls is not known here"
#endif
  errno = saved;
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

constexpr std::uint32_t kLow = offsetof(seccomp_data, instruction_pointer);
constexpr std::uint32_t kHigh = kLow + 4;
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// Traps in [begin, end), which lies within one 4 GiB.
void append(std::array<sock_filter, 16>& filter, std::size_t& length, std::uintptr_t begin,
            std::uintptr_t end) {
  if (begin == end) return;
  const auto low = [](std::uintptr_t address) { return static_cast<std::uint32_t>(address); };
  const auto high = static_cast<std::uint32_t>(std::uint64_t{begin} >> 32);
  for (const sock_filter& line : std::initializer_list<sock_filter>{
           BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kHigh),
           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 4),
           BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kLow),
           BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(begin), 0, 2),
           BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, low(end - 1), 1, 0),
           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
       }) {
    filter[length++] = line;
  }
}

}  // namespace

void trap_calls_between(std::uintptr_t begin, std::uintptr_t end) {
  struct sigaction action {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (::sigaction(SIGSYS, &action, nullptr) != 0) give_up("sigaction");
  constexpr std::uint64_t kPart = std::uint64_t{1} << 32;
  const std::uintptr_t border = std::clamp<std::uintptr_t>((end - 1) / kPart * kPart, begin, end);
  std::array<sock_filter, 16> filter{};
  std::size_t length = 0;
  append(filter, length, begin, border);
  append(filter, length, border, end);
  filter[length++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog program = {static_cast<unsigned short>(length), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) give_up("PR_SET_NO_NEW_PRIVS");
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) give_up("PR_SET_SECCOMP");
}

}  // namespace sluice::seam
