// SPDX-License-Identifier: MIT
// A program on HIP, to be frozen in the middle of a kernel: jobs that each launch kernels and know their right
// result. Compiled by the guest's own hipcc, run by its own runtime; nothing of what these ask of the driver
// was written here.
//
// usage: hip-jobs DIR|-
// Commands come from the FIFO DIR/in, answers go to the FIFO DIR/out, one line each:
//   (start)       -> "ready gpus=N"
//   prepare NAME  -> "ok prepare"     memory and input of the job (the table at the end of this file)
//                                     it has been launched and finished once
//   launch        -> "ok launch"      its kernels run, or will
//   finish        -> "ok finish"      they ended, and every number is what the CPU calculates
//   quit          -> "ok quit"
// With "-" they come from standard input and go to standard output: this is the other process of the job "ipc",
// which has one more command:
//   open HANDLE   -> "ok open"        and its job is to work on that memory, too
// Anything that is not as it should be: "bad REASON". Single-threaded but for the runtime's own threads.
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <rocprim/rocprim.hpp>

#include "hip_kernels.h"

namespace {

// ---- jobs. The constructor prepares.

class Job {
 public:
  virtual ~Job() = default;
  virtual void launch() = 0;
  virtual void finish() = 0;
};

class VectorAdd : public Job {
 public:
  VectorAdd() { a_.put(numbers(kThreads, 1.0F)), b_.put(numbers(kThreads, 2.0F)); }
  void launch() override { add<<<kGroups, kItems>>>(a_.get(), b_.get(), c_.get()); }
  void finish() override { expect_equal(c_.take(), numbers(kThreads, 3.0F)); }

 private:
  Buffer<float> a_{kThreads}, b_{kThreads}, c_{kThreads};
};

class Saxpy : public Job {
 public:
  Saxpy() { x_.put(numbers(kThreads, 1.0F)), y_.put(numbers(kThreads, 2.0F)); }
  void launch() override { saxpy<<<kGroups, kItems>>>(0.5F, x_.get(), y_.get(), kTimes); }
  void finish() override { expect_equal(y_.take(), numbers(kThreads, 2.0F + 0.5F * kTimes)); }

 private:
  static constexpr U32 kTimes = 400;
  Buffer<float> x_{kThreads}, y_{kThreads};
};

class Reduction : public Job {
 public:
  Reduction() { in_.put(numbers(kCount, 3U)), out_.put({0}); }
  void launch() override { sum<<<kGroups, kItems>>>(in_.get(), out_.get(), kCount); }
  void finish() override { expect_equal(out_.take(), {3U * (kCount * (kCount - 1) / 2)}); }

 private:
  static constexpr U32 kCount = 8192;
  Buffer<U32> in_{kCount}, out_{1};
};

class Atomics : public Job {
 public:
  Atomics() { counters_.put({0, 0}), all_.put({0}); }
  void launch() override { count<<<kGroups, kItems>>>(counters_.get(), all_.get(), kRounds); }
  void finish() override {
    expect_equal(counters_.take(), {kThreads * kRounds, kItems - 1 + kRounds - 1});
    expect_equal(all_.take(), {U64{kRounds} * kGroups * kItems * (kItems - 1) / 2});
  }

 private:
  static constexpr U32 kRounds = 20;
  Buffer<U32> counters_{2};
  Buffer<U64> all_{1};
};

class Generator : public Job {
 public:
  void launch() override { generate<<<kGroups, kItems>>>(out_.get(), kRounds); }
  void finish() override {
    std::vector<U64> right(kThreads);
    for (U32 i = 0; i < kThreads; ++i) {
      right[i] = i;
      for (U32 r = 0; r < kRounds; ++r) right[i] = next(right[i]);
    }
    expect_equal(out_.take(), right);
  }

 private:
  static constexpr U32 kRounds = 1000;
  Buffer<U64> out_{kThreads};
};

class Persistent : public Job {
 public:
  Persistent() { HIP(hipHostMalloc(&flags_, 2 * sizeof(U32), hipHostMallocCoherent)), flags_[0] = flags_[1] = 0; }
  ~Persistent() override { (void)hipHostFree(const_cast<U32*>(flags_)); }
  // And it runs.
  void launch() override {
    poll<<<1, kItems>>>(flags_, flags_ + 1, out_.get());
    while (flags_[1] == 0) sched_yield();
  }
  void finish() override {
    flags_[0] = 1;
    std::vector<U64> right(kItems);
    for (U32 i = 0; i < kItems; ++i) right[i] = next(i);
    expect_equal(out_.take(), right);
  }

