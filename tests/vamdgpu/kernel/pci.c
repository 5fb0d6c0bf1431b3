/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The GPUs as PCI devices: a root bus of its own for each, at the address that the topology names, with one
 * device whose configuration space comes from the description. It has no BARs, no interrupt and no
 * capabilities; what a program sees of it in sysfs is what the PCI core reads there, and amdgpu's own
 * attributes.
 *
 * Buses are made when the module loads and removed when it goes. Configuration accesses come one at a time
 * (the core's lock).
 */
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "description.h"
#include "vam_machine.h"

#define CONFIG_BYTES 256 /* of a device without PCI Express capability */
#define COMMAND_WRITABLE (PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE)

struct gpu_bus {
  struct pci_sysdata sysdata; /* first: the core finds domain and NUMA node here */
  struct resource numbers;    /* the one bus number */
  struct pci_bus* bus;
  struct pci_dev* device;
  const struct vamdgpu_pci* pci;
  struct vam_machine* machine;
  u32 index; /* in the model */
  u16 command;
  u8 line;
};

struct vam_pci {
  struct gpu_bus bus[VAMDGPU_MAX_GPUS];
};

static struct gpu_bus* bus_of(struct pci_bus* bus) {
  return container_of((struct pci_sysdata*)bus->sysdata, struct gpu_bus, sysdata);
}

/* The aligned dword at `where`. */
static u32 config_dword(const struct gpu_bus* b, int where) {
  switch (where) {
    case PCI_VENDOR_ID:
      return b->pci->vendor_id | b->pci->device_id << 16;
    case PCI_COMMAND:
      return b->command;
    case PCI_CLASS_REVISION:
      return b->pci->revision | b->pci->class_code << 8;
    case PCI_SUBSYSTEM_VENDOR_ID:
      return b->pci->subsystem_vendor_id | b->pci->subsystem_device_id << 16;
    case PCI_INTERRUPT_LINE:
      return b->line;
    default:
      return 0;
  }
}

static int config_read(struct pci_bus* bus, unsigned int devfn, int where, int size, u32* value) {
  const u32 mask = size == 4 ? ~0u : (1u << (8 * size)) - 1;

  *value = mask;
  if (devfn != 0 || where + size > CONFIG_BYTES) return PCIBIOS_DEVICE_NOT_FOUND;
  *value = config_dword(bus_of(bus), where & ~3) >> (8 * (where & 3)) & mask;
  return PCIBIOS_SUCCESSFUL;
}

static int config_write(struct pci_bus* bus, unsigned int devfn, int where, int size, u32 value) {
  if (devfn != 0) return PCIBIOS_DEVICE_NOT_FOUND;
  if (where == PCI_COMMAND && size >= 2) bus_of(bus)->command = value & COMMAND_WRITABLE;
  if (where == PCI_INTERRUPT_LINE) bus_of(bus)->line = (u8)value;
  return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops config_ops = {.read = config_read, .write = config_write};

/* ---- the driver */

static const struct vamdgpu_pci* shown(struct device* device) {
  return bus_of(to_pci_dev(device)->bus)->pci;
}

static ssize_t unique_id_show(struct device* device, struct device_attribute* attr, char* page) {
  return sysfs_emit(page, "%016llx\n", (unsigned long long)shown(device)->unique_id);
}

static ssize_t mem_info_vram_total_show(struct device* device, struct device_attribute* attr, char* page) {
  return sysfs_emit(page, "%llu\n", (unsigned long long)shown(device)->vram_bytes);
}

static ssize_t mem_info_vis_vram_total_show(struct device* device, struct device_attribute* attr,
                                            char* page) {
  return sysfs_emit(page, "%llu\n", (unsigned long long)shown(device)->visible_vram_bytes);
}

static ssize_t mem_info_gtt_total_show(struct device* device, struct device_attribute* attr, char* page) {
  return sysfs_emit(page, "%llu\n", (unsigned long long)shown(device)->gtt_bytes);
}

static ssize_t in_use_show(struct device* device, enum vam_pool pool, char* page) {
  struct gpu_bus* b = bus_of(to_pci_dev(device)->bus);
  u64 bytes;

  vam_settle(b->machine);
  mutex_lock(&b->machine->lock);
  bytes = b->machine->model->gpu[b->index].used_bytes[pool];
  mutex_unlock(&b->machine->lock);
  return sysfs_emit(page, "%llu\n", (unsigned long long)bytes);
}

static ssize_t mem_info_vram_used_show(struct device* device, struct device_attribute* attr, char* page) {
  return in_use_show(device, VAM_POOL_VRAM, page);
}

static ssize_t mem_info_gtt_used_show(struct device* device, struct device_attribute* attr, char* page) {
  return in_use_show(device, VAM_POOL_GTT, page);
}

static DEVICE_ATTR_RO(unique_id);
static DEVICE_ATTR_RO(mem_info_vram_total);
static DEVICE_ATTR_RO(mem_info_vis_vram_total);
static DEVICE_ATTR_RO(mem_info_gtt_total);
static DEVICE_ATTR_RO(mem_info_vram_used);
static DEVICE_ATTR_RO(mem_info_gtt_used);

static struct attribute* gpu_attrs[] = {&dev_attr_unique_id.attr,
                                        &dev_attr_mem_info_vram_total.attr,
                                        &dev_attr_mem_info_vis_vram_total.attr,
                                        &dev_attr_mem_info_gtt_total.attr,
                                        &dev_attr_mem_info_vram_used.attr,
                                        &dev_attr_mem_info_gtt_used.attr,
                                        NULL};
ATTRIBUTE_GROUPS(gpu);

/* Real cards of the vendor (an emulator's VGA adapter, say) are not ours. */
static int probe(struct pci_dev* device, const struct pci_device_id* id) {
  return device->bus->ops == &config_ops ? pci_enable_device(device) : -ENODEV;
}

static void remove(struct pci_dev* device) {
  pci_disable_device(device);
}

static const struct pci_device_id any_amd[] = {{PCI_DEVICE(PCI_VENDOR_ID_ATI, PCI_ANY_ID)}, {}};

static struct pci_driver driver = {
    .name = "amdgpu",
    .id_table = any_amd,
    .probe = probe,
    .remove = remove,
    .dev_groups = gpu_groups,
};

/* ---- buses */

static int add_bus(struct gpu_bus* b) {
  LIST_HEAD(windows);
  int node = (int)b->pci->numa_node;

  b->sysdata.domain = (int)b->pci->domain;
  b->sysdata.node = node >= 0 && node < MAX_NUMNODES && node_online(node) ? node : NUMA_NO_NODE;
  b->numbers.name = "vamdgpu";
  b->numbers.start = b->numbers.end = b->pci->bus;
  b->numbers.flags = IORESOURCE_BUS;
  pci_add_resource(&windows, &b->numbers);
  b->bus = pci_create_root_bus(NULL, (int)b->pci->bus, &config_ops, &b->sysdata, &windows);
  if (!b->bus) {
    pci_free_resource_list(&windows);
    pr_err("vamdgpu: PCI bus %04x:%02x is taken\n", b->pci->domain, b->pci->bus);
    return -EBUSY;
  }
  pci_scan_child_bus(b->bus);
  pci_bus_add_devices(b->bus);
  b->device = pci_get_slot(b->bus, 0);
  /* By name: since Linux 7.2 the scan binds nothing where drivers_autoprobe is off. */
  if (b->device && !b->device->dev.driver && device_attach(&b->device->dev) <= 0)
    pr_err("vamdgpu: PCI bus %04x:%02x does not take its driver\n", b->pci->domain, b->pci->bus);
  if (!b->device || !b->device->dev.driver) {
    pr_err("vamdgpu: no driver at PCI bus %04x:%02x\n", b->pci->domain, b->pci->bus);
    return -ENODEV;
  }
  return 0;
}

int vam_pci_create(struct vam_machine* machine, const struct vam_description* description) {
  struct vam_pci* p;
  int err;
  u32 i;

  p = kzalloc(sizeof(*p), GFP_KERNEL);
  if (!p) return -ENOMEM;
  err = pci_register_driver(&driver);
  if (err) {
    kfree(p);
    return err;
  }
  machine->pci = p;
  pci_lock_rescan_remove();
  for (i = 0; !err && i < description->file.config.num_gpus; i++) {
    p->bus[i].pci = &description->file.pci[i];
    p->bus[i].machine = machine;
    p->bus[i].index = i;
    err = add_bus(&p->bus[i]);
    if (!err) machine->gpu[i].parent = &p->bus[i].device->dev;
  }
  pci_unlock_rescan_remove();
  if (err) vam_pci_destroy(machine);
  return err;
}

void vam_pci_destroy(struct vam_machine* machine) {
  struct vam_pci* p = machine->pci;
  u32 i;

  if (!p) return;
  pci_lock_rescan_remove();
  for (i = 0; i < VAMDGPU_MAX_GPUS; i++) {
    struct gpu_bus* b = &p->bus[i];

    if (!b->bus) continue;
    machine->gpu[i].parent = NULL;
    pci_stop_root_bus(b->bus);
    pci_dev_put(b->device);
    pci_remove_root_bus(b->bus);
  }
  pci_unlock_rescan_remove();
  pci_unregister_driver(&driver);
  kfree(p);
  machine->pci = NULL;
}
