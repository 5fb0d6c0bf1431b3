// SPDX-License-Identifier: MIT
// What the jobs of hip_jobs.hip run on a GPU, and the memory that they have there. For that one file.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstring>
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
  void put(const std::vector<T>& from) {
    HIP(hipMemcpy(at_, from.data(), count_ * sizeof(T), hipMemcpyHostToDevice));
  }
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
  expect(bad == 0, std::to_string(bad) + " of " + std::to_string(right.size()) +
                       " numbers are wrong, the first at " + std::to_string(first) + ": " +
                       std::to_string(seen[first]) + " for " + std::to_string(right[first]));
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

__host__ __device__ inline U64 next(U64 n) {
  return n * 6364136223846793005ULL + 1442695040888963407ULL;
}

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

__global__ void add_to(U64* all, U64 what) {
  all[blockIdx.x * blockDim.x + threadIdx.x] += what;
}

__global__ void deposit(U64* all, U64 what, U32 rounds) {
  for (U32 i = 0; i < rounds; ++i) atomicAdd(all + blockIdx.x * blockDim.x + threadIdx.x, what);
}

// A product of matrices, each wave a tile of 32 x 32 whose sums are in AccVGPRs.
constexpr U32 kTile = 32, kDepth = 64, kRows = kGroups * kTile, kColumns = kItems / 64 * kTile;

__global__ void multiply(const float* a, const float* b, float* c) {
  using Tile = float __attribute__((ext_vector_type(16)));
  __shared__ float panel[kTile * kDepth];
  for (U32 i = threadIdx.x; i < kTile * kDepth; i += kItems) panel[i] = a[blockIdx.x * kTile * kDepth + i];
  __syncthreads();
  const U32 across = threadIdx.x % kTile, half = threadIdx.x / kTile % 2,
            column = threadIdx.x / 64 * kTile + across;
  Tile sum = {};
  for (U32 k = 0; k < kDepth; k += 2) {
    sum = __builtin_amdgcn_mfma_f32_32x32x2f32(panel[across * kDepth + k + half],
                                               b[(k + half) * kColumns + column], sum, 0, 0, 0);
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("" : "+a"(sum));
#endif
  }
  for (U32 v = 0; v < 16; ++v)
    c[(blockIdx.x * kTile + v / 4 * 8 + half * 4 + v % 4) * kColumns + column] = sum[v];
}

}  // namespace
