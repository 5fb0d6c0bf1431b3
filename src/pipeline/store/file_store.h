// SPDX-License-Identifier: MIT
// The two file stages: FileSink writes a pages file (dump), FileSource reads one (restore).
//
// Nothing looks complete that is not: the sink writes "<name>.tmp" (mode 0600, exclusive), finish() makes it
// durable, and only commit() renames it. The destructor of an uncommitted sink unlinks the temporary file.
// Nothing is written or read through a symbolic link (image_file.h).
//
// Direct I/O where the file system has it (statx DIOALIGN; where the kernel does not say, 4096 is assumed and
// tried); buffered otherwise. The file range of a chunk is aligned by construction; the last chunk is written
// zero-padded to the alignment and the file truncated to its size in finish(). Short writes and reads are
// resumed at an alignment boundary. Zero units are left as holes (the file is new and was ftruncated to size
// before the first write); with holes off every byte is written. Thread-bound to the lane.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "pipeline/layout.h"
#include "pipeline/reactor.h"
#include "pipeline/stage.h"
#include "pipeline/store/fair_share.h"
#include "pipeline/store/page_cache.h"

namespace sluice {

// Auto: direct where possible, else buffered; a source reads chunks that are in the page cache from there.
// Uncached: direct where possible, else buffered; what the disk has counts, not what the page cache has.
// Direct: fail with EINVAL where direct I/O is not possible. Buffered: never direct.
enum class IoMode : std::uint8_t { Auto, Uncached, Direct, Buffered };

struct FileOptions {
  IoMode io_mode = IoMode::Auto;
  bool holes = true;  // sink only: leave zero units unwritten
  bool sync = true;   // sink only: fdatasync in finish()
  // Sink only: writes into the blocks of the file that has the name already, if there is one, is_private(),
  // and no other link to it: nothing has to be allocated, and disks and file systems rewrite faster than they
  // write. It becomes the temporary file, durably, before its first byte changes. It gets no holes: zero
  // units are written, too.
  bool reuse = false;
  FairShare* share = nullptr;               // of the lanes that use this disk at the same time; borrowed
  unsigned turn = 0;                        // of this one among them
  std::uint32_t most_on_disk = UINT32_MAX;  // chunks of this lane, at once; at least 1
  // The lane's part in it, lent by who has several files; null: this file is all that the lane has.
  FairShare::Member* member = nullptr;
};

// Whether a file of the directory is one that a source may read: EINVAL for no regular file, EBADMSG for one
// of another size, both named.
Result<void> check_pages_file(const std::string& name, const struct stat& status, std::uint64_t file_bytes);
// The second alone, of a file that has `bytes`.
Result<void> check_pages_size(const std::string& name, std::uint64_t bytes, std::uint64_t file_bytes);

// Alignment in bytes that direct I/O on an open file wants; 0: there is none. Where the kernel does not tell,
// what is tried first.
std::uint64_t direct_alignment(int fd);

// Whether a new file of the directory would have direct I/O for such chunks: makes one and removes it. EINVAL
// where not. Errors: those of create_image_file().
Result<void> check_direct_io(int dir_fd, std::uint64_t chunk_bytes);

class FileSink final : public Stage {
 public:
  // Creates "<name>.tmp" in `dir_fd` (borrowed; must stay open until commit() or destruction), replacing a
  // stale one, or takes over the file called `name`; sizes it. Slot buffers must be aligned to
  // kBufferAlignment. `file` of the layout: chunks of others must not come. Errors: those of openat, statx,
  // ftruncate, and with reuse of renameat and fsync.
  static Result<std::unique_ptr<FileSink>> create(int dir_fd, std::string name, const ImageLayout& layout,
                                                  Reactor& reactor, const FileOptions& options,
                                                  std::uint32_t file = 0);
  ~FileSink() override;

  const char* name() const override { return "store"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  Result<void> finish() override;

  // The first part of finish(): the file gets its size. For who makes it durable himself.
  Result<void> cut();
  int fd() const { return fd_.get(); }

  // For a file whose name is not known when it is begun. Before commit().
  void set_name(std::string name) { name_ = std::move(name); }

  // Renames the temporary file to its name. The caller syncs the directory once for all files.
  // REQUIRES: finish() succeeded. May be called from another thread after the lane ended, as may set_name().
  Result<void> commit();

  bool direct() const { return direct_; }
  bool reused() const { return reused_; }
  std::uint64_t written_bytes() const {
    return written_bytes_;
  }  // bytes handed to the disk, tail padding included

 private:
  FileSink(int dir_fd, std::string name, const ImageLayout& layout, Reactor& reactor,
           const FileOptions& options, std::uint32_t file);
  Result<void> open_temporary();
  Result<void> take_over();
  bool start_next_run(Slot& slot, Op& op);
  void start(Slot& slot, Op& op);

  int dir_fd_;
  std::string name_;
  std::string temporary_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  FileOptions options_;
  std::uint64_t file_bytes_;
  UniqueFd fd_;
  std::uint64_t alignment_ = 1;  // of file ranges, lengths and addresses, bytes
  bool direct_ = false;
  bool reused_ = false;
  bool created_ = false;
  bool cut_ = false;
  bool finished_ = false;
  bool committed_ = false;
  std::uint64_t written_bytes_ = 0;
  std::optional<FairShare::Member> own_share_;  // where none is lent, until finish()
  FairShare::Member* share_;
};

class FileSource final : public Stage {
 public:
  // Opens `name` in `dir_fd`, `file` of the layout. It must be exactly layout.file_bytes(file) long, else
  // EBADMSG with both sizes named (a truncated image is found before any BO is created or filled). Errors:
  // those of open_image_file().
  static Result<std::unique_ptr<FileSource>> open(int dir_fd, std::string name, const ImageLayout& layout,
                                                  Reactor& reactor, const FileOptions& options,
                                                  std::uint32_t file = 0);
  ~FileSource() override;

  const char* name() const override { return "store"; }
  // Marks holes of the chunk in slot.zero_units (their buffer bytes are then undefined) and reads the rest.
  // While a chunk comes from the page cache it is Busy: the kernel copies that one within the call that
  // starts it, and its bytes are to be used while the processor's caches hold them.
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

  // What is not in the page cache is read directly.
  bool direct() const { return direct_; }

 private:
  FileSource(std::string name, std::uint64_t file_bytes, Reactor& reactor, UniqueFd fd,
             const FileOptions& options);
  void mark_holes(Slot& slot);
  bool find_extent(std::uint64_t at);
  bool start_next_run(Slot& slot, Op& op);
  void start(Slot& slot, Op& op);

  std::string name_;
  std::uint64_t file_bytes_;
  Reactor& reactor_;
  UniqueFd fd_;
  UniqueFd cached_fd_;                // with a cache_: the same file, not direct
  std::unique_ptr<PageCache> cache_;  // of a file that is read directly and is there in part
  std::uint64_t alignment_ = 1;
  bool direct_ = false;
  bool reads_cached_ = false;  // a chunk comes from the page cache at the moment
  bool finds_holes_ = true;    // the file system answers SEEK_DATA
  std::uint64_t extent_begin_ =
      0;  // what lseek last said: [extent_begin_, extent_end_) is all data or all hole
  std::uint64_t extent_end_ = 0;
  bool extent_is_hole_ = false;
  std::optional<FairShare::Member> own_share_;  // where none is lent
  FairShare::Member* share_;
};

}  // namespace sluice
