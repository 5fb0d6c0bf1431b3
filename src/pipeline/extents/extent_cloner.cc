// SPDX-License-Identifier: MIT
#include "pipeline/extents/extent_cloner.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/image_file.h"
#include "base/units.h"
#include "pipeline/lane.h"
#include "pipeline/store/file_reader.h"

namespace sluice {
namespace {

// Limit of one call: between two calls a dump can be stopped.
constexpr std::uint64_t kMostBytesAtOnce = kGiB;
constexpr std::uint64_t kLeastBlockBytes = 512;

std::string range_words(std::uint64_t begin, std::uint64_t bytes) {
  return " [" + std::to_string(begin) + ", " + std::to_string(begin + bytes) + ")";
}

Error clone_error(int err, const ExtentFile& from, const CloneRun& run, const std::string& name) {
  Error error = make_error(err, "clone " + from.words + range_words(run.offset, run.bytes) + " into " + name,
                           Topic::Images);
  const bool has_remedy = err == ENOSPC || err == EDQUOT || is_refusal(err);
  return has_remedy ? error : with_remedy(error, "; dump without a parent, or into another file system");
}

}  // namespace

Result<UniqueFd> open_source(const ExtentFile& file) {
  if (file.open_fd >= 0) {
    UniqueFd own(::fcntl(file.open_fd, F_DUPFD_CLOEXEC, 0));
    return own ? Result<UniqueFd>(std::move(own)) : make_error(errno, "open " + file.words + " again");
  }
  auto opened = open_image_file(file.dir_fd, file.name);
  if (!opened) return explain(file.words, opened.error());
  SLUICE_TRY(check_pages_file(file.words, opened->status, file.bytes));
  if (!file.must_be_private || is_private(opened->status)) return std::move(opened->fd);
  return make_error(EACCES,
                    file.words + " is not this user's own, of mode 0600, as the files of a parent must be",
                    Topic::Images);
}

void CloneRuns::append(const CloneRun& next) {
  if (!runs.empty()) {
    CloneRun& last = runs.back();
    const bool goes_on = last.file == next.file && last.begin + last.bytes == next.begin &&
                         last.offset + last.bytes == next.offset;
    if (goes_on) {
      last.bytes += next.bytes;
      return;
    }
  }
  runs.push_back(next);
}

int clone_range(int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd, std::uint64_t to) {
  file_clone_range range{};
  range.src_fd = from_fd;
  range.src_offset = from;
  range.src_length = bytes;
  range.dest_offset = to;
  return TEMP_FAILURE_RETRY(::ioctl(to_fd, FICLONERANGE, &range)) == 0 ? 0 : errno;
}

bool is_refusal(int err) {
  switch (err) {
    case EAGAIN:  // ZFS: of bytes that are not on the disk yet
    case EINVAL:
    case ENOSYS:
    case ENOTTY:
    case EOPNOTSUPP:
    case EPERM:
    case ETXTBSY:
    case EXDEV:
      return true;
    default:
      return false;
  }
}

// If the file system's block is no power of two, or a server means something else by it, whole parts are
// used, and ask() tests them.
Result<CloneProbe> CloneProbe::make(int dir_fd, CloneCall call) {
  struct statfs status {};
  if (::fstatfs(dir_fd, &status) != 0) return make_error(errno, "look at the image directory");
  SLUICE_TRY_ASSIGN(UniqueFd fd, create_unnamed_file(dir_fd));
  auto block_bytes = static_cast<std::uint64_t>(status.f_bsize);
  if (!std::has_single_bit(block_bytes) || block_bytes < kLeastBlockBytes || block_bytes > kZeroUnitBytes)
    block_bytes = kZeroUnitBytes;  // unreached: another machine
  return CloneProbe(std::move(fd), block_bytes, std::move(call));
}

// With one block: a stretch may be shifted in the other file by any number of blocks.
int CloneProbe::clone_block(int from_fd) const {
  return call_(from_fd, 0, block_bytes_, fd_.get(), block_bytes_);
}

Result<int> CloneProbe::ask(const ExtentFile& file) const {
  SLUICE_TRY_ASSIGN(const UniqueFd from, open_source(file));
  const int err = clone_block(from.get());
  if (err == 0 || is_refusal(err)) return err;
  return make_error(err, "clone a block of " + file.words, Topic::Images);
}

std::uint64_t shareable_block_bytes(int dir_fd, const CloneCall& call) {
  const auto probe = CloneProbe::make(dir_fd, call);
  const auto from = create_unnamed_file(dir_fd);
  if (!probe || !from) return 0;
  const std::vector<std::byte> block(static_cast<std::size_t>(probe->block_bytes()), std::byte{1});
  const ssize_t written = TEMP_FAILURE_RETRY(::pwrite(from->get(), block.data(), block.size(), 0));
  const bool shares = written == static_cast<ssize_t>(block.size()) && probe->clone_block(from->get()) == 0;
  return shares ? probe->block_bytes() : 0;
}

Result<RefusedRuns> clone_runs(int fd, const std::string& name, const CloneRuns& runs, const CloneCall& call,
                               const std::atomic<bool>* stopped) {
  RefusedRuns refused{{runs.files, {}}, {}};
  UniqueFd from;
  std::optional<std::uint32_t> opened;  // its index
  for (const CloneRun& run : runs.runs) {
    const ExtentFile& file = runs.files[run.file];
    if (opened != run.file) {
      SLUICE_TRY_ASSIGN(from, open_source(file));
      opened = run.file;
    }
    for (std::uint64_t done = 0; done < run.bytes;) {
      if (stopped != nullptr && *stopped) return Error{ECANCELED, "cancelled"};
      const std::uint64_t bytes = std::min(run.bytes - done, kMostBytesAtOnce);
      const CloneRun part{run.begin + done, bytes, run.file, run.offset + done};
      if (const int err = call(from.get(), part.offset, bytes, fd, part.begin); err != 0) {
        const Error error = clone_error(err, file, part, name);
        if (!is_refusal(err)) return error;
        if (!refused.why) refused.why = error;
        refused.runs.append(part);
      }
      done += bytes;
    }
  }
  return refused;
}

Result<std::unique_ptr<ExtentCloner>> ExtentCloner::start(Options options, const Lane& lane) {
  std::unique_ptr<ExtentCloner> cloner(new ExtentCloner(std::move(options), lane.slot_count()));
  SLUICE_TRY_ASSIGN(cloner->workers_, SlotWorkers::start("sluice-clone", 1, lane.slot_count(), lane.world()));
  return cloner;
}

void ExtentCloner::begin(Slot& slot, int fd, const std::string& name, Reactor& reactor) {
  targets_[slot.index] = {fd, &name};
  workers_->run(slot, *this, reactor);
}

Result<void> ExtentCloner::work(Slot& slot) {
  const Target& target = targets_[slot.index];
  const std::uint32_t file = slot.chunk.file;
  if (options_.ready) SLUICE_TRY(options_.ready());
  SLUICE_TRY_ASSIGN(const RefusedRuns refused, clone_runs(target.fd, *target.name, options_.runs(file),
                                                          options_.call, options_.stopped));
  if (!refused.why) return {};
  if (options_.on_refusal) options_.on_refusal(*refused.why);
  for (const CloneRun& run : refused.runs.runs) copied_bytes_ += run.bytes;
  return copy_runs(target.fd, *target.name, file, refused.runs, options_.sums, options_.stopped);
}

}  // namespace sluice