 private:
  volatile U32* flags_ = nullptr;
  Buffer<U64> out_{kItems};
};

class Streams : public Job {
 public:
  Streams() {
    for (hipStream_t& stream : streams_) HIP(hipStreamCreate(&stream));
    HIP(hipEventCreate(&event_));
  }
  ~Streams() override {
    for (hipStream_t stream : streams_) (void)hipStreamDestroy(stream);
    (void)hipEventDestroy(event_);
  }
  // The second stream adds to what the first one made, and works on something else before that.
  void launch() override {
    generate<<<kGroups, kItems, 0, streams_[0]>>>(first_.get(), kRounds);
    HIP(hipEventRecord(event_, streams_[0]));
    generate<<<kGroups, kItems, 0, streams_[1]>>>(second_.get(), 2 * kRounds);
    HIP(hipStreamWaitEvent(streams_[1], event_, 0));
    add_to<<<kGroups, kItems, 0, streams_[1]>>>(first_.get(), 5);
  }
  void finish() override {
    HIP(hipStreamSynchronize(streams_[1]));
    std::vector<U64> one(kThreads), two(kThreads);
    for (U32 i = 0; i < kThreads; ++i) {
      one[i] = two[i] = i;
      for (U32 r = 0; r < kRounds; ++r) one[i] = next(one[i]);
      for (U32 r = 0; r < 2 * kRounds; ++r) two[i] = next(two[i]);
      one[i] += 5;
    }
    expect_equal(first_.take(), one);
    expect_equal(second_.take(), two);
    HIP(hipEventQuery(event_));
  }

 private:
  static constexpr U32 kRounds = 300;
  hipStream_t streams_[2] = {};
  hipEvent_t event_ = nullptr;
  Buffer<U64> first_{kThreads}, second_{kThreads};
};

class Scratch : public Job {
 public:
  Scratch() { in_.put(numbers(kThreads, 7U)); }
  void launch() override { shuffle<<<kGroups, kItems>>>(in_.get(), out_.get(), kRounds); }
  void finish() override {
    std::vector<U32> right(kThreads);
    for (U32 i = 0; i < kThreads; ++i) shuffle_on_cpu(i * 7, &right[i], kRounds);
    expect_equal(out_.take(), right);
  }

 private:
  static constexpr U32 kRounds = 100;
  Buffer<U32> in_{kThreads}, out_{kThreads};
};

class Managed : public Job {
 public:
  Managed() {
    HIP(hipMallocManaged(&at_, kThreads * sizeof(U64)));
    for (U32 i = 0; i < kThreads; ++i) at_[i] = i;
  }
  static std::vector<U64> right() {
    std::vector<U64> all(kThreads);
    for (U32 i = 0; i < kThreads; ++i) all[i] = i + 1000;
    return all;
  }
  ~Managed() override { (void)hipFree(at_); }
  void launch() override { add_to<<<kGroups, kItems>>>(at_, 1000); }
  void finish() override {
    HIP(hipDeviceSynchronize());
    expect_equal(std::vector<U64>(at_, at_ + kThreads), right());
  }

 private:
  U64* at_ = nullptr;
};

class Graph : public Job {
 public:
  Graph() {
    HIP(hipStreamCreate(&stream_));
    HIP(hipStreamBeginCapture(stream_, hipStreamCaptureModeGlobal));
    generate<<<kGroups, kItems, 0, stream_>>>(out_.get(), kRounds);
    add_to<<<kGroups, kItems, 0, stream_>>>(out_.get(), 1);
    add_to<<<kGroups, kItems, 0, stream_>>>(out_.get(), 2);
    HIP(hipStreamEndCapture(stream_, &graph_));
    HIP(hipGraphInstantiate(&ready_, graph_, nullptr, nullptr, 0));
  }
  ~Graph() override {
    (void)hipGraphExecDestroy(ready_);
    (void)hipGraphDestroy(graph_);
    (void)hipStreamDestroy(stream_);
  }
  void launch() override { HIP(hipGraphLaunch(ready_, stream_)); }
  void finish() override {
    HIP(hipStreamSynchronize(stream_));
    std::vector<U64> right(kThreads);
    for (U32 i = 0; i < kThreads; ++i) {
      right[i] = i;
      for (U32 r = 0; r < kRounds; ++r) right[i] = next(right[i]);
      right[i] += 3;
    }
    expect_equal(out_.take(), right);
    // It can be launched again.
    HIP(hipGraphLaunch(ready_, stream_));
    HIP(hipStreamSynchronize(stream_));
    expect_equal(out_.take(), right);
  }

