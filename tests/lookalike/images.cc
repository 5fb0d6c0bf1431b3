// SPDX-License-Identifier: MIT
#include "lookalike/images.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <span>
#include <sstream>

#include "base/unique_fd.h"
#include "criu-mm.pb-c.h"
#include "lookalike/log.h"
#include "lookalike/stream.h"

namespace sluice::lookalike {
namespace {

constexpr const char* kTreeImage = "host-pstree.img";
constexpr const char* kInventoryImage = "host-inventory.img";
constexpr std::uint64_t kWindowBytes = 1 << 20;

// Of a task's memory, and of each run of it that is not all zeros; the last run is of no bytes.
struct PagesHeader {
  std::uint64_t address;
  std::uint64_t bytes;
};

bool write_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::write(fd, at, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += wrote;
    bytes -= static_cast<std::size_t>(wrote);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

std::string image_of(const char* what, unsigned task) {
  return std::string("host-") + what + "-" + std::to_string(task) + ".img";
}

UniqueFd create(int directory, const std::string& name) {
  UniqueFd fd = open_image(directory, name, O_WRONLY | O_CREAT | O_TRUNC);
  if (!fd) log_line(kError, "Error: can't create %s: %s\n", name.c_str(), std::strerror(errno));
  return fd;
}

int write_text(int directory, const std::string& name, const std::string& text) {
  const UniqueFd fd = create(directory, name);
  return fd && write_all(fd.get(), text.data(), text.size()) ? 0 : -1;
}

int read_text(int directory, const std::string& name, std::string* text) {
  const UniqueFd fd = open_image(directory, name, O_RDONLY);
  if (!fd) {
    log_line(kError, "Error: can't open %s: %s\n", name.c_str(), std::strerror(errno));
    return -1;
  }
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) return 0;
    text->append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

int write_tree(int directory, unsigned tasks) {
  return write_text(directory, kTreeImage, std::to_string(tasks) + "\n");
}

int read_tree(int directory, unsigned* tasks) {
  std::string text;
  if (read_text(directory, kTreeImage, &text) != 0) return -1;
  std::istringstream lines(text);
  return lines >> *tasks ? 0 : -1;
}

int write_fds(int directory, unsigned task, const std::vector<FdEntry>& fds) {
  std::ostringstream text;
  for (const FdEntry& fd : fds) {
    text << fd.number << ' ' << fd.id << ' ' << fd.cloexec << ' ' << (fd.fifo.empty() ? "-" : fd.fifo)
         << '\n';
  }
  return write_text(directory, image_of("fdinfo", task), text.str());
}

int read_fds(int directory, unsigned task, std::vector<FdEntry>* fds) {
  std::string text;
  if (read_text(directory, image_of("fdinfo", task), &text) != 0) return -1;
  std::istringstream lines(text);
  FdEntry fd;
  while (lines >> fd.number >> fd.id >> fd.cloexec >> fd.fifo) {
    if (fd.fifo == "-") fd.fifo.clear();
    fds->push_back(fd);
  }
  return 0;
}

namespace {

// CRIU's message: every map is a shared one of a file, which is a device's that a plugin has accepted.
int write_mm(int directory, int pid, const std::vector<VmaEntry>& vmas) {
  constexpr std::uint32_t kRegular = 1U << 0, kFileShared = 1U << 7, kPlugin = 1U << 27;
  constexpr std::uint32_t kCommonMagic = 0x54564319, kMmMagic = 0x57492820;
  std::vector<::VmaEntry> entries;
  for (const VmaEntry& vma : vmas) {
    ::VmaEntry entry = VMA_ENTRY__INIT;
    entry.start = vma.start;
    entry.pgoff = vma.pgoff;
    entry.shmid = entries.size();  // each map of a device has an id of its own
    entry.prot = static_cast<std::uint32_t>(vma.prot);
    entry.status = kRegular | kFileShared | kPlugin;
    entry.has_fdflags = 1;
    entry.fdflags = static_cast<std::uint32_t>(vma.flags);
    entries.push_back(entry);
  }
  std::vector<::VmaEntry*> pointers;
  for (::VmaEntry& entry : entries) pointers.push_back(&entry);
  MmEntry mm = MM_ENTRY__INIT;
  mm.n_vmas = pointers.size();
  mm.vmas = pointers.data();
  std::vector<std::uint8_t> message(mm_entry__get_packed_size(&mm));
  (void)mm_entry__pack(&mm, message.data());
  const std::array<std::uint32_t, 3> header{kCommonMagic, kMmMagic,
                                            static_cast<std::uint32_t>(message.size())};
  std::string text(reinterpret_cast<const char*>(header.data()), sizeof(header));
  text.append(reinterpret_cast<const char*>(message.data()), message.size());
  return write_text(directory, "mm-" + std::to_string(pid) + ".img", text);
}

}  // namespace

int write_vmas(int directory, unsigned task, int pid, const std::vector<VmaEntry>& vmas) {
  if (write_mm(directory, pid, vmas) != 0) return -1;
  std::ostringstream text;
  for (const VmaEntry& vma : vmas) {
    text << vma.start << ' ' << vma.bytes << ' ' << vma.pgoff << ' ' << vma.prot << ' ' << vma.flags << ' '
         << vma.path << '\n';
  }
  return write_text(directory, image_of("mm", task), text.str());
}

int read_vmas(int directory, unsigned task, std::vector<VmaEntry>* vmas) {
  std::string text;
  if (read_text(directory, image_of("mm", task), &text) != 0) return -1;
  std::istringstream lines(text);
  VmaEntry vma;
  while (lines >> vma.start >> vma.bytes >> vma.pgoff >> vma.prot >> vma.flags >> vma.path)
    vmas->push_back(vma);
  return 0;
}

int write_inventory(int directory, const Inventory& inventory) {
  std::ostringstream text;
  text << (inventory.has_plugins ? "plugins" : "old") << '\n';
  for (const std::string& name : inventory.plugins) text << name << '\n';
  return write_text(directory, kInventoryImage, text.str());
}

int read_inventory(int directory, Inventory* inventory) {
  std::string text;
  if (read_text(directory, kInventoryImage, &text) != 0) return -1;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  inventory->has_plugins = line == "plugins";
  while (std::getline(lines, line)) inventory->plugins.push_back(line);
  return 0;
}

namespace {

bool is_zero(std::span<const char> page) {
  return page.front() == 0 && std::memcmp(page.data(), page.data() + 1, page.size() - 1) == 0;
}

// The runs of pages of `window`, which lies at `address`.
int write_runs(int fd, std::uint64_t address, std::span<const char> window) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto page_at = [&](std::size_t at) {
    return window.subspan(at, std::min(page_bytes, window.size() - at));
  };
  for (std::size_t at = 0; at < window.size(); at += page_bytes) {
    if (is_zero(page_at(at))) continue;
    std::size_t end = at + page_bytes;
    while (end < window.size() && !is_zero(page_at(end))) end += page_bytes;
    end = std::min(end, window.size());
    const PagesHeader run{address + at, end - at};
    if (!write_all(fd, &run, sizeof(run)) || !write_all(fd, window.data() + at, end - at)) return -1;
    at = end;
  }
  return 0;
}

}  // namespace

int write_pages(int directory, unsigned task, int pid, std::uint64_t address, std::uint64_t bytes) {
  const UniqueFd fd = create(directory, image_of("pages", task));
  const PagesHeader header{address, bytes};
  if (!fd || !write_all(fd.get(), &header, sizeof(header))) return -1;
  std::vector<char> window(kWindowBytes);
  while (bytes > 0) {
    const std::uint64_t length = std::min(bytes, kWindowBytes);
    const iovec local{window.data(), length};
    const iovec remote{reinterpret_cast<void*>(address), length};
    const ssize_t got = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got != static_cast<ssize_t>(length)) {
      log_line(kError, "Error: can't read the memory of %d: %s\n", pid, std::strerror(errno));
      return -1;
    }
    if (write_runs(fd.get(), address, std::span(window).first(length)) != 0) return -1;
    address += length;
    bytes -= length;
  }
  const PagesHeader end{};
  return write_all(fd.get(), &end, sizeof(end)) ? 0 : -1;
}

namespace {

int read_runs(int fd, const PagesHeader& all, void* memory) {
  for (PagesHeader run{};;) {
    if (!read_all(fd, &run, sizeof(run))) return -1;
    if (run.bytes == 0) return 0;
    const std::uint64_t at = run.address - all.address;
    if (at > all.bytes || run.bytes > all.bytes - at) return -1;
    if (!read_all(fd, static_cast<char*>(memory) + at, run.bytes)) return -1;
  }
}

}  // namespace

void* read_pages(int directory, unsigned task, std::uint64_t* address, std::uint64_t* bytes) {
  const std::string name = image_of("pages", task);
  const UniqueFd fd = open_image(directory, name, O_RDONLY);
  PagesHeader header{};
  if (!fd || !read_all(fd.get(), &header, sizeof(header))) {
    log_line(kError, "Error: can't read %s\n", name.c_str());
    return nullptr;
  }
  void* memory = ::mmap(nullptr, header.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || read_runs(fd.get(), header, memory) != 0) {
    log_line(kError, "Error: can't read the pages: %s\n", std::strerror(errno));
    return nullptr;
  }
  *address = header.address;
  *bytes = header.bytes;
  return memory;
}

}  // namespace sluice::lookalike
