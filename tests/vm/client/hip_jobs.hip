// SPDX-License-Identifier: MIT
// A program on HIP, to be frozen in the middle of a kernel: jobs that each launch kernels and know their right
// result. Compiled by the guest's own hipcc, run by its own runtime; nothing of what these ask of the driver
// was written here.
//
// usage: hip-jobs DIR
// Commands come from the FIFO DIR/in, answers go to the FIFO DIR/out, one line each:
//   (start)       -> "ready gpus=N"
//   prepare NAME  -> "ok prepare"     memory and input of the job (the table at the end of this file)
//                                     it has been launched and finished once
//   launch        -> "ok launch"      its kernels run, or will
//   finish        -> "ok finish"      they ended, and every number is what the CPU calculates
//   quit          -> "ok quit"
// Anything that is not as it should be: "bad REASON". Single-threaded but for the runtime's own threads.
#include <fcntl.h>
#include <hip/hip_runtime.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <rocprim/rocprim.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using U32 = std::uint32_t;
using U64 = unsigned long long;

void check(hipError_t error, const char* what) {
  if (error != hipSuccess) throw std::runtime_error(std::string(what) + ": " + hipGetErrorString(error));
}
#define HIP(call) check(call, #call)

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

constexpr U32 kGroups = 2, kItems = 256, kThreads = kGroups * kItems;

// ---- memory

template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) { HIP(hipMalloc(&at_, count * sizeof(T))); }
  ~Buffer() { (void)hipFree(at_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* get() const { return at_; }
  void put(const std::vector<T>& from) { HIP(hipMemcpy(at_, from.data(), count_ * sizeof(T), hipMemcpyHostToDevice)); }
  std::vector<T> take() const {
    std::vector<T> to(count_);
    HIP(hipMemcpy(to.data(), at_, count_ * sizeof(T), hipMemcpyDeviceToHost));
    return to;
  }

 private:
  T* at_ = nullptr;
  std::size_t count_;
};

template <class T>
std::vector<T> numbers(std::size_t count, T step) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<T>(i) * step;
  return all;
}

template <class T>
void expect_equal(const std::vector<T>& seen, const std::vector<T>& right) {
  std::size_t bad = 0, first = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (std::memcmp(&seen[i], &right[i], sizeof(T)) == 0) continue;
    if (bad++ == 0) first = i;
  }
  expect(bad == 0, std::to_string(bad) + " of " + std::to_string(right.size()) + " numbers are wrong, the first at " +
                       std::to_string(first) + ": " + std::to_string(seen[first]) + " for " +
                       std::to_string(right[first]));
}

// ---- kernels

__global__ void add(const float* a, const float* b, float* c) {
  const U32 i = blockIdx.x * blockDim.x + threadIdx.x;
  c[i] = a[i] + b[i];
}

__global__ void saxpy(float a, const float* x, float* y, U32 times) {
  const U32 i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = y[i];
  for (U32 t = 0; t < times; ++t) v = a * x[i] + v;
  y[i] = v;
}

__global__ void sum(const U32* in, U32* out, U32 count) {
  __shared__ U32 part[kItems];
  U32 mine = 0;
  for (U32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) mine += in[i];
  part[threadIdx.x] = mine;
  __syncthreads();
  for (U32 half = kItems / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, part[0]);
}

__global__ void count(U32* counter, U64* all, U32 rounds) {
  for (U32 i = 0; i < rounds; ++i) {
    atomicAdd(counter, 1U);
    atomicMax(counter + 1, threadIdx.x + i);
    atomicAdd(all, U64{threadIdx.x});
  }
}

__host__ __device__ inline U64 next(U64 n) { return n * 6364136223846793005ULL + 1442695040888963407ULL; }

__global__ void generate(U64* out, U32 rounds) {
  U64 n = blockIdx.x * blockDim.x + threadIdx.x;
  for (U32 i = 0; i < rounds; ++i) n = next(n);
  out[blockIdx.x * blockDim.x + threadIdx.x] = n;
}

// Runs until the host says so.
__global__ void poll(volatile U32* flag, volatile U32* begun, U64* out) {
  const U32 i = blockIdx.x * blockDim.x + threadIdx.x;
  U64 n = i;
  if (threadIdx.x == 0) *begun = 1;
  while (*flag == 0) n = n * 3 / 3;
  out[i] = next(n);
}

