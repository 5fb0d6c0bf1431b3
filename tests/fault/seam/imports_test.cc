// SPDX-License-Identifier: MIT
// Nothing that the plugin calls is forgotten: each of its imports is one that the seam can let fail
// (calls.cc), or stands here with the reason why it is not.
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "seam.h"

// calls.cc asks these; nothing is called here.
sluice::seam::Kind sluice::seam::at_point(const char*, std::uint32_t) {
  return kPass;
}
void sluice::seam::signals_are_held(bool) {}
void sluice::seam::give_up_unlisted(const char*, long) {
  std::abort();
}

namespace sluice::seam {
namespace {

struct Exempt {
  const char* reason;
  const char* names;  // "*": any letters, at one end
};
constexpr Exempt kExempt[] = {
    {"the compiler's, the loader's and libstdc++'s own",
     "_ITM_* _ZGT* __cxa_* __gmon_start__ __tls_get_addr __stack_chk_fail __errno_location "
     "__libc_single_threaded "
     "__libc_start_main _dl_find_object __environ environ stderr abort __assert_fail"},
    {"libstdc++'s texts of the world: there is no locale here",
     "*_l __*locale setlocale gettext dgettext bindtextdomain bind_textdomain_codeset iconv* btowc wctob "
     "mbr* mbs* "
     "wc* wmem* __ctype_get_mb_cur_max"},
    {"libstdc++ has it linked in, and nothing comes to it", "getentropy arc4random setvbuf fdopen fileno"},
    {"works on memory that is there",
     "memchr memcmp memcpy memmove memrchr memset str* __isoc99_sscanf __isoc23_* snprintf vsnprintf sprintf "
     "tolower toupper sigemptyset sigfillset "
     "sigaddset sigismember sigabbrev_np __sched_cpucount protobuf_c_message_pack "
     "protobuf_c_message_pack_to_buffer protobuf_c_message_get_packed_size"},
    {"gives back",
     "free munmap closedir fclose sem_destroy protobuf_c_message_free_unpacked amdgpu_bo_cpu_unmap "
     "amdgpu_bo_free amdgpu_cs_ctx_free amdgpu_device_deinitialize amdgpu_va_range_free"},
    {"asks what has an answer in every process",
     "clock_gettime getpid gettid geteuid getenv getrlimit64 get_nprocs sysconf dirfd sched_yield sigpending "
     "dlsym "
     "dladdr dladdr1 dlerror"},
    {"a question to the host of which every answer is one",
     "get_service_fd check_and_remove_inventory_plugin print_on_level"},
    {"a lock that another run has, or none", "flock"},
    {"the end of the host's process, and the host's own way there", "exit network_unlock"},
    {"never called: that the host has it tells which version that is", "cr_fchown"},
    {"a descriptor that libdrm has", "amdgpu_device_get_fd"},
    {"a line to the standard error", "fprintf fputs fputc fwrite fflush"},
    {"threads and locks that are there, of which the kernel knows nothing",
     "pthread_cond_* pthread_mutex_* pthread_mutexattr_* pthread_attr_* pthread_once pthread_self "
     "pthread_join "
     "pthread_detach "
     "pthread_setname_np pthread_getspecific pthread_setspecific pthread_key_* __pthread_key_create"},
    {"a descriptor of one's own that takes it: an eventfd far from full, one end of a pair",
     "eventfd_read eventfd_write shutdown"},
    {"a signal of one's own, or SIGKILL for a child of criu's", "sigaction raise kill"},
    {"a limit of one's own that is lowered, or is put back to what it was", "setrlimit64"},
    {"an alarm of one's own that is held, asked for, or goes on", "setitimer getitimer"},
    {"waits no longer than it is told", "nanosleep"},
};

bool fits(std::string_view name, std::string_view pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern;
  return name.size() + 1 >= pattern.size() && name.starts_with(pattern.substr(0, star)) &&
         name.ends_with(pattern.substr(star + 1));
}

bool is_exempt(const std::string& name) {
  return std::any_of(std::begin(kExempt), std::end(kExempt), [&](const Exempt& exempt) {
    std::istringstream patterns(exempt.names);
    for (std::string pattern; patterns >> pattern;) {
      if (fits(name, pattern)) return true;
    }
    return false;
  });
}

std::set<std::string> wrapped() {
  std::set<std::string> names;
  const Imports all = imports();
  for (std::size_t i = 0; i < all.count; ++i) names.insert(all.first[i].name);
  return names;
}

std::uintptr_t dynamic(const link_map& map, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag) return entry->d_un.d_ptr;
  }
  return 0;
}

// What the plugin finds in others, as the seam does: by its relocations.
std::set<std::string> imports_of(const char* path) {
  std::set<std::string> found;
  link_map* map = nullptr;
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr || ::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return found;
  const auto* const symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic(*map, DT_SYMTAB));
  const auto* const names = reinterpret_cast<const char*>(dynamic(*map, DT_STRTAB));
  for (const auto& [table, bytes] : {std::pair(DT_RELA, DT_RELASZ), std::pair(DT_JMPREL, DT_PLTRELSZ)}) {
    const auto* const relocations = reinterpret_cast<const ElfW(Rela)*>(dynamic(*map, table));
    for (std::size_t i = 0; i < dynamic(*map, bytes) / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(relocations[i].r_info)];
      if (symbol.st_name != 0 && symbol.st_shndx == SHN_UNDEF) found.insert(names + symbol.st_name);
    }
  }
  (void)::dlclose(library);
  return found;
}

TEST(SeamImports, EachIsWrappedOrCannotFail) {
  const std::set<std::string> all = imports_of(SLUICE_PLUGIN);
  const std::set<std::string> known = wrapped();
  EXPECT_TRUE(all.contains("ioctl")) << SLUICE_PLUGIN " cannot be looked at";
  for (const std::string& name : all) {
    EXPECT_TRUE(known.contains(name) || is_exempt(name))
        << name << " is called by the plugin: let it fail in calls.cc, or say here why it cannot";
  }
  std::printf("shown: every failure once: %zu imports of the plugin, %zu of them can fail\n", all.size(),
              static_cast<std::size_t>(std::count_if(
                  all.begin(), all.end(), [&](const std::string& name) { return known.contains(name); })));
}

}  // namespace
}  // namespace sluice::seam
