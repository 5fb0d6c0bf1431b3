// SPDX-License-Identifier: MIT
// test-streamer: stands for criu-image-streamer (which Debian has not) in tests. It behaves as that does, not
// as the plugin would like it to; where it differs, it says so here.
//
//   capture   one socket; any number of files at a time, interleaved as their bytes come; pipes of 4 MiB;
//             spliced, never buffered, to standard output
//   serve     reads the whole image from standard input first, then makes the socket; one request at a time,
//             each file written in full before the next request is read; pipes of 1 MiB; a file that was
//             served is gone, and asking again ends it, as does a reader that closes early
//   extract   writes the files of the image from standard input into the directory, with what the umask
//   leaves
//             of mode 0666
//
// Standard input or output must be a pipe. Options come before the operation. With --progress-fd N a line
// "socket-init" goes there when the socket can be connected to, on serve after a line of JSON about what was
// read. Errors are printed; the exit status is 0 all the same. A name that was captured twice is an error
// when it is read back. The image's format is its own: the real one's has shards, markers in protobuf, and a
// file of its own for up to 4 KiB.
//
//   image  = record*
//   record = u32 kind, u32 number, u64 length, octet[length]   ; in the host's byte order
//   kind   = 1: the file `number` is called so; 2: more of its bytes; 3: that was its last; 4: the image's
//   end
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire.h"