// An array of each thread that is indexed by data: private memory.
__global__ void shuffle(const U32* in, U32* out, U32 rounds) {
  U32 own[64];
  const U32 i = blockIdx.x * blockDim.x + threadIdx.x;
  for (U32 k = 0; k < 64; ++k) own[k] = in[i] + k;
  for (U32 r = 0; r < rounds; ++r) {
    const U32 a = (own[r & 63] >> 3) & 63, b = (own[(r + 7) & 63]) & 63;
    const U32 held = own[a];
    own[a] = own[b] + r;
    own[b] = held ^ r;
  }
  U32 all = 0;
  for (U32 k = 0; k < 64; ++k) all = all * 31 + own[k];
  out[i] = all;
}

void shuffle_on_cpu(U32 in, U32* out, U32 rounds) {
  U32 own[64];
  for (U32 k = 0; k < 64; ++k) own[k] = in + k;
  for (U32 r = 0; r < rounds; ++r) {
    const U32 a = (own[r & 63] >> 3) & 63, b = (own[(r + 7) & 63]) & 63;
    const U32 held = own[a];
    own[a] = own[b] + r;
    own[b] = held ^ r;
  }
  U32 all = 0;
  for (U32 k = 0; k < 64; ++k) all = all * 31 + own[k];
  *out = all;
}

__global__ void add_to(U64* all, U64 what) { all[blockIdx.x * blockDim.x + threadIdx.x] += what; }

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

// Memory that another process may open: here only the handle is made.
class Shared : public Job {
 public:
  Shared() { HIP(hipIpcGetMemHandle(&handle_, out_.get())); }
  void launch() override { generate<<<kGroups, kItems>>>(out_.get(), 1); }
  void finish() override {
    std::vector<U64> right(kThreads);
    for (U32 i = 0; i < kThreads; ++i) right[i] = next(i);
    expect_equal(out_.take(), right);
  }

 private:
  hipIpcMemHandle_t handle_{};
  Buffer<U64> out_{kThreads};
};

template <class T>
std::unique_ptr<Job> make() {
  return std::make_unique<T>();
}

const std::map<std::string, std::function<std::unique_ptr<Job>()>> kJobs = {
    {"add", make<VectorAdd>},     {"saxpy", make<Saxpy>},     {"reduction", make<Reduction>}, {"atomics", make<Atomics>},
    {"generator", make<Generator>}, {"persistent", make<Persistent>}, {"streams", make<Streams>}, {"scratch", make<Scratch>},
    {"managed", make<Managed>},   {"graph", make<Graph>},     {"scan", make<Scan>},           {"ipc", make<Shared>},
};

// ---- commands

int in_fd = -1, out_fd = -1;

void say(std::string line) {
  line += '\n';
  if (write(out_fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
}

bool hear(std::string& line) {
  line.clear();
  for (char c; read(in_fd, &c, 1) == 1; line += c) {
    if (c == '\n') return true;
  }
  return false;
}

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
  if (line == "quit") {
    job.reset();
    return "ok quit";
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
    std::fputs("usage: hip-jobs DIR     (with FIFOs DIR/in and DIR/out)\n", stderr);
    return 2;
  }
  in_fd = open((std::string(argv[1]) + "/in").c_str(), O_RDWR);
  out_fd = open((std::string(argv[1]) + "/out").c_str(), O_RDWR);
  if (in_fd < 0 || out_fd < 0) {
    std::perror(argv[1]);
    return 2;
  }
  std::unique_ptr<Job> job;
  try {
    int gpus = 0;
    HIP(hipGetDeviceCount(&gpus));
    rehearse(make<VectorAdd>());  // the runtime compiles its own kernels, for which it takes most of its time
    say("ready gpus=" + std::to_string(gpus));
  } catch (const std::exception& e) {
    say(std::string("bad ") + e.what());
    return 1;
  }
  for (std::string line; hear(line);) {
    try {
      say(obey(line, job));
      if (line == "quit") return 0;
    } catch (const std::exception& e) {
      say(std::string("bad ") + e.what());
    }
  }
  return 1;
}
