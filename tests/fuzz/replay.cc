// SPDX-License-Identifier: MIT
// A fuzz target without a fuzzer: every file of its corpus, then seeded mutations of them. The same inputs on
// every run.
//
//   replay CORPUS MUTATIONS
//
// It fails where the files, as they are, do not come to everything that they should (Goal).
// An input that ends the process is left in replay.input, in the working directory.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 64 * 1024;

const Bytes* running = nullptr;

// Async-signal-safe. The signal's default action follows.
void save_input(int) {
  const int fd = ::open("replay.input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0 && ::write(fd, running->data(), running->size()) >= 0) ::close(fd);
}

void run(const Bytes& bytes) {
  running = &bytes;
  (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::vector<Bytes> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// What no input has been taken for yet is told.
bool all_reached() {
  bool all = !sluice::fuzz::Goal::all().empty();
  for (const sluice::fuzz::Goal* const goal : sluice::fuzz::Goal::all()) {
    if (goal->reached()) continue;
    std::fprintf(stderr, "no file of the corpus is %s\n", goal->what());
    all = false;
  }
  return all;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Bytes>& corpus) : corpus_(corpus) {}

  Bytes next() {
    Bytes bytes = pick();
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(bytes);
    bytes.resize(std::min(bytes.size(), kLongest));
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const Bytes& pick() { return corpus_[below(corpus_.size())]; }

  void change(Bytes& bytes) {
    static constexpr std::uint8_t kEdges[] = {0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF};
    const std::size_t at = below(bytes.size() + 1);
    const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = kEdges[below(std::size(kEdges))];
        break;
      case 2:
        bytes.insert(here, static_cast<std::uint8_t>(random_()));
        break;
      case 3:
        bytes.erase(here, here + static_cast<std::ptrdiff_t>(
                                     below(std::min<std::size_t>(bytes.size() - at, 16) + 1)));
        break;
      case 4:
        bytes.resize(at);
        break;
      default: {  // the rest of another one
        const Bytes& other = pick();
        const std::size_t from = below(other.size() + 1);
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937 random_{20240229};
};

}  // namespace

int main(int argc, char** argv) {
  std::size_t mutations = 0;
  if (argc != 3 || std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), mutations).ec != std::errc()) {
    std::fprintf(stderr, "usage: %s CORPUS MUTATIONS\n", argv[0]);
    return 2;
  }
  const std::vector<Bytes> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s is empty\n", argv[1]);
    return 1;
  }
  struct sigaction action {};
  action.sa_handler = save_input;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) ::sigaction(number, &action, nullptr);
  for (const Bytes& bytes : corpus) run(bytes);
  if (!all_reached()) return 1;
  Mutator mutator(corpus);
  for (std::size_t i = 0; i < mutations; ++i) run(mutator.next());
  std::printf("shown: fuzz %s: %zu executions: %zu files of the corpus, %zu mutations\n",
              std::filesystem::path(argv[1]).filename().c_str(), corpus.size() + mutations, corpus.size(),
              mutations);
  return 0;
}