namespace sluice::streamer {
namespace {

constexpr int kCapturePipeBytes = 4 << 20;
constexpr int kServePipeBytes = 1 << 20;
constexpr int kMostPerRecord = 252 << 10;  // a quarter of a shard's pipe, less a page

enum Kind : std::uint32_t { kName = 1, kBytes = 2, kClose = 3, kEnd = 4 };

struct Record {
  std::uint32_t kind = 0;
  std::uint32_t number = 0;
  std::uint64_t length = 0;
};

bool complain(const char* what, const std::string& of) {
  std::fprintf(stderr, "test-streamer: %s %s: %s\n", what, of.c_str(), std::strerror(errno));
  return false;
}

bool write_all(int fd, const void* bytes, std::size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = TEMP_FAILURE_RETRY(::write(fd, at, count));
    if (done <= 0) return false;
    at += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

bool read_all(int fd, void* bytes, std::size_t count) {
  auto* at = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t done = TEMP_FAILURE_RETRY(::read(fd, at, count));
    if (done < 0) return false;
    if (done == 0) {
      errno = ENODATA;
      return false;
    }
    at += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

// ---- capture

class Capture {
 public:
  Capture(UniqueFd socket, int out)
      : socket_(std::move(socket)), out_(out), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  bool run() {
    if (!watch(socket_.get(), kSocket)) return complain("watch", "the socket");
    while (socket_ || !files_.empty()) {
      std::array<epoll_event, 16> events;
      const auto count =
          TEMP_FAILURE_RETRY(::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1));
      if (count < 0) return complain("wait for", "files");
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const auto number = static_cast<std::uint32_t>(events[i].data.u64);
        if (!(number == kSocket ? take_request() : take_bytes(number))) return false;
      }
    }
    return put({kEnd, 0, 0}) || complain("write", "the image's end");
  }

 private:
  static constexpr std::uint32_t kSocket = 0;

  bool watch(int fd, std::uint32_t number) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = number;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  bool put(const Record& record) { return write_all(out_, &record, sizeof record); }

  bool take_request() {
    bool broken = false;
    const std::optional<std::string> name = next_request(socket_.get(), &broken);
    if (broken) return complain("read", "a request");
    if (!name) {
      socket_.reset();
      return true;
    }
    UniqueFd pipe = receive_pipe(socket_.get());
    if (!pipe) return complain("receive the pipe of", *name);
    (void)::fcntl(pipe.get(), F_SETPIPE_SZ, kCapturePipeBytes);
    const std::uint32_t number = ++last_number_;
    if (!put({kName, number, name->size()}) || !write_all(out_, name->data(), name->size()) ||
        !watch(pipe.get(), number)) {
      return complain("begin", *name);
    }
    files_.emplace(number, File{std::move(pipe), *name});
    return true;
  }

  bool take_bytes(std::uint32_t number) {
    File& file = files_.at(number);
    int waiting = 0;
    if (::ioctl(file.pipe.get(), FIONREAD, &waiting) != 0) return complain("look at", file.name);
    if (waiting == 0) {
      if (!put({kClose, number, 0})) return complain("end", file.name);
      files_.erase(number);
      return true;
    }
    while (waiting > 0) {
      const int part = std::min(waiting, kMostPerRecord);
      if (!put({kBytes, number, static_cast<std::uint64_t>(part)})) return complain("write", file.name);
      for (int left = part; left > 0;) {
        const ssize_t moved = TEMP_FAILURE_RETRY(
            ::splice(file.pipe.get(), nullptr, out_, nullptr, static_cast<std::size_t>(left), 0));
        if (moved <= 0) return complain("write", file.name);
        left -= static_cast<int>(moved);
      }
      waiting -= part;
    }
    return true;
  }

  struct File {
    UniqueFd pipe;
    std::string name;
  };
  UniqueFd socket_;
  int out_;
  UniqueFd epoll_;
  std::uint32_t last_number_ = kSocket;
  std::map<std::uint32_t, File> files_;
};

// ---- serve, extract

using Contents = std::vector<char>;

std::optional<std::map<std::string, Contents>> read_image(int in) {
  std::map<std::uint32_t, std::pair<std::string, Contents>> open;
  std::map<std::string, Contents> files;
  for (;;) {
    Record record;
    if (!read_all(in, &record, sizeof record)) {
      complain("read", "the image: it ends early");
      return std::nullopt;
    }
    auto& [name, contents] = open[record.number];
    if (record.kind == kEnd) return files;
    if (record.kind == kName) {
      name.resize(record.length);
      if (!read_all(in, name.data(), name.size())) break;
    } else if (record.kind == kBytes) {
      const std::size_t before = contents.size();
      contents.resize(before + record.length);
      if (!read_all(in, &contents[before], record.length)) break;
    } else if (record.kind == kClose) {
      if (!files.emplace(name, std::move(contents)).second) {
        std::fprintf(stderr, "test-streamer: %s is being overwritten\n", name.c_str());
        return std::nullopt;
      }
      open.erase(record.number);
    } else {
      errno = EBADMSG;
      break;
    }
  }
  complain("read", "the image");
  return std::nullopt;
}

// vmsplice, as the real one: the pages stay as they are until they were read, and are freed then.
bool pour(int pipe, const Contents& contents) {
  iovec part{const_cast<char*>(contents.data()), contents.size()};
  while (part.iov_len > 0) {
    const ssize_t done = TEMP_FAILURE_RETRY(::vmsplice(pipe, &part, 1, 0));
    if (done <= 0) return false;
    part.iov_base = static_cast<char*>(part.iov_base) + done;
    part.iov_len -= static_cast<std::size_t>(done);
  }
  return true;
}

// Memory that a pipe may still refer to must not be used again: kept to the end.
bool serve(const UniqueFd& socket, std::map<std::string, Contents> files) {
  std::map<std::string, Contents> served;
  for (;;) {
    bool broken = false;
    const std::optional<std::string> name = next_request(socket.get(), &broken);
    if (broken) return complain("read", "a request");
    if (!name) return true;
    if (served.contains(*name)) {
      std::fprintf(stderr, "test-streamer: %s was served already\n", name->c_str());
      return false;
    }
    const auto file = files.find(*name);
    if (answer(socket.get(), file != files.end()) != 0) return complain("answer for", *name);
    if (file == files.end()) continue;
    const UniqueFd pipe = receive_pipe(socket.get());
    if (!pipe) return complain("receive the pipe of", *name);
    (void)::fcntl(pipe.get(), F_SETPIPE_SZ, kServePipeBytes);
    if (!pour(pipe.get(), file->second)) return complain("serve", *name);
    served.insert(files.extract(file));
  }
}

bool extract(const std::string& directory, const std::map<std::string, Contents>& files) {
  const UniqueFd place(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const auto& [name, contents] : files) {
    const UniqueFd fd(::openat(place.get(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd || !write_all(fd.get(), contents.data(), contents.size())) return complain("write", name);
  }
  return true;
}

void tell(int progress, std::string_view line) {
  if (progress >= 0) (void)write_all(progress, line.data(), line.size());
}

// The connection, once somebody makes it.
UniqueFd connection(const std::string& directory, const char* name, int progress) {
  const UniqueFd listener = listen_in(directory, name);
  if (listener) tell(progress, "socket-init\n");
  UniqueFd socket = listener ? accept_from(listener.get()) : UniqueFd();
  if (!socket) complain("listen in", directory);
  return socket;
}

// Standard input or output. None after a complaint.
UniqueFd open_image(int standard) {
  struct stat status {};
  if (::fstat(standard, &status) != 0 || !S_ISFIFO(status.st_mode)) {
    std::fputs("test-streamer: the image must be a pipe\n", stderr);
    return UniqueFd();
  }
  return UniqueFd(::fcntl(standard, F_DUPFD_CLOEXEC, 3));
}

bool run(const std::string& command, const std::string& directory, int progress) {
  if (command == "capture") {
    const UniqueFd out = open_image(STDOUT_FILENO);
    if (!out) return false;
    UniqueFd socket = connection(directory, kCaptureSocket, progress);
    return socket && Capture(std::move(socket), out.get()).run();
  }
  const UniqueFd in = open_image(STDIN_FILENO);
  if (!in) return false;
  auto files = read_image(in.get());
  if (!files) return false;
  tell(progress, "{\"shards\":[]}\n");
  if (command == "extract") return extract(directory, *files);
  const UniqueFd socket = connection(directory, kServeSocket, progress);
  return socket && serve(socket, std::move(*files));
}

}  // namespace
}  // namespace sluice::streamer

int main(int argc, char** argv) {
  std::string directory;
  int progress = -1;
  const option table[] = {{"images-dir", required_argument, nullptr, 'D'},
                          {"progress-fd", required_argument, nullptr, 'p'},
                          {nullptr, 0, nullptr, 0}};
  bool understood = true;
  for (int choice = 0; understood && (choice = ::getopt_long(argc, argv, "+D:p:", table, nullptr)) != -1;) {
    understood = choice == 'D' || choice == 'p';
    if (choice == 'D') directory = optarg;
    if (choice == 'p') progress = std::atoi(optarg);
  }
  const std::string command = understood && argc - optind == 1 ? argv[optind] : "";
  if (directory.empty() || (command != "capture" && command != "serve" && command != "extract")) {
    std::fputs("usage: test-streamer --images-dir DIR [--progress-fd N] capture|serve|extract\n", stderr);
    return 2;
  }
  (void)::signal(SIGPIPE, SIG_IGN);
  (void)sluice::streamer::run(command, directory, progress);
  return 0;  // whatever happened, as the real one
}
