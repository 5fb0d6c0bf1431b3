// SPDX-License-Identifier: MIT
// How short I/O is resumed, in numbers (alignment 4096): write [8192, 73728) of a buffer comes back with
// 10000. Bytes up to 18192 are in the file; a direct write cannot start there. It goes on at 16384, the
// boundary at or below, and so writes [16384, 18192) twice, the same bytes. A result below one alignment unit
// brings nothing and is counted as a stall; so is EAGAIN and EINTR. A buffered file has alignment 1: it goes
// on at 18192.
#include "pipeline/store/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/image_file.h"
#include "base/units.h"

namespace sluice {

namespace {

// Alignment where the kernel does not tell one: that of every disk's logical block.
constexpr std::uint64_t kAssumedAlignment = 4096;

}  // namespace

std::uint64_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN  // Linux 6.1
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);  // both 0: not possible
  }
#endif
  return kAssumedAlignment;
}

namespace {

// Completions in a row without progress before an operation is given up.
constexpr std::uint32_t kMaxStalls = 100;

bool set_direct(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

// Reads one unit to see whether the file system takes what set_direct() allowed.
bool direct_read_works(int fd, std::uint64_t alignment) {
  const auto bytes = static_cast<std::size_t>(alignment);
  void* const memory = ::aligned_alloc(bytes, bytes);
  if (memory == nullptr) return false;
  const bool works = ::pread(fd, memory, bytes, 0) >= 0;
  std::free(memory);
  return works;
}

// Turns direct I/O on if it can be had for such chunks; returns its alignment, or 1 for buffered. A chunk
// starts at a multiple of its size, so the alignment must divide it. Buffers are aligned to kBufferAlignment.
std::uint64_t try_direct(int fd, std::uint64_t chunk_bytes) {
  const std::uint64_t alignment = direct_alignment(fd);
  if (alignment == 0 || !std::has_single_bit(alignment)) return 1;
  if (alignment > chunk_bytes || alignment > kBufferAlignment) return 1;
  if (!set_direct(fd, true)) return 1;
  if (direct_read_works(fd, std::max(alignment, kAssumedAlignment))) return alignment;
  (void)set_direct(fd, false);
  return 1;
}

std::string range_text(const char* verb, const std::string& name, const Slot& slot, std::uint64_t begin,
                       std::uint64_t end) {
  return std::string(verb) + " " + name + " [" + std::to_string(slot.chunk.file_offset + begin) + ", " +
         std::to_string(slot.chunk.file_offset + end) + ")";
}

// The next run of units at or after slot.cursor that are not zero, as [op.begin, op.end); moves the cursor
// past it. With `every_unit`, zero units count as others. False when the chunk is through.
bool take_next_run(Slot& slot, Op& op, bool every_unit) {
  const std::uint64_t length = slot.chunk.length;
  const auto is_gap = [&slot, every_unit](std::uint64_t at) {
    return !every_unit && slot.zero_units[static_cast<std::size_t>(at / kZeroUnitBytes)];
  };
  while (slot.cursor < length && is_gap(slot.cursor)) slot.cursor += kZeroUnitBytes;
  if (slot.cursor >= length) return false;
  op.begin = slot.cursor;
  while (slot.cursor < length && !is_gap(slot.cursor)) slot.cursor += kZeroUnitBytes;
  op.end = std::min(slot.cursor, length);
  op.stalled = 0;
  return true;
}

// What a completion means for its run.
enum class Step : std::uint8_t { Again, Complete, Failed };

// Accounts for `result` bytes of [op.begin, op.end); `failure` is set with Failed.
Step account(Op& op, std::int32_t result, std::uint64_t alignment, std::int32_t& failure) {
  if (result == -EAGAIN || result == -EINTR) {
    failure = result;
    return ++op.stalled < kMaxStalls ? Step::Again : Step::Failed;
  }
  if (result <= 0) {
    failure = result;
    return Step::Failed;
  }
  const std::uint64_t reached = op.begin + static_cast<std::uint64_t>(result);
  if (reached >= op.end) return Step::Complete;
  const std::uint64_t resume = align_down(reached, alignment);
  if (resume > op.begin) {
    op.begin = resume;
    op.stalled = 0;
    return Step::Again;
  }
  failure = 0;  // some bytes again and again, never enough
  return ++op.stalled < kMaxStalls ? Step::Again : Step::Failed;
}

// What is lent, or one of its own.
FairShare::Member* member_of(const FileOptions& options, std::optional<FairShare::Member>& own) {
  if (options.member != nullptr) return options.member;
  own.emplace(options.share, options.turn, options.most_on_disk);
  return &*own;
}

void reset_ops(Slot& slot) {
  slot.cursor = 0;
  slot.live_ops = 0;
  slot.failed_op = nullptr;
  slot.failed_result = 0;
}

// Keeps the first failure of the slot; its Op is not started again, so its range stays for the message.
void note_failure(Slot& slot, const Op& op, std::int32_t result) {
  if (slot.failed_op != nullptr) return;
  slot.failed_op = &op;
  slot.failed_result = result;
}

// Takes one completion of a slot whose Ops work through its runs: goes on with the Op's run by `start`, or,
// when that is through, with the next one by `start_next`. Done when the slot is at rest, after a failure
// too. `nothing` is the failure of an operation that moves no byte and gives no error.
template <class Start, class StartNext>
Progress advance_runs(Slot& slot, Op& op, std::int32_t result, std::uint64_t alignment, std::int32_t nothing,
                      Start start, StartNext start_next) {
  if (op.begin < op.end) {
    std::int32_t failure = 0;
    const Step step = account(op, result, alignment, failure);
    if (step == Step::Again && slot.failed_op == nullptr) {
      start();
      return Progress::Pending;
    }
    if (step == Step::Failed) note_failure(slot, op, failure == 0 ? nothing : failure);
  }
  --slot.live_ops;
  if (slot.failed_op == nullptr && op.begin < op.end) start_next();
  return slot.live_ops > 0 ? Progress::Pending : Progress::Done;
}

}  // namespace

Result<void> check_direct_io(int dir_fd, std::uint64_t chunk_bytes) {
  constexpr const char* kProbe = "amdgpu-direct.img.tmp";  // a dump removes such files
  SLUICE_TRY_ASSIGN(const UniqueFd fd, create_image_file(dir_fd, kProbe));
  const bool direct = try_direct(fd.get(), chunk_bytes) > 1;
  (void)::unlinkat(dir_fd, kProbe, 0);
  return direct ? Result<void>() : Error{EINVAL, "there is no direct I/O in the image directory"};
}

// ---- FileSink ----

Result<std::unique_ptr<FileSink>> FileSink::create(int dir_fd, std::string name, const ImageLayout& layout,
                                                   Reactor& reactor, const FileOptions& options,
                                                   std::uint32_t file) {
  std::unique_ptr<FileSink> sink(new FileSink(dir_fd, std::move(name), layout, reactor, options, file));
  SLUICE_TRY(sink->open_temporary());
  return sink;
}

FileSink::FileSink(int dir_fd, std::string name, const ImageLayout& layout, Reactor& reactor,
                   const FileOptions& options, std::uint32_t file)
    : dir_fd_(dir_fd),
      name_(std::move(name)),
      temporary_(name_ + ".tmp"),
      layout_(layout),
      reactor_(reactor),
      options_(options),
      file_bytes_(layout.file_bytes(file)),
      share_(member_of(options, own_share_)) {}

FileSink::~FileSink() {
  fd_.reset();
  if (created_ && !committed_) (void)::unlinkat(dir_fd_, temporary_.c_str(), 0);
}

// Sets fd_ and reused_ when there is a file to take over. One that has a second name, or that another user
// may hold open, who would then read what is written into it, is left alone: the new file replaces it in the
// end. So is one on which somebody has a lease, for which an open without O_NONBLOCK would wait.
Result<void> FileSink::take_over() {
  UniqueFd fd(::openat(dir_fd_, name_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !is_private(status) || status.st_nlink != 1) return {};
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) return make_error(errno, "set up " + name_, Topic::Images);
  if (::renameat(dir_fd_, name_.c_str(), dir_fd_, temporary_.c_str()) != 0)
    return make_error(errno, "rename " + name_ + " to " + temporary_, Topic::Images);
  created_ = true;
  // Before the first byte changes: after a crash nobody may find new bytes under the old name.
  const UniqueFd directory(::openat(dir_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || ::fsync(directory.get()) != 0)
    return make_error(errno, "sync the directory of " + name_, Topic::Images);
  fd_ = std::move(fd);
  reused_ = true;
  return {};
}

Result<void> FileSink::open_temporary() {
  if (options_.reuse) SLUICE_TRY(take_over());
  if (!fd_) {
    SLUICE_TRY_ASSIGN(fd_, create_image_file(dir_fd_, temporary_));
  }
  created_ = true;

  if (options_.io_mode != IoMode::Buffered) alignment_ = try_direct(fd_.get(), layout_.chunk_bytes());
  direct_ = alignment_ > 1;
  if (options_.io_mode == IoMode::Direct && !direct_)
    return make_error(EINVAL, "direct I/O on " + temporary_, Topic::Images);

  // Sized first: no write extends the file, which would take the inode's lock alone, and what is skipped is a
  // hole. The padded tail is within; finish() cuts it off.
  const std::uint64_t bytes = align_up(file_bytes_, alignment_);
  if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) {
    return make_error(errno, "size " + temporary_ + " to " + std::to_string(bytes) + " bytes", Topic::Images);
  }
  return {};
}

// Starts a write of what is left of the Op's run. The end of the file is padded to the alignment, with zeros:
// the buffer is a whole chunk long, and what lies behind the contents belongs to nobody.
void FileSink::start(Slot& slot, Op& op) {
  const std::uint64_t end = align_up(op.end, alignment_);
  if (end > op.end) {
    std::memset(&slot.buffer[static_cast<std::size_t>(op.end)], 0, static_cast<std::size_t>(end - op.end));
  }
  reactor_.write(
      op, fd_.get(),
      slot.buffer.subspan(static_cast<std::size_t>(op.begin), static_cast<std::size_t>(end - op.begin)),
      slot.chunk.file_offset + op.begin);
}

bool FileSink::start_next_run(Slot& slot, Op& op) {
  if (!take_next_run(slot, op, reused_ || !options_.holes)) return false;
  written_bytes_ += align_up(op.end, alignment_) - op.begin;
  ++slot.live_ops;
  start(slot, op);
  return true;
}

Result<Submit> FileSink::submit(Slot& slot) {
  assert(!finished_);
  if (!share_->begin()) return Submit::Busy;
  reset_ops(slot);
  for (Op& op : slot.ops) {
    if (!start_next_run(slot, op)) break;
  }
  if (slot.live_ops == 0) {  // nothing but zeros
    slot.op().begin = slot.op().end = 0;
    slot.live_ops = 1;
    reactor_.post(slot.op(), 0);
  }
  return Submit::Started;
}

Result<Progress> FileSink::advance(Slot& slot, Op& op, std::int32_t result) {
  const Progress progress = advance_runs(
      slot, op, result, alignment_, -EIO, [&] { start(slot, op); }, [&] { (void)start_next_run(slot, op); });
  if (progress == Progress::Done) share_->end();
  if (progress == Progress::Done && slot.failed_op != nullptr) {
    return make_error(-slot.failed_result,
                      range_text("write", name_, slot, slot.failed_op->begin, slot.failed_op->end),
                      Topic::Images);
  }
  return progress;
}

Result<void> FileSink::cut() {
  if (!is_aligned(file_bytes_, alignment_) && ::ftruncate(fd_.get(), static_cast<off_t>(file_bytes_)) != 0) {
    return make_error(errno, "cut " + temporary_ + " to " + std::to_string(file_bytes_) + " bytes",
                      Topic::Images);
  }
  cut_ = true;
  return {};
}

Result<void> FileSink::finish() {
  if (!cut_) SLUICE_TRY(cut());
  if (options_.sync && ::fdatasync(fd_.get()) != 0)
    return make_error(errno, "sync " + temporary_, Topic::Images);
  // The last chance of a file system to say that it lost something.
  if (::close(fd_.release()) != 0) return make_error(errno, "close " + temporary_, Topic::Images);
  own_share_.reset();
  finished_ = true;
  return {};
}

Result<void> FileSink::commit() {
  assert(finished_ && !committed_);
  if (::renameat(dir_fd_, temporary_.c_str(), dir_fd_, name_.c_str()) != 0) {
    return make_error(errno, "rename " + temporary_ + " to " + name_, Topic::Images);
  }
  committed_ = true;
  return {};
}

// ---- FileSource ----

Result<void> check_pages_file(const std::string& name, const struct stat& status, std::uint64_t file_bytes) {
  SLUICE_TRY(check_regular(name, status));
  return check_pages_size(name, static_cast<std::uint64_t>(status.st_size), file_bytes);
}

Result<void> check_pages_size(const std::string& name, std::uint64_t bytes, std::uint64_t file_bytes) {
  if (bytes == file_bytes) return {};
  return make_error(
      EBADMSG,
      name + " has " + std::to_string(bytes) + " bytes, its BO table asks for " + std::to_string(file_bytes),
      Topic::Images);
}

Result<std::unique_ptr<FileSource>> FileSource::open(int dir_fd, std::string name, const ImageLayout& layout,
                                                     Reactor& reactor, const FileOptions& options,
                                                     std::uint32_t file) {
  const std::uint64_t file_bytes = layout.file_bytes(file);
  SLUICE_TRY_ASSIGN(ImageFile opened, open_image_file(dir_fd, name));
  SLUICE_TRY(check_pages_file(name, opened.status, file_bytes));
  std::unique_ptr<FileSource> source(
      new FileSource(std::move(name), file_bytes, reactor, std::move(opened.fd), options));
  const int raw_fd = source->fd_.get();
  if (options.io_mode != IoMode::Buffered) source->alignment_ = try_direct(raw_fd, layout.chunk_bytes());
  source->direct_ = source->alignment_ > 1;
  if (source->direct_ && options.io_mode == IoMode::Auto) {
    source->cache_ = PageCache::of(raw_fd, file_bytes);
    // Not to be read through the cache is worth a lot only where there is something: no error without.
    if (source->cache_) {
      if (auto cached = open_image_file(dir_fd, source->name_)) source->cached_fd_ = std::move(cached->fd);
    }
    // What is not in the cache is read past it.
    if (source->cached_fd_) (void)::posix_fadvise(source->cached_fd_.get(), 0, 0, POSIX_FADV_RANDOM);
  }
  if (options.io_mode == IoMode::Direct && !source->direct_) {
    return make_error(EINVAL, "direct I/O on " + source->name_, Topic::Images);
  }
  if (!source->direct_) (void)::posix_fadvise(raw_fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return source;
}

FileSource::FileSource(std::string name, std::uint64_t file_bytes, Reactor& reactor, UniqueFd fd,
                       const FileOptions& options)
    : name_(std::move(name)),
      file_bytes_(file_bytes),
      reactor_(reactor),
      fd_(std::move(fd)),
      share_(member_of(options, own_share_)) {}

FileSource::~FileSource() = default;

// Sets slot.zero_units of the units that lie in a hole as a whole. Chunks come in order: what lseek said last
// answers most calls, and a file without holes costs two calls in all.
void FileSource::mark_holes(Slot& slot) {
  const std::uint64_t chunk_begin = slot.chunk.file_offset;
  const std::uint64_t chunk_end = chunk_begin + slot.chunk.length;
  for (std::uint64_t at = chunk_begin; finds_holes_ && at < chunk_end;
       at = std::min(extent_end_, chunk_end)) {
    if (at < extent_begin_ || at >= extent_end_) {
      if (!find_extent(at)) return;
    }
    if (!extent_is_hole_) continue;
    // Whole units of [at, hole_end), counted from the chunk's begin; a unit that the chunk's end cuts short
    // is whole.
    const std::uint64_t hole_end = std::min(extent_end_, chunk_end);
    for (std::uint64_t unit_begin = chunk_begin + align_up(at - chunk_begin, kZeroUnitBytes);
         unit_begin < hole_end; unit_begin += kZeroUnitBytes) {
      if (std::min(unit_begin + kZeroUnitBytes, chunk_end) > hole_end) break;
      slot.zero_units[static_cast<std::size_t>((unit_begin - chunk_begin) / kZeroUnitBytes)] = true;
    }
  }
}

// Asks for the data or hole that `at` lies in. False, for good, where the file system does not tell.
bool FileSource::find_extent(std::uint64_t at) {
  const auto offset = static_cast<off_t>(at);
  off_t data = ::lseek(fd_.get(), offset, SEEK_DATA);
  if (data < 0 && errno == ENXIO) {  // a hole up to the end, where that is still where it was
    struct stat status {};
    if (::fstat(fd_.get(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= file_bytes_)
      data = static_cast<off_t>(file_bytes_);
  }
  if (data < offset) {
    finds_holes_ = false;
    return false;
  }
  extent_begin_ = at;
  extent_is_hole_ = data > offset;
  if (extent_is_hole_) {
    extent_end_ = static_cast<std::uint64_t>(data);
    return true;
  }
  const off_t hole = ::lseek(fd_.get(), offset, SEEK_HOLE);
  extent_end_ = hole > offset ? static_cast<std::uint64_t>(hole) : file_bytes_;
  return true;
}

// Reads what is left of the Op's run. At the end of the file a direct read asks for a whole unit and comes
// back short.
void FileSource::start(Slot& slot, Op& op) {
  const std::uint64_t end = align_up(op.end, alignment_);
  reactor_.read(
      op, slot.cached ? cached_fd_.get() : fd_.get(),
      slot.buffer.subspan(static_cast<std::size_t>(op.begin), static_cast<std::size_t>(end - op.begin)),
      slot.chunk.file_offset + op.begin);
}

bool FileSource::start_next_run(Slot& slot, Op& op) {
  if (!take_next_run(slot, op, false)) return false;
  ++slot.live_ops;
  start(slot, op);
  return true;
}

Result<Submit> FileSource::submit(Slot& slot) {
  if (reads_cached_ || !share_->begin()) return Submit::Busy;
  reset_ops(slot);
  std::fill(slot.zero_units.begin(), slot.zero_units.end(), false);
  mark_holes(slot);
  slot.cached =
      cached_fd_ && cache_->holds(slot.chunk.file_offset, slot.chunk.file_offset + slot.chunk.length);
  reads_cached_ = slot.cached;
  for (Op& op : slot.ops) {
    if (!start_next_run(slot, op)) break;
  }
  if (slot.live_ops == 0) {  // nothing but holes
    slot.op().begin = slot.op().end = 0;
    slot.live_ops = 1;
    reactor_.post(slot.op(), 0);
  }
  return Submit::Started;
}

Result<Progress> FileSource::advance(Slot& slot, Op& op, std::int32_t result) {
  const Progress progress = advance_runs(
      slot, op, result, alignment_, -EBADMSG, [&] { start(slot, op); },
      [&] { (void)start_next_run(slot, op); });
  if (progress == Progress::Done) {
    share_->end();
    if (slot.cached) reads_cached_ = false;
  }
  if (progress == Progress::Done && slot.failed_op != nullptr) {
    std::string text = range_text("read", name_, slot, slot.failed_op->begin, slot.failed_op->end);
    if (slot.failed_result == -EBADMSG) text += ": the file ends early";
    return make_error(-slot.failed_result, std::move(text), Topic::Images);
  }
  return progress;
}

}  // namespace sluice
