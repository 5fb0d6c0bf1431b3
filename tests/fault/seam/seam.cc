// SPDX-License-Identifier: MIT
#include "seam.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace sluice::seam {
namespace {

Plan* g_plan = nullptr;

// What of the plugin lies where.
struct Layout {
  std::uintptr_t base = 0;
  std::uintptr_t code = 0, code_end = 0;
  std::uintptr_t relro = 0, relro_end = 0;  // whole pages
};
Layout g_plugin;

// The plugin's functions that the calling thread is in, up to the host's call or the thread's start.
struct Way {
  std::uint64_t digest = 14695981039346656037ULL;  // FNV-1a, over words
  std::array<std::uint32_t, 16> frames{};
  std::size_t depth = 0;

  void add(std::uint64_t word) { digest = (digest ^ word) * 1099511628211ULL; }
};

_Unwind_Reason_Code add_frame(_Unwind_Context* frame, void* argument) {
  auto& way = *static_cast<Way*>(argument);
  const std::uintptr_t address = _Unwind_GetIP(frame);
  const bool inside = address >= g_plugin.code && address < g_plugin.code_end;
  if (!inside) return way.depth == 0 ? _URC_NO_REASON : _URC_END_OF_STACK;
  const auto offset = static_cast<std::uint32_t>(address - g_plugin.base);
  if (way.depth < way.frames.size()) way.frames[way.depth] = offset;
  ++way.depth;
  way.add(offset);
  return _URC_NO_REASON;
}

// Takes a free one where it is new. nullptr: there is no room.
Place* place_of(std::uint64_t id) {
  auto& places = g_plan->places;
  for (std::size_t i = 0; i < places.size(); ++i) {
    Place& place = places[(id + i) % places.size()];
    std::uint64_t present = 0;
    if (place.id.compare_exchange_strong(present, id) || present == id) return &place;
  }
  return nullptr;
}

// A process of its own kills this one, through the virtual amdgpu where that is there: nobody dies in the
// middle of a driver call of another thread. It keeps no descriptor, and its end is nobody's child's.
[[noreturn]] void die() {
  const auto victim = static_cast<pid_t>(::syscall(SYS_getpid));
  if (::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL) == 0) {
    (void)::syscall(SYS_close_range, 0U, ~0U, 0U);
    (void)::kill(victim, SIGKILL);
    ::_exit(0);
  }
  for (;;) (void)::pause();
}

bool in_main_thread() {
  return ::syscall(SYS_gettid) == ::getpid();
}

// ---- calls that hang

std::atomic_flag g_spinning;

class Spinning {
 public:
  Spinning() {
    while (g_spinning.test_and_set()) (void)::sched_yield();
  }
  ~Spinning() { g_spinning.clear(); }
  Spinning(const Spinning&) = delete;
  Spinning& operator=(const Spinning&) = delete;
};
bool g_held = false, g_wanted = false;  // SIGTERM: by the main thread, and for it

void send_what_is_wanted() {
  if (!g_held || !g_wanted) return;
  g_wanted = false;
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  (void)::kill(::getpid(), SIGTERM);
  g_plan->signalled_ns = now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

void note_hang() {
  g_plan->hung_thread = static_cast<pid_t>(::syscall(SYS_gettid));
  g_plan->hung_process = ::getpid();
  if (in_main_thread()) return;
  const Spinning lock;
  g_wanted = true;
  send_what_is_wanted();
}

// Handlers of signals run, as in a call that could be interrupted.
[[noreturn]] void hang() {
  for (;;) (void)::pause();
}

}  // namespace

void signals_are_held(bool held) {
  if (!in_main_thread()) return;
  const Spinning lock;
  g_held = held;
  send_what_is_wanted();
}

Kind at_point(const char* call, std::uint32_t kinds) {
  const Kind kind = at_request(call, kinds);
  if (kind == kHang) hang();
  return kind;
}

Kind at_request(const char* call, std::uint32_t kinds) {
  Way way;
  for (const char* letter = call; *letter != '\0'; ++letter) way.add(static_cast<unsigned char>(*letter));
  (void)_Unwind_Backtrace(add_frame, &way);
  Place* place = place_of(way.digest);
  if (place == nullptr) {
    g_plan->full = true;
    return kPass;
  }
  if (in_main_thread()) kinds |= kSignal;
  place->kinds |= kinds;
  const std::uint32_t turn = ++place->turns;
  if (turn == 1) {
    place->way = way.frames;
    std::string_view(call).copy(place->call.data(), place->call.size() - 1);
  }
  const Kind kind = g_plan->kind;
  if ((kind & kinds) == 0 || g_plan->place != way.digest || g_plan->turn != turn) return kPass;
  g_plan->fired = true;
  if (kind == kKill) die();
  if (kind == kHang) note_hang();
  if (kind != kSignal) return kind;
  (void)::kill(::getpid(), SIGTERM);
  return kPass;
}

