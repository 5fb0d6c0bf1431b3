// SPDX-License-Identifier: MIT
// Writer of the file format in description.h.
#include "description_file.h"

#include <cstring>
#include <stdexcept>

#include "description.h"

namespace vamdgpu {
namespace {

vamdgpu_pci pci_record(const PciGpu& gpu) {
  vamdgpu_pci record{};
  record.domain = gpu.domain;
  record.bus = gpu.bus;
  record.vendor_id = gpu.vendor_id;
  record.device_id = gpu.device_id;
  record.subsystem_vendor_id = gpu.subsystem_vendor_id;
  record.subsystem_device_id = gpu.subsystem_device_id;
  record.revision = gpu.revision;
  record.class_code = gpu.class_code;
  record.numa_node = gpu.numa_node;
  record.unique_id = gpu.unique_id;
  record.vram_bytes = gpu.vram_bytes;
  record.visible_vram_bytes = gpu.visible_vram_bytes;
  record.gtt_bytes = gpu.gtt_bytes;
  return record;
}

// 1 + index of the GPU, 0 when the text belongs to none.
std::uint32_t guard_of(const vamdgpu_machine_config& config, std::uint32_t gpu_id) {
  for (std::uint32_t i = 0; i < config.num_gpus; ++i)
    if (gpu_id != 0 && config.gpus[i].gpu_id == gpu_id) return i + 1;
  return 0;
}

void append(std::string* bytes, const void* data, std::size_t size) {
  bytes->append(static_cast<const char*>(data), size);
}

}  // namespace

std::string description_bytes(const MachineDescription& machine) {
  vamdgpu_description header{};
  header.magic = VAMDGPU_DESCRIPTION_MAGIC;
  header.version = VAMDGPU_DESCRIPTION_VERSION;
  header.layout = VAMDGPU_DESCRIPTION_LAYOUT;
  header.config = machine.config;
  if (machine.tree.gpus.size() != machine.config.num_gpus || machine.config.num_gpus > VAMDGPU_MAX_GPUS)
    throw std::invalid_argument("description: number of GPUs");
  for (std::size_t i = 0; i < machine.tree.gpus.size(); ++i) header.pci[i] = pci_record(machine.tree.gpus[i]);

  std::string bytes(sizeof header, '\0');
  for (const TopologyText& text : topology_texts(machine.tree.topology)) {
    if (text.path.size() >= VAMDGPU_MAX_PATH || text.text.size() > VAMDGPU_MAX_TEXT)
      throw std::invalid_argument("description: " + text.path + " is too long");
    vamdgpu_text record{};
    record.path_bytes = static_cast<std::uint32_t>(text.path.size() + 1);
    record.text_bytes = static_cast<std::uint32_t>(text.text.size() + 1);
    record.gpu = guard_of(machine.config, text.gpu_id);
    append(&bytes, &record, sizeof record);
    append(&bytes, text.path.c_str(), record.path_bytes);
    append(&bytes, text.text.c_str(), record.text_bytes);
    bytes.append((8 - bytes.size() % 8) % 8, '\0');
    ++header.num_texts;
  }
  header.bytes = bytes.size();
  if (header.num_texts > VAMDGPU_MAX_TEXTS || header.bytes > VAMDGPU_MAX_DESCRIPTION)
    throw std::invalid_argument("description: too many texts");
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

}  // namespace vamdgpu
