/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Reads the file that says what machine the module is, and believes nothing of it before it is checked
 * (description_check.c). The buffer stays for the life of the module: topology's texts are shown out of it.
 */
#include "description.h"

#include <linux/kernel.h>
#include <linux/kernel_read_file.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "vam_machine.h"

int vam_description_read(const char* path, struct vam_description** out) {
  void* data = NULL;
  const char* wrong;
  ssize_t bytes;

  *out = NULL;
  if (!path || !*path) {
    pr_err("vamdgpu: description: parameter description=PATH is missing\n");
    return -EINVAL;
  }
  /* Security modules want to know what is read: this is what a device is told of itself. */
  bytes = kernel_read_file_from_path(path, 0, &data, VAMDGPU_MAX_DESCRIPTION, NULL, READING_FIRMWARE);
  if (bytes < 0) {
    pr_err("vamdgpu: description: %s cannot be read (%zd)\n", path, bytes);
    return (int)bytes;
  }
  wrong = vamdgpu_description_wrong(data, (size_t)bytes);
  if (wrong) {
    pr_err("vamdgpu: description: %s\n", wrong);
    vfree(data);
    return -EINVAL;
  }
  *out = data;
  return 0;
}

void vam_description_free(struct vam_description* description) {
  vfree(description);
}

const struct vamdgpu_machine_config* vam_description_config(const struct vam_description* description) {
  return &description->file.config;
}