void give_up_unlisted(const char* what, long number) {
  g_plan->unlisted = true;
  std::array<char, 128> line{};
  const int length =
      std::snprintf(line.data(), line.size(),
                    "the seam does not know %s %ld: let it fail, or say there why it cannot\n", what, number);
  (void)!::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(length));
  std::abort();
}

namespace {

[[noreturn]] void fail(const char* what) {
  (void)std::fprintf(stderr, "the seam cannot be made: %s\n", what);
  std::abort();
}

int find_parts(dl_phdr_info* info, std::size_t, void* argument) {
  auto& layout = *static_cast<Layout*>(argument);
  if (info->dlpi_addr != layout.base) return 0;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const std::uintptr_t begin = layout.base + part.p_vaddr;
    const std::uintptr_t end = begin + part.p_memsz;
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
      layout.code = begin;
      layout.code_end = end;
    } else if (part.p_type == PT_GNU_RELRO) {
      layout.relro = begin / page * page;
      layout.relro_end = (end + page - 1) / page * page;
    }
  }
  return 1;
}

std::uintptr_t dynamic(const link_map& map, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag) return entry->d_un.d_ptr;
  }
  return 0;
}

// Every place that holds the address of an import, those of calls and those that are compared with null.
void redirect(void* plugin, const link_map& map, std::uintptr_t table, std::uintptr_t bytes) {
  const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic(map, DT_SYMTAB));
  const auto* names = reinterpret_cast<const char*>(dynamic(map, DT_STRTAB));
  const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(table);
  const Imports wrapped = imports();
  for (std::size_t i = 0; i < bytes / sizeof(ElfW(Rela)); ++i) {
    const auto number = ELF64_R_SYM(relocations[i].r_info);
    const ElfW(Sym)& symbol = symbols[number];
    if (number == 0 || symbol.st_shndx != SHN_UNDEF) continue;
    for (std::size_t j = 0; j < wrapped.count; ++j) {
      const Import& import = wrapped.first[j];
      if (std::strcmp(import.name, names + symbol.st_name) != 0) continue;
      // As the loader looks: first what all see, then what the plugin has brought.
      if (*import.real == nullptr) *import.real = ::dlsym(RTLD_DEFAULT, import.name);
      if (*import.real == nullptr) *import.real = ::dlsym(plugin, import.name);
      if (*import.real == nullptr) break;  // weak, and this host has no such
      *reinterpret_cast<void**>(map.l_addr + relocations[i].r_offset) = import.wrapper;
      break;
    }
  }
}

void stand_before(void* plugin) {
  link_map* map = nullptr;
  if (::dlinfo(plugin, RTLD_DI_LINKMAP, &map) != 0) fail("no link map");
  g_plugin = {.base = map->l_addr};
  (void)::dl_iterate_phdr(find_parts, &g_plugin);
  const Layout& layout = g_plugin;
  if (layout.code == 0 || layout.relro == 0) fail("no code or no relocations");
  auto* const relro = reinterpret_cast<void*>(layout.relro);
  const std::size_t relro_bytes = layout.relro_end - layout.relro;
  if (::mprotect(relro, relro_bytes, PROT_READ | PROT_WRITE) != 0) fail("mprotect");
  redirect(plugin, *map, dynamic(*map, DT_RELA), dynamic(*map, DT_RELASZ));
  redirect(plugin, *map, dynamic(*map, DT_JMPREL), dynamic(*map, DT_PLTRELSZ));
  trap_calls_between(layout.code, layout.code_end);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace sluice::seam

extern "C" [[gnu::visibility("default")]] void* dlopen(const char* path, int mode) noexcept {
  using namespace sluice::seam;
  static auto* const real = next<void*(const char*, int)>("dlopen");
  void* library = real(path, mode);
  const char* plan = std::getenv(kPlanVariable);
  if (library == nullptr || path == nullptr || plan == nullptr || g_plan != nullptr) return library;
  if (!std::string_view(path).ends_with("/amdgpu_plugin.so")) return library;
  g_plan = map_plan(plan, false);
  if (g_plan == nullptr) fail(plan);
  stand_before(library);
  return library;
}

// The trap of own_calls.cc is a signal that nobody may block.
extern "C" [[gnu::visibility("default")]] int sigprocmask(int how, const sigset_t* set,
                                                          sigset_t* old) noexcept {
  using namespace sluice::seam;
  static auto* const real = next<int(int, const sigset_t*, sigset_t*)>("sigprocmask");
  if (set == nullptr || how == SIG_UNBLOCK) return real(how, set, old);
  sigset_t without = *set;
  (void)::sigdelset(&without, SIGSYS);
  return real(how, &without, old);
}
