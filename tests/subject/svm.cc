// SPDX-License-Identifier: MIT
#include "subject/svm.h"

#include <linux/kfd_ioctl.h>

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "subject/device.h"
#include "subject/pattern.h"

namespace sluice::subject {
namespace {

using Attribute = kfd_ioctl_svm_attribute;

constexpr std::size_t kMostAttributes = 8;
constexpr std::uint32_t kMostGranularity = 20;

// The ioctl with its attributes behind the fixed part; they come back changed from GET_ATTR.
Result<void> svm_ioctl(int kfd_fd, std::uint32_t op, std::uint64_t address, std::uint64_t bytes,
                       std::span<Attribute> attributes) {
  alignas(kfd_ioctl_svm_args)
      std::array<std::uint8_t, sizeof(kfd_ioctl_svm_args) + kMostAttributes * sizeof(Attribute)>
          buffer{};
  auto* args = reinterpret_cast<kfd_ioctl_svm_args*>(buffer.data());
  args->start_addr = address;
  args->size = bytes;
  args->op = op;
  args->nattr = static_cast<std::uint32_t>(attributes.size());
  std::memcpy(args->attrs, attributes.data(), attributes.size_bytes());
  // The command carries the size of all of it.
  const unsigned long command = AMDKFD_IOC_SVM + (attributes.size_bytes() << _IOC_SIZESHIFT);
  SLUICE_TRY(
      device_ioctl(kfd_fd, command, args, op == KFD_IOCTL_SVM_OP_SET_ATTR ? "SVM SET_ATTR" : "SVM GET_ATTR"));
  std::memcpy(attributes.data(), args->attrs, attributes.size_bytes());
  return {};
}

// What GET_ATTR says about a range.
Result<std::array<std::uint32_t, 10>> read_attributes(const Arena& arena, const SvmRecord& range) {
  std::array<Attribute, 5> attributes = {{{KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, 0},
                                          {KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, 0},
                                          {KFD_IOCTL_SVM_ATTR_ACCESS, arena.gpus[range.gpu].gpu_id},
                                          {KFD_IOCTL_SVM_ATTR_SET_FLAGS, 0},
                                          {KFD_IOCTL_SVM_ATTR_GRANULARITY, 0}}};
  SLUICE_TRY(svm_ioctl(arena.kfd_fd, KFD_IOCTL_SVM_OP_GET_ATTR, range.address, range.bytes, attributes));
  std::array<std::uint32_t, 10> values;
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    values[2 * i] = attributes[i].type;
    values[2 * i + 1] = attributes[i].value;
  }
  return values;
}

Pattern data_of(const Arena& arena, std::uint32_t gpu) {
  return Pattern{mix(arena.seed + 0x5356'4d00 + gpu), kSvmBytes, arena.zero_percent};
}

}  // namespace

Result<void> svm_give_access(int kfd_fd, std::uint64_t address, std::uint64_t bytes, std::uint32_t gpu_id) {
  std::array<Attribute, 1> attributes = {{{KFD_IOCTL_SVM_ATTR_ACCESS, gpu_id}}};
  return svm_ioctl(kfd_fd, KFD_IOCTL_SVM_OP_SET_ATTR, address, bytes, attributes);
}

Result<void> add_svm_ranges(Arena& arena) {
  for (std::uint32_t gpu = 0; gpu < arena.num_gpus; ++gpu) {
    const std::uint32_t gpu_id = arena.gpus[gpu].gpu_id;
    data_of(arena, gpu).fill(arena.svm_memory[gpu], 0);
    std::array<Attribute, 3> first = {{{KFD_IOCTL_SVM_ATTR_ACCESS, gpu_id},
                                       {KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, gpu_id},
                                       {KFD_IOCTL_SVM_ATTR_GRANULARITY, 5}}};
    std::array<Attribute, 3> second = {
        {{KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE, gpu_id},
         {KFD_IOCTL_SVM_ATTR_SET_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_EXEC | KFD_IOCTL_SVM_FLAG_GPU_READ_MOSTLY},
         {KFD_IOCTL_SVM_ATTR_GRANULARITY, 3}}};
    for (std::uint32_t i = 0; i < kSvmRanges; ++i) {
      SvmRecord& range = arena.svm[arena.num_svm++];
      // A quarter each, with a quarter between them that no attribute was set on.
      range.bytes = kSvmBytes / 4;
      range.address = reinterpret_cast<std::uintptr_t>(arena.svm_memory[gpu].data()) + i * kSvmBytes / 2;
      range.gpu = gpu;
      SLUICE_TRY(svm_ioctl(arena.kfd_fd, KFD_IOCTL_SVM_OP_SET_ATTR, range.address, range.bytes,
                           i == 0 ? first : second));
      SLUICE_TRY_ASSIGN(range.attributes, read_attributes(arena, range));
    }
  }
  return {};
}

Result<void> check_svm(const Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_svm; ++i) {
    const SvmRecord& range = arena.svm[i];
    SLUICE_TRY_ASSIGN(const auto now, read_attributes(arena, range));
    for (std::size_t at = 0; at < now.size(); at += 2) {
      if (now[at] == range.attributes[at] && now[at + 1] == range.attributes[at + 1]) continue;
      return Error{EINVAL, "SVM range " + std::to_string(i) + " has attribute " + std::to_string(now[at]) +
                               "=" + std::to_string(now[at + 1]) + ", it had " +
                               std::to_string(range.attributes[at]) + "=" +
                               std::to_string(range.attributes[at + 1])};
    }
    const auto difference = data_of(arena, range.gpu).first_difference(arena.svm_memory[range.gpu], 0);
    if (difference)
      return Error{EIO, "SVM memory of GPU " + std::to_string(range.gpu) + " differs at byte " +
                            std::to_string(*difference)};
  }
  return {};
}

Result<void> prefetch_svm(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_svm; i += kSvmRanges) {
    SvmRecord& range = arena.svm[i];
    std::array<Attribute, 1> place = {{{KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, arena.gpus[range.gpu].gpu_id}}};
    SLUICE_TRY(svm_ioctl(arena.kfd_fd, KFD_IOCTL_SVM_OP_SET_ATTR, range.address, range.bytes, place));
    SLUICE_TRY_ASSIGN(range.attributes, read_attributes(arena, range));
  }
  return {};
}

Result<void> work_svm(Arena& arena) {
  for (std::uint32_t i = 0; i < arena.num_svm; ++i) {
    SvmRecord& range = arena.svm[i];
    const std::uint32_t granularity = range.attributes[9] % kMostGranularity + 1;
    std::array<Attribute, 1> change = {{{KFD_IOCTL_SVM_ATTR_GRANULARITY, granularity}}};
    SLUICE_TRY(svm_ioctl(arena.kfd_fd, KFD_IOCTL_SVM_OP_SET_ATTR, range.address, range.bytes, change));
    SLUICE_TRY_ASSIGN(range.attributes, read_attributes(arena, range));
    if (range.attributes[9] != granularity)
      return Error{EIO, "SVM range " + std::to_string(i) + " does not take a granularity"};
  }
  return {};
}

}  // namespace sluice::subject
