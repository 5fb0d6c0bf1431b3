// SPDX-License-Identifier: MIT
// How the lists are asked. See questions.h and list.h.
#include "questions.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "list.h"

namespace vamdgpu::questions {
namespace {

constexpr const char* kNodes = "/sys/class/kfd/kfd/topology/nodes";

std::map<std::string, std::uint64_t> read_properties(const std::string& file) {
  std::map<std::string, std::uint64_t> properties;
  std::ifstream in(file);
  std::string name;
  std::uint64_t value = 0;
  while (in >> name >> value) properties[name] = value;
  return properties;
}

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0) ::_exit(1);
    done += static_cast<std::size_t>(n);
  }
}

// The lines of one list, asked in a process of its own.
std::string lines_of(void (*ask)(List&), Linux version, Who who) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    ::close(ends[0]);
    List list(version, who);
    ask(list);
    write_all(ends[1], list.lines());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> block;
  for (ssize_t n; (n = ::read(ends[0], block.data(), block.size())) > 0;)
    text.append(block.data(), static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  (void)::waitpid(child, &status, 0);
  if (status != 0)
    text += "a list of questions\tended with status " + std::to_string(status) + "\tto the end\t\n";
  return text;
}

}  // namespace

const char* Answers::in(Linux version) const {
  return version == Linux::k61 ? linux61 : version == Linux::k612 ? linux612 : linux72;
}

std::string name_of(int error) {
  if (error == 0) return "ok";
  const char* name = ::strerrorname_np(error);
  return name != nullptr ? name : "errno " + std::to_string(error);
}

std::string hex(std::uint64_t value) {
  std::array<char, 24> text;
  return std::string(text.data(),
                     static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%#llx",
                                                            static_cast<unsigned long long>(value))));
}

int call(int fd, char type, unsigned nr, Args& args) {
  const unsigned long command = _IOC(_IOC_READ | _IOC_WRITE, type, nr, args.bytes());
  return ::ioctl(fd, command, args.data()) == 0 ? 0 : errno;
}

Gpu first_gpu() {
  Gpu gpu;
  for (unsigned node = 0; gpu.id == 0 && node < topology_nodes(); ++node) {
    const std::string folder = std::string(kNodes) + "/" + std::to_string(node);
    // A CPU's is 0, and that of a hidden GPU cannot be read.
    if (!(std::ifstream(folder + "/gpu_id") >> gpu.id) || gpu.id == 0) continue;
    gpu.properties = read_properties(folder + "/properties");
    gpu.minor = static_cast<std::uint32_t>(gpu.property("drm_render_minor"));
  }
  return gpu;
}

unsigned topology_nodes() {
  unsigned count = 0;
  while (std::ifstream(std::string(kNodes) + "/" + std::to_string(count) + "/gpu_id").good()) ++count;
  return count;
}

unsigned visible_gpus() {
  unsigned count = 0;
  for (unsigned node = 0; node < topology_nodes(); ++node) {
    std::uint64_t id = 0;
    if (std::ifstream(std::string(kNodes) + "/" + std::to_string(node) + "/gpu_id") >> id && id != 0) ++count;
  }
  return count;
}

int open_render(const Gpu& gpu) {
  return ::open(("/dev/dri/renderD" + std::to_string(gpu.minor)).c_str(), O_RDWR | O_CLOEXEC);
}

void List::ask(const char* question, const std::string& answer, const Answers& expected) {
  note(question, answer, expected.in(version_), "");
}

void List::ask(const char* question, const std::string& answer, const Answers& expected,
               const Answers& of_virtual, const char* why) {
  if (who_ == Who::Driver) return ask(question, answer, expected);
  note(question, answer, of_virtual.in(version_), why);
}

void List::note(const char* question, const std::string& answer, const char* expected, const char* why) {
  lines_ += std::string(question) + "\t" + answer + "\t" + expected + "\t" + why + "\n";
}

void List::fail(const std::string& what) {
  lines_.append(what).append("\tcannot be asked\tan answer\t\n");
}

std::vector<Asked> ask_everything(Linux version, Who who) {
  std::vector<Asked> asked;
  for (void (*const ask)(List&) :
       {ask_without_gpu, ask_kfd_memory, ask_kfd_rest, ask_queues, ask_criu, ask_render_core, ask_render_bos,
        ask_render_va, ask_render_sharing, ask_render_jobs, ask_render_info}) {
    const std::string text = lines_of(ask, version, who);
    for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      std::array<std::string, 4> part;
      std::size_t from = at;
      for (std::string& each : part) {
        const std::size_t to = std::min(text.find('\t', from), end);
        each = text.substr(from, to - from);
        from = std::min(to + 1, end);
      }
      asked.push_back({part[0], part[1], part[2], part[3]});
    }
  }
  return asked;
}

std::vector<std::string> surprises(const std::vector<Asked>& asked) {
  std::vector<std::string> lines;
  for (const Asked& each : asked)
    if (each.answer != each.expected)
      lines.push_back(each.question + ": " + each.answer + ", and not " + each.expected);
  return lines;
}

}  // namespace vamdgpu::questions
