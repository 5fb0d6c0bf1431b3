// SPDX-License-Identifier: MIT
#include "plugin/dump/basis/parent.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/format.h"
#include "base/image_file.h"
#include "base/unique_fd.h"
#include "flatten/flatten.h"
#include "images/checkpoint.h"
#include "images/files/image_source.h"
#include "pipeline/extents/extent_cloner.h"
#include "pipeline/lane_thread.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {
namespace {

// File times are those of the kernel's last tick: at most 10 ms old.
constexpr std::int64_t kTickNs = 10'000'000;

// How long this process has run; rounded up. Nothing if /proc does not tell.
std::optional<std::int64_t> ns_since_process_began() {
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
  return now_ns(CLOCK_BOOTTIME) - since_boot_ns;
}

void warn(const std::string& why) {
  log_line(Level::Warning, why);
}

// How old the link is by the clock that stamps files there, which may be another machine's. Negative: that
// clock was ahead when the link was made.
Result<std::int64_t> age_ns(int directory, const struct stat& link) {
  SLUICE_TRY_ASSIGN(const UniqueFd fd, create_unnamed_file(directory));
  struct stat now {};
  if (::fstat(fd.get(), &now) != 0) return make_error(errno, "look at a new file");
  return ns_of(now.st_ctim) - ns_of(link.st_ctim);
}

// Whether the link was made for this process: after its begin, and before now.
bool is_asked_for(int directory, const struct stat& link) {
  const auto age = age_ns(directory, link);
  const auto ran = ns_since_process_began();
  if (!age || !ran) {
    warn(
        formatted("it is unknown whether this dump asked for the link named parent ({}); the dump writes "
                  "everything [SL-D08]",
                  age ? "/proc does not say when criu began" : age.error().what));
    return false;
  }
  if (*age > *ran + kTickNs) {
    warn(
        "the link named parent in the image directory is older than this criu; the dump writes everything "
        "[SL-D09]");
  } else if (*age < -kTickNs) {
    warn(
        "the link named parent in the image directory was made in the future, so a clock was wrong; remove "
        "it, because the dump writes everything [SL-D90]");
  }
  return *age <= *ran + kTickNs && *age >= -kTickNs;
}

// Whether files of the dump can share extents with all of the parent's.
struct Sharing {
  std::uint64_t block_bytes = 0;  // see DumpParent::clone_block_bytes
  std::string why_not;
};

// Every file is checked, because attributes may differ. Errors: of the files; they never mean that extents
// cannot be shared.
Result<Sharing> ask_for_clones(int directory, const Ancestor& parent) {
  if (!parent.is_complete())
    return Sharing{0, "the parent is not complete by itself; run sluice flatten on it [SL-D59]"};
  SLUICE_TRY_ASSIGN(const CloneProbe probe, CloneProbe::make(directory));
  for (const ExtentFile& file : parent.pages_files()) {
    if (file.bytes <= kLargestUncloned) continue;
    SLUICE_TRY_ASSIGN(const int refusal, probe.ask(file));
    if (refusal != 0) return Sharing{0, make_error(refusal, "clone a block of " + file.words).what};
  }
  return Sharing{probe.block_bytes(), {}};
}

// A restore needs the parent: the link must lead there for as long as the dump is kept.
void warn_of_link(int directory) {
  std::array<char, PATH_MAX> target{};
  if (::readlinkat(directory, kParentLink, target.data(), target.size() - 1) < 0)
    return;  // unreached: a race
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  if (target.front() == '/') {
    warn(formatted(
        "the parent is named by an absolute path, {}: when the chain is moved, or restored in another "
        "mount namespace, that leads elsewhere; name the way from the new directory, ../NAME [SL-D91]",
        target.data()));
  } else if (const UniqueFd fd(
                 static_cast<int>(::syscall(SYS_openat2, directory, target.data(), &how, sizeof how)));
             !fd && errno == ELOOP) {
    warn(formatted(
        "the parent is named through a symbolic link, {}: when that leads elsewhere, this checkpoint "
        "cannot be restored; name the directory itself [SL-D92]",
        target.data()));
  }
}

using Identity = std::pair<dev_t, ino_t>;

Error still_needed(const std::string& why) {
  return {EEXIST,
          formatted("the parent needs what is in the image directory, which this run would remove, and {}; "
                    "name a directory that no checkpoint of the parent's chain is in [SL-D93]",
                    why)};
}

// Makes the member of the chain complete that is built on the image directory: no other needs that then.
// Nothing stands still yet.
Result<void> flatten_child_of(const Identity& own, const Ancestor& parent, const ImageKeys& keys,
                              const settings::Config& config) {
  SLUICE_TRY_ASSIGN(const auto rest, Chain::open(parent.dir_fd(), {.parent = parent.parent_dump_id()}, keys));
  const Ancestor* child = &parent;
  for (const auto& ancestor : rest->ancestors()) {
    if (ancestor->identity() == own) break;
    child = ancestor.get();
  }
  warn(
      "a checkpoint of the parent's chain needs what is in the image directory, so it is made complete by "
      "itself "
      "first [SL-D94]");
  DirectorySource source(child->dir_fd());
  source.set_keys(keys);
  SLUICE_TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint(source));
  SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("sluice-flatten", [&]() -> Result<void> {
                      SLUICE_TRY_ASSIGN(const FlattenTotals totals,
                                        flatten(source, checkpoint,
                                                {.chunk_bytes = config.chunk_bytes,
                                                 .staging_bytes = config.staging_bytes}));
                      (void)totals;
                      return {};
                    }));
  return thread.join();
}

