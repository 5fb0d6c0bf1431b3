/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Whether a file is a description (description.h), and its texts. Freestanding C11: the module and the tests
 * that feed it damaged files are built from it.
 */
#include "../model/platform.h"
#include "description.h"

/* Bytes of a text with its strings and padding. */
static uint64_t text_bytes(const struct vamdgpu_text* text) {
  return (sizeof(*text) + (uint64_t)text->path_bytes + text->text_bytes + 7) & ~7ull;
}

const struct vamdgpu_text* vamdgpu_text_next(const struct vamdgpu_description* d,
                                             const struct vamdgpu_text* text) {
  const char* next = text ? (const char*)text + text_bytes(text) : (const char*)(d + 1);
  return next < (const char*)d + d->bytes ? (const struct vamdgpu_text*)next : 0;
}

const char* vamdgpu_text_path(const struct vamdgpu_text* text) {
  return (const char*)(text + 1);
}

const char* vamdgpu_text_contents(const struct vamdgpu_text* text) {
  return (const char*)(text + 1) + text->path_bytes;
}

/* A string of exactly `bytes` bytes, its NUL the last. */
static int is_string(const char* text, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) {
    if (!text[i]) return i == bytes - 1;
  }
  return 0;
}

/* Names of letters, digits and '_', joined by single slashes; one more slash at the end of a directory's. */
static int is_path(const char* path) {
  int in_name = 0;
  for (; *path; ++path) {
    const int letter = (*path >= 'a' && *path <= 'z') || (*path >= '0' && *path <= '9') || *path == '_';
    if (!letter && (*path != '/' || !in_name)) return 0;
    in_name = letter;
  }
  return 1;
}

static const char* texts_wrong(const struct vamdgpu_description* d) {
  uint64_t at = sizeof(*d);
  for (uint32_t i = 0; i < d->num_texts; ++i) {
    const struct vamdgpu_text* text = (const struct vamdgpu_text*)((const char*)d + at);
    if (d->bytes - at < sizeof(*text)) return "cut off before its last text";
    if (text->path_bytes < 2 || text->path_bytes > VAMDGPU_MAX_PATH ||
        text->text_bytes > VAMDGPU_MAX_TEXT + 1)
      return "size of a text";
    if (d->bytes - at < text_bytes(text)) return "cut off within a text";
    if (!is_string(vamdgpu_text_path(text), text->path_bytes) ||
        !is_string(vamdgpu_text_contents(text), text->text_bytes))
      return "a string that is none";
    if (!is_path(vamdgpu_text_path(text))) return "path of a text";
    if (text->gpu > d->config.num_gpus) return "GPU of a text";
    at += text_bytes(text);
  }
  return at == d->bytes ? 0 : "bytes after its last text";
}

static const char* pci_wrong(const struct vamdgpu_description* d) {
  for (uint32_t i = 0; i < d->config.num_gpus; ++i) {
    const struct vamdgpu_pci* pci = &d->pci[i];
    if (pci->domain > 0xffff || pci->bus > 0xff || pci->revision > 0xff || pci->class_code > 0xffffff ||
        pci->device_id > 0xffff || pci->subsystem_vendor_id > 0xffff || pci->subsystem_device_id > 0xffff)
      return "PCI number of a GPU";
    if (pci->vendor_id == 0 || pci->vendor_id >= 0xffff) return "PCI vendor of a GPU";
    for (uint32_t j = 0; j < i; ++j) {
      if (d->pci[j].domain == pci->domain && d->pci[j].bus == pci->bus) return "two GPUs at one PCI address";
    }
  }
  return 0;
}

const char* vamdgpu_description_wrong(const void* file, uint64_t bytes) {
  const struct vamdgpu_description* d = file;
  const char* wrong;
  if (bytes < sizeof(*d)) return "shorter than its header";
  if (d->magic != VAMDGPU_DESCRIPTION_MAGIC) return "not a description";
  if (d->version != VAMDGPU_DESCRIPTION_VERSION || d->layout != VAMDGPU_DESCRIPTION_LAYOUT)
    return "made by another version of vamdgpu-load";
  if (d->bytes != bytes) return "of another size than it says";
  if (d->config.num_gpus == 0 || d->config.num_gpus > VAMDGPU_MAX_GPUS) return "number of GPUs";
  if (d->num_texts > VAMDGPU_MAX_TEXTS) return "number of texts";
  wrong = pci_wrong(d);
  return wrong ? wrong : texts_wrong(d);
}