 private:
  static constexpr U32 kRounds = 200;
  hipStream_t stream_ = nullptr;
  hipGraph_t graph_ = nullptr;
  hipGraphExec_t ready_ = nullptr;
  Buffer<U64> out_{kThreads};
};

class Scan : public Job {
 public:
  Scan() {
    in_.put(numbers(kCount, 3U));
    std::size_t bytes = 0;
    HIP(rocprim::inclusive_scan(nullptr, bytes, in_.get(), out_.get(), kCount, rocprim::plus<U32>()));
    bytes_ = bytes;
    room_ = std::make_unique<Buffer<std::uint8_t>>(bytes);
  }
  void launch() override {
    HIP(rocprim::inclusive_scan(room_->get(), bytes_, in_.get(), out_.get(), kCount, rocprim::plus<U32>()));
  }
  void finish() override {
    std::vector<U32> right(kCount);
    for (U32 i = 0, all = 0; i < kCount; ++i) right[i] = all += i * 3;
    expect_equal(out_.take(), right);
  }

 private:
  static constexpr U32 kCount = 20000;
  std::size_t bytes_ = 0;
  std::unique_ptr<Buffer<std::uint8_t>> room_;
  Buffer<U32> in_{kCount}, out_{kCount};
};

class Gemm : public Job {
 public:
  Gemm() { a_.put(small(kRows * kDepth, 17)), b_.put(small(kDepth * kColumns, 13)); }
  void launch() override { multiply<<<kGroups, kItems>>>(a_.get(), b_.get(), c_.get()); }
  void finish() override {
    const std::vector<float> a = small(kRows * kDepth, 17), b = small(kDepth * kColumns, 13);
    std::vector<float> right(kRows * kColumns);
    for (U32 i = 0; i < kRows; ++i) {
      for (U32 j = 0; j < kColumns; ++j) {
        for (U32 k = 0; k < kDepth; ++k) right[i * kColumns + j] += a[i * kDepth + k] * b[k * kColumns + j];
      }
    }
    expect_equal(c_.take(), right);
  }

