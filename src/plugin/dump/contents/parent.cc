// SPDX-License-Identifier: MIT
#include "plugin/dump/contents/parent.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/format.h"
#include "base/unique_fd.h"
#include "pipeline/store/extent_cloner.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {
namespace {

// File times are those of the kernel's last tick: at most 10 ms old.
constexpr std::int64_t kTickNs = 10'000'000;

std::int64_t ns_of(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * static_cast<std::int64_t>(kNsPerSecond) + time.tv_nsec;
}

std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  (void)::clock_gettime(clock, &now);
  return ns_of(now);
}

// When this process began, by the clock of file times; rounded down. Nothing if /proc does not tell.
std::optional<std::int64_t> process_began_ns() {
  const UniqueFd fd(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  const ssize_t got = fd ? TEMP_FAILURE_RETRY(::read(fd.get(), buffer, sizeof buffer)) : -1;
  if (got <= 0) return std::nullopt;
  const std::string_view text(buffer, static_cast<std::size_t>(got));
  // proc(5): field 22. The name, field 2, may contain blanks and brackets.
  constexpr int kFieldsBehindTheName = 20;
  std::size_t at = text.rfind(')');
  for (int field = 0; field < kFieldsBehindTheName && at != text.npos; ++field) at = text.find(' ', at + 1);
  if (at == text.npos) return std::nullopt;  // unreached: a guard
  std::int64_t ticks = 0;
  const auto [end, error] = std::from_chars(&text[at + 1], text.data() + text.size(), ticks);
  const std::int64_t per_second = ::sysconf(_SC_CLK_TCK);
  // unreached: a guard
  if (error != std::errc() || end == text.data() + text.size() || per_second <= 0) return std::nullopt;
  const std::int64_t since_boot_ns = ticks * (static_cast<std::int64_t>(kNsPerSecond) / per_second);
  return now_ns(CLOCK_REALTIME) - now_ns(CLOCK_BOOTTIME) + since_boot_ns;
}

void warn(const std::string& why) {
  log_line(Level::Warning, why);
}

// Whether the link was made for this process.
bool is_asked_for(const struct stat& link) {
  const auto began_ns = process_began_ns();
  if (!began_ns) {
    warn(
        "/proc does not say when criu began, so the parent link may be an earlier dump's; the dump writes "
        "everything [SL-D08]");
    return false;
  }
  if (ns_of(link.st_ctim) + kTickNs >= *began_ns) return true;
  warn(
      "the link named parent in the image directory is older than this criu; the dump writes everything "
      "[SL-D09]");
  return false;
}

bool leads_to_itself(int directory) {
  struct stat own {};
  struct stat parent {};
  return ::fstat(directory, &own) == 0 && ::fstatat(directory, kParentLink, &parent, 0) == 0 &&
         own.st_dev == parent.st_dev && own.st_ino == parent.st_ino;
}

// See DumpParent::clone_block_bytes. Every file is checked, because attributes may differ.
Result<std::uint64_t> ask_for_clones(int directory, const Ancestor& parent) {
  if (parent.has_parent())
    return Error{ENODATA, "the parent is not complete by itself; run sluice flatten on it [SL-D59]"};
  SLUICE_TRY_ASSIGN(const CloneProbe probe, CloneProbe::make(directory));
  for (const ExtentFile& file : parent.pages_files()) {
    if (file.bytes > kLargestUncloned) SLUICE_TRY(probe.ask(file));
  }
  return probe.block_bytes();
}

std::uint64_t clone_block_of(int directory, const Ancestor& parent) {
  const auto block_bytes = ask_for_clones(directory, parent);
  if (block_bytes) return *block_bytes;
  log_line(Level::Info,
           formatted("extents cannot be shared with the parent: {}; a restore needs the parent [SL-D60]",
                     block_bytes.error().what));
  return 0;
}

// A durable dump needs a durable chain. A member may have been dumped without syncs.
Result<void> sync_chain(const Ancestor& parent, const Chain& rest) {
  SLUICE_TRY(parent.sync());
  for (const auto& ancestor : rest.ancestors()) SLUICE_TRY(ancestor->sync());
  return {};
}

// Errors: the reason why the dump cannot build on it.
Result<void> prepare(const Ancestor& parent, const ImageKeys& keys, bool sync) {
  SLUICE_TRY_ASSIGN(const auto rest, check_parent(parent, keys));
  return sync ? sync_chain(parent, *rest) : Result<void>();
}

}  // namespace

DumpParent find_parent(const ImageStore& store, const settings::Config& config) {
  struct stat link {};
  const std::optional<int> directory = store.directory();
  if (!directory || ::fstatat(*directory, kParentLink, &link, AT_SYMLINK_NOFOLLOW) != 0) return {};
  if (!S_ISLNK(link.st_mode) || !is_asked_for(link)) return {};
  if (!config.checksum) {
    warn(
        "SLUICE_CHECKSUM=off, but only checksums tell what changed since the parent; the dump writes "
        "everything [SL-D11]");
    return {};
  }
  if (leads_to_itself(*directory)) {
    warn("the parent is the image directory itself; the dump writes everything [SL-D12]");
    return {};
  }
  auto parent = Ancestor::open(*directory, kParentLink, store.keys());
  if (!parent && parent.error().err == ENXIO) return {};  // CPU memory only, as after criu pre-dump
  const Result<void> good =
      parent ? prepare(**parent, store.keys(), config.sync) : Result<void>(parent.error());
  if (good) {
    const std::uint64_t clone_block_bytes = clone_block_of(*directory, **parent);
    return {std::move(*parent), clone_block_bytes};
  }
  warn(formatted("the dump cannot build on its parent: {}; the dump writes everything [SL-D13]",
                 good.error().what));
  return {};
}

}  // namespace sluice::plugin