// The chain, when it does not need the image directory any more. CRIU's images have no flatten. Errors:
// EEXIST.
Result<std::unique_ptr<const ParentChain>> without_own(const Identity& own,
                                                       std::unique_ptr<const ParentChain> chain,
                                                       int directory, const ImageKeys& keys,
                                                       const settings::Config& config) {
  if (!chain->needs(own)) return chain;
  struct stat status {};
  if (::fstatat(chain->parent().dir_fd(), "inventory.img", &status, 0) == 0)
    return still_needed("so may CRIU's own images");
  if (auto flat = flatten_child_of(own, chain->parent(), keys, config); !flat)
    return still_needed("it cannot be made complete by itself: " + flat.error().what);
  SLUICE_TRY_ASSIGN(chain, ParentChain::open(directory, keys));
  if (chain->needs(own)) return still_needed("a pre-dump is built on it");
  return chain;
}

// Errors: the reason why the dump cannot build on it.
Result<DumpParent> prepare(std::unique_ptr<const ParentChain> chain, int directory, bool sync) {
  if (sync) SLUICE_TRY(chain->sync());
  SLUICE_TRY_ASSIGN(const Sharing sharing, ask_for_clones(directory, chain->parent()));
  if (sharing.block_bytes == 0) {
    log_line(Level::Info,
             formatted("extents cannot be shared with the parent: {}; a restore needs the parent [SL-D60]",
                       sharing.why_not));
    warn_of_link(directory);
  }
  return DumpParent{std::move(chain), sharing.block_bytes};
}

}  // namespace

Result<DumpParent> find_parent(const ImageStore& store, const settings::Config& config) {
  struct stat link {};
  const std::optional<int> directory = store.directory();
  if (!directory || ::fstatat(*directory, kParentLink, &link, AT_SYMLINK_NOFOLLOW) != 0) return DumpParent();
  if (!S_ISLNK(link.st_mode) || !is_asked_for(*directory, link)) return DumpParent();
  if (!config.checksum) {
    warn(
        "SLUICE_CHECKSUM=off, but only checksums tell what changed since the parent; the dump writes "
        "everything [SL-D11]");
    return DumpParent();
  }
  struct stat own {};
  struct stat parent {};
  if (::fstat(*directory, &own) != 0) return make_error(errno, "look at the image directory", Topic::Images);
  if (::fstatat(*directory, kParentLink, &parent, 0) == 0 && own.st_dev == parent.st_dev &&
      own.st_ino == parent.st_ino) {
    warn("the parent is the image directory itself; the dump writes everything [SL-D12]");
    return DumpParent();
  }
  auto chain = ParentChain::open(*directory, store.keys());
  if (!chain && chain.error().err == ENXIO) return DumpParent();  // CPU memory only, as after criu pre-dump
  if (chain) {
    chain = without_own({own.st_dev, own.st_ino}, std::move(*chain), *directory, store.keys(), config);
    if (!chain && chain.error().err == EEXIST) return chain.error();
  }
  auto found =
      chain ? prepare(std::move(*chain), *directory, config.sync) : Result<DumpParent>(chain.error());
  if (found) return found;
  warn(formatted("the dump cannot build on its parent: {}; the dump writes everything [SL-D13]",
                 found.error().what));
  return DumpParent();
}

Result<void> DumpParent::check_unchanged(const ImageStore& store) const {
  return chain ? chain->check_unchanged(*store.directory()) : Result<void>();
}

}  // namespace sluice::plugin