 private:
  // Whose products and sums are exact.
  static std::vector<float> small(U32 count, U32 period) {
    std::vector<float> all(count);
    for (U32 i = 0; i < count; ++i) all[i] = static_cast<float>(i % period) - 6;
    return all;
  }
  Buffer<float> a_{kRows * kDepth}, b_{kDepth * kColumns}, c_{kRows * kColumns};
};

// ---- a job of two processes, which work on the same memory

bool hear(int fd, std::string& line) {
  line.clear();
  for (char c; read(fd, &c, 1) == 1; line += c) {
    if (c == '\n') return true;
  }
  return false;
}

void say(int fd, std::string line) {
  line += '\n';
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
}

// Another one of this program.
class OtherProcess {
 public:
  OtherProcess() {
    int in[2], out[2];
    expect(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0, "no pipes");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string program = "hip-jobs", from = "-";
    char* const arguments[] = {program.data(), from.data(), nullptr};
    const int error = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]), close(out[1]);
    to_ = in[1], from_ = out[0];
    expect(error == 0, "no other process");
    std::string ready;
    expect(hear(from_, ready) && ready == "ready gpus=1", "the other process said: " + ready);
  }
  ~OtherProcess() {
    close(to_), close(from_);
    waitpid(pid_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  void tell(const std::string& line) {
    say(to_, line);
    std::string answer;
    hear(from_, answer);
    expect(answer == "ok " + line.substr(0, line.find(' ')), "the other process: " + answer);
  }

 private:
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
};

using Handle = std::array<unsigned char, sizeof(hipIpcMemHandle_t)>;

constexpr U32 kDeposits = 20;
std::vector<U64> deposits_of_both() { return std::vector<U64>(kThreads, kDeposits * U64{5 + 7}); }

// The one that has the memory.
class Shared : public Job {
 public:
  Shared() {
    all_.put(std::vector<U64>(kThreads));
    hipIpcMemHandle_t handle;
    HIP(hipIpcGetMemHandle(&handle, all_.get()));
    Handle bytes;
    std::memcpy(bytes.data(), &handle, bytes.size());
    std::string text;
    for (const unsigned char byte : bytes) text += std::to_string(byte) + ",";
    // It starts but once, which takes long.
    static OtherProcess other;
    other_ = &other;
    other_->tell("open " + text);
  }
  ~Shared() override { other_->tell("close"); }
  void launch() override {
    other_->tell("launch");
    deposit<<<kGroups, kItems>>>(all_.get(), 5, kDeposits);
  }
  void finish() override {
    HIP(hipDeviceSynchronize());
    other_->tell("finish");
    expect_equal(all_.take(), deposits_of_both());
  }

 private:
  Buffer<U64> all_{kThreads};
  OtherProcess* other_ = nullptr;
};

// The one that opens it.
class Opened : public Job {
 public:
  explicit Opened(const std::string& text) {
    Handle bytes{};
    const char* at = text.c_str();
    for (unsigned char& byte : bytes) {
      char* end = nullptr;
      byte = static_cast<unsigned char>(std::strtoul(at, &end, 10));
      at = end + 1;
    }
    hipIpcMemHandle_t handle;
    std::memcpy(&handle, bytes.data(), bytes.size());
    void* opened = nullptr;
    HIP(hipIpcOpenMemHandle(&opened, handle, hipIpcMemLazyEnablePeerAccess));
    all_ = static_cast<U64*>(opened);
  }
  ~Opened() override { (void)hipIpcCloseMemHandle(all_); }
  void launch() override { deposit<<<kGroups, kItems>>>(all_, 7, kDeposits); }
  void finish() override {
    std::vector<U64> seen(kThreads);
    HIP(hipMemcpy(seen.data(), all_, kThreads * sizeof(U64), hipMemcpyDeviceToHost));
    expect_equal(seen, deposits_of_both());
  }

 private:
  U64* all_ = nullptr;
};

template <class T>
std::unique_ptr<Job> make() {
  return std::make_unique<T>();
}

const std::map<std::string, std::function<std::unique_ptr<Job>()>> kJobs = {
    {"add", make<VectorAdd>},     {"saxpy", make<Saxpy>},     {"reduction", make<Reduction>}, {"atomics", make<Atomics>},
    {"generator", make<Generator>}, {"persistent", make<Persistent>}, {"streams", make<Streams>}, {"scratch", make<Scratch>},
    {"managed", make<Managed>},   {"graph", make<Graph>},     {"scan", make<Scan>},           {"ipc", make<Shared>},
    {"gemm", make<Gemm>},
};

// ---- commands

// What the runtime does at a first time (it loads code, makes queues, finds scratch) is over after that.
void rehearse(std::unique_ptr<Job> job) {
  job->launch();
  job->finish();
}

std::string obey(const std::string& line, std::unique_ptr<Job>& job) {
  if (line.rfind("prepare ", 0) == 0) {
    const auto found = kJobs.find(line.substr(8));
    expect(found != kJobs.end(), "no such job");
    rehearse(found->second());
    job = found->second();
    HIP(hipDeviceSynchronize());
    return "ok prepare";
  }
  if (line == "quit" || line == "close") {
    job.reset();
    return "ok " + line;
  }
  if (line.rfind("open ", 0) == 0) {
    job = std::make_unique<Opened>(line.substr(5));
    return "ok open";
  }
  expect(job != nullptr, "nothing is prepared");
  if (line == "launch") {
    job->launch();
    HIP(hipGetLastError());
    return "ok launch";
  }
  expect(line == "finish", "no such command");
  job->finish();
  HIP(hipDeviceSynchronize());
  return "ok finish";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: hip-jobs DIR|-     (DIR with FIFOs DIR/in and DIR/out)\n", stderr);
    return 2;
  }
  const std::string from = argv[1];
  const int in_fd = from == "-" ? STDIN_FILENO : open((from + "/in").c_str(), O_RDWR | O_CLOEXEC);
  const int out_fd = from == "-" ? STDOUT_FILENO : open((from + "/out").c_str(), O_RDWR | O_CLOEXEC);
  if (in_fd < 0 || out_fd < 0) {
    std::perror(argv[1]);
    return 2;
  }
  std::unique_ptr<Job> job;
  try {
    int gpus = 0;
    HIP(hipGetDeviceCount(&gpus));
    rehearse(make<VectorAdd>());  // the runtime compiles its own kernels, for which it takes most of its time
    say(out_fd, "ready gpus=" + std::to_string(gpus));
  } catch (const std::exception& e) {
    say(out_fd, std::string("bad ") + e.what());
    return 1;
  }
  for (std::string line; hear(in_fd, line);) {
    try {
      say(out_fd, obey(line, job));
      if (line == "quit") return 0;
    } catch (const std::exception& e) {
      say(out_fd, std::string("bad ") + e.what());
    }
  }
  return 1;
}
