// SPDX-License-Identifier: MIT
// See kfd_questions.h. Numbers and layouts: <linux/kfd_ioctl.h>. Commands are made from number and size here,
// because some questions use a size or a number that the header does not have.
#include "kfd_questions.h"

#include <fcntl.h>
#include <linux/kfd_ioctl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "pipeline/unique_fd.h"

namespace sluice::vm_test {
namespace {

constexpr std::uint32_t kNoGpu = 0x7777;        // a gpu_id that no machine has
constexpr std::uint32_t kQueryDebugEvent = 11;  // of DBG_TRAP; the oldest header lacks it

// One question's argument: words that are not zero, as (index of a 32-bit word, value).
struct Word {
  unsigned index;
  std::uint32_t value;
};
struct Question {
  const char* text;
  unsigned nr;
  unsigned bytes;
  std::vector<Word> words;
  std::vector<unsigned> shown;  // words of the answer that both drivers must agree on
};

std::string name_of(int error) {
  const char* name = ::strerrorname_np(error);
  return name != nullptr ? name : "errno " + std::to_string(error);
}

// Events that are no signals get ids from 0x40000000 up: the questions about them depend on their order.
const std::vector<Question>& questions() {
  constexpr unsigned kCriu = 56;
  static const std::vector<Question> list = {
      {"GET_VERSION", 0x01, 8, {}, {0, 1}},
      {"GET_VERSION with room to spare", 0x01, 64, {}, {0, 1}},
      {"number 0", 0x00, 8, {}, {}},
      {"number 0x27", 0x27, 8, {}, {}},
      {"number 0x28", 0x28, 16, {}, {}},
      {"number 0x7f", 0x7f, 16, {}, {}},
      {"number 0xf0", 0xf0, 16, {}, {}},
      {"CREATE_QUEUE, share above 100 %", 0x02, 96, {{11, 101}}, {}},
      {"CREATE_QUEUE, priority 16", 0x02, 96, {{12, 16}}, {}},
      {"CREATE_QUEUE, ring of 3000 bytes", 0x02, 96, {{8, 3000}}, {}},
      {"CREATE_QUEUE, type 77", 0x02, 96, {{10, 77}}, {}},
      {"CREATE_QUEUE, no such GPU", 0x02, 96, {{8, 4096}, {9, kNoGpu}}, {}},
      {"DESTROY_QUEUE, no such queue", 0x03, 8, {{0, 5}}, {}},
      {"SET_MEMORY_POLICY, no such GPU", 0x04, 32, {{4, kNoGpu}}, {}},
      {"SET_MEMORY_POLICY, policy 9", 0x04, 32, {{4, kNoGpu}, {5, 9}}, {}},
      {"GET_CLOCK_COUNTERS, GPU 0", 0x05, 40, {}, {}},
      {"UPDATE_QUEUE, no such queue", 0x07, 24, {{2, 5}}, {}},
      {"UPDATE_QUEUE, share above 100 %", 0x07, 24, {{4, 101}}, {}},
      {"CREATE_EVENT HW_EXCEPTION", 0x08, 32, {{3, 3}}, {6}},
      {"CREATE_EVENT MEMORY", 0x08, 32, {{3, 8}}, {6}},
      {"CREATE_EVENT of type 1", 0x08, 32, {{3, 1}}, {}},
      {"CREATE_EVENT of type 99", 0x08, 32, {{3, 99}}, {}},
      {"SET_EVENT MEMORY", 0x0a, 8, {{0, 0x40000001}}, {}},
      {"RESET_EVENT HW_EXCEPTION", 0x0b, 8, {{0, 0x40000000}}, {}},
      {"SET_EVENT, no such event", 0x0a, 8, {{0, 77}}, {}},
      {"RESET_EVENT, no such event", 0x0b, 8, {{0, 77}}, {}},
      {"DESTROY_EVENT, no such event", 0x09, 8, {{0, 77}}, {}},
      {"DESTROY_EVENT MEMORY", 0x09, 8, {{0, 0x40000001}}, {}},
      {"DESTROY_EVENT MEMORY again", 0x09, 8, {{0, 0x40000001}}, {}},
      {"WAIT_EVENTS for none", 0x0c, 24, {}, {}},
      {"WAIT_EVENTS, 5000 of them", 0x0c, 24, {{2, 5000}}, {}},
      {"WAIT_EVENTS, list at address 8", 0x0c, 24, {{0, 8}, {2, 1}}, {}},
      {"DBG_REGISTER", 0x0d, 8, {}, {}},
      {"DBG_UNREGISTER", 0x0e, 8, {}, {}},
      {"DBG_ADDRESS_WATCH", 0x0f, 16, {}, {}},
      {"DBG_WAVE_CONTROL", 0x10, 16, {}, {}},
      {"SET_SCRATCH_BACKING_VA, no such GPU", 0x11, 16, {{2, kNoGpu}}, {}},
      {"GET_TILE_CONFIG, no such GPU", 0x12, 40, {{8, kNoGpu}}, {}},
      {"SET_TRAP_HANDLER, no such GPU", 0x13, 24, {{4, kNoGpu}}, {}},
      {"ACQUIRE_VM, fd -1", 0x15, 8, {{0, 0xffffffff}, {1, kNoGpu}}, {}},
      {"ACQUIRE_VM, no such GPU", 0x15, 8, {{0, 0}, {1, kNoGpu}}, {}},
      {"ALLOC_MEMORY of no bytes", 0x16, 40, {{6, kNoGpu}, {7, 1}}, {}},
      {"ALLOC_MEMORY, no such GPU", 0x16, 40, {{0, 0x10000000}, {2, 4096}, {8, kNoGpu}, {9, 1}}, {}},
      {"FREE_MEMORY, no such handle", 0x17, 8, {{0, 1}, {1, kNoGpu}}, {}},
      {"MAP_MEMORY on no device", 0x18, 24, {{0, 1}, {1, kNoGpu}}, {}},
      {"MAP_MEMORY, list at address 8", 0x18, 24, {{0, 1}, {1, kNoGpu}, {2, 8}, {4, 1}}, {}},
      {"MAP_MEMORY, more done than asked", 0x18, 24, {{0, 1}, {1, kNoGpu}, {4, 1}, {5, 2}}, {}},
      {"UNMAP_MEMORY on no device", 0x19, 24, {{0, 1}, {1, kNoGpu}}, {}},
      {"SET_CU_MASK, no bits", 0x1a, 16, {}, {}},
      {"GET_DMABUF_INFO, fd -1", 0x1c, 32, {{6, 0xffffffff}}, {}},
      {"IMPORT_DMABUF, no such GPU", 0x1d, 24, {{4, kNoGpu}, {5, 0xffffffff}}, {}},
      {"ALLOC_QUEUE_GWS, no such queue", 0x1e, 16, {{0, 5}}, {}},
      {"SMI_EVENTS, no such GPU", 0x1f, 8, {{0, kNoGpu}}, {}},
      {"SVM, no bytes", 0x20, 24, {{0, 0x10000000}}, {}},
      {"SVM, address not of a page", 0x20, 24, {{0, 0x10000001}, {2, 4096}}, {}},
      {"SVM set, before any VM", 0x20, 24, {{0, 0x10000000}, {2, 4096}}, {}},
      {"SVM, op 9", 0x20, 24, {{0, 0x10000000}, {2, 4096}, {4, 9}}, {}},
      {"SVM, more attributes than bytes", 0x20, 24, {{0, 0x10000000}, {2, 4096}, {5, 3}}, {}},
      {"SET_XNACK_MODE, asked", 0x21, 4, {{0, 0xffffffff}}, {0}},
      {"CRIU_OP 9", 0x22, kCriu, {{12, 9}}, {}},
      {"CRIU_OP CHECKPOINT of nothing", 0x22, kCriu, {{12, 1}}, {}},
      {"CRIU_OP UNPAUSE of what is not paused", 0x22, kCriu, {{12, 2}}, {}},
      {"CRIU_OP RESTORE of nothing", 0x22, kCriu, {{12, 3}}, {}},
      {"CRIU_OP RESUME of no process", 0x22, kCriu, {{11, 0x7ffffff}, {12, 4}}, {}},
      {"AVAILABLE_MEMORY, no such GPU", 0x23, 16, {{2, kNoGpu}}, {}},
      {"EXPORT_DMABUF, no such handle", 0x24, 16, {{0, 1}, {1, kNoGpu}}, {}},
      {"RUNTIME_ENABLE", 0x25, 16, {{2, 1}}, {}},
      {"RUNTIME_ENABLE again", 0x25, 16, {{2, 1}}, {}},
      {"RUNTIME_ENABLE, off", 0x25, 16, {}, {}},
      {"DBG_TRAP, no such process", 0x26, 32, {{0, 0x7ffffff}}, {}},
  };
  return list;
}

std::string ask(int fd, const Question& question) {
  alignas(8) std::array<std::uint32_t, 32> argument{};
  for (const Word& word : question.words) argument.at(word.index) = word.value;
  const unsigned long command = _IOC(_IOC_READ | _IOC_WRITE, 'K', question.nr, question.bytes);
  if (::ioctl(fd, command, argument.data()) != 0) return name_of(errno);
  std::string answer = "ok";
  for (const unsigned index : question.shown) answer.append(" ").append(std::to_string(argument.at(index)));
  return answer;
}

std::string ask_map(int fd, std::uint64_t offset, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return name_of(errno);
  ::munmap(at, bytes);
  return "ok";
}

std::string report() {
  const UniqueFd fd(::open("/dev/kfd", O_RDWR | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  const auto add = [&text](const std::string& question, const std::string& answer) {
    text.append(question).append("\t").append(answer).append("\n");
  };
  for (const Question& question : questions()) add(question.text, ask(fd.get(), question));
  const auto self = static_cast<std::uint32_t>(::getpid());
  add("DBG_TRAP, an event of a process that nobody debugs",
      ask(fd.get(), {"", 0x26, 32, {{0, self}, {1, kQueryDebugEvent}}, {}}));
  add("an ioctl at address 8",
      ::ioctl(fd.get(), _IOC(_IOC_READ | _IOC_WRITE, 'K', 1U, 8U), 8) == 0 ? "ok" : name_of(errno));
  add("an ioctl of type 'X'",
      ::ioctl(fd.get(), _IOC(_IOC_READ, 'X', 1U, 8U), 8) == 0 ? "ok" : name_of(errno));
  const std::uint64_t gpu = std::uint64_t{kNoGpu} << 46;
  add("mmap of doorbells, no such GPU", ask_map(fd.get(), std::uint64_t{3} << 62 | gpu, 8192));
  add("mmap of MMIO, no such GPU", ask_map(fd.get(), gpu, 4096));
  add("mmap of events, of which there is no page", ask_map(fd.get(), std::uint64_t{2} << 62, 32768));
  add("mmap of the reserved type, no such GPU", ask_map(fd.get(), std::uint64_t{1} << 62 | gpu, 4096));
  return text;
}

}  // namespace

std::vector<KfdAnswer> ask_kfd() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  UniqueFd reader(ends[0]), writer(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    const std::string text = report();
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = ::write(writer.get(), text.data() + done, text.size() - done);
      if (n < 0) ::_exit(1);
      done += static_cast<std::size_t>(n);
    }
    ::_exit(0);
  }
  writer.reset();
  std::string text;
  std::array<char, 4096> block;
  for (ssize_t n; (n = ::read(reader.get(), block.data(), block.size())) > 0;)
    text.append(block.data(), static_cast<std::size_t>(n));
  (void)::waitpid(child, nullptr, 0);
  std::vector<KfdAnswer> answers;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t tab = text.find('\t', at), end = text.find('\n', at);
    if (tab == std::string::npos || end == std::string::npos) break;
    answers.push_back({text.substr(at, tab - at), text.substr(tab + 1, end - tab - 1)});
    at = end + 1;
  }
  return answers;
}

}  // namespace sluice::vm_test
