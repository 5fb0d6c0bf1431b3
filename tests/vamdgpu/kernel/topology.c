/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * KFD's topology below the kfd device: directories and files with the texts of the description. A file of a
 * GPU whose render node the reader's device cgroup refuses can be opened, and reading it gives EPERM, as in
 * KFD.
 *
 * Built once when the module loads, taken down when it goes; sysfs waits for readers in between.
 */
#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "description.h"
#include "vam_machine.h"

struct topology_directory {
  struct kobject kobj;
  struct topology_directory* next; /* all of them, children before their parents */
  char path[VAMDGPU_MAX_PATH];     /* without slash at the end; the topology itself: "" */
};

struct topology_file {
  struct attribute attr;
  struct topology_file* next;
  const struct vam_machine* machine;
  const struct vamdgpu_text* text;
};

struct vam_topology {
  struct topology_directory* directories;
  struct topology_file* files;
};

static ssize_t show(struct kobject* kobj, struct attribute* attr, char* page) {
  const struct topology_file* f = container_of(attr, struct topology_file, attr);
  const int refused = f->text->gpu ? vam_gpu_allowed(f->machine, f->text->gpu - 1) : 0;

  return refused ? refused : sysfs_emit(page, "%s", vamdgpu_text_contents(f->text));
}

static void release(struct kobject* kobj) {
  kfree(container_of(kobj, struct topology_directory, kobj));
}

static const struct sysfs_ops show_text = {.show = show};
static const struct kobj_type directory_type = {.release = release, .sysfs_ops = &show_text};

static int make_directory(struct vam_topology* t, struct kobject* parent, const char* path, size_t bytes,
                          const char* name) {
  struct topology_directory* d = kzalloc(sizeof(*d), GFP_KERNEL);
  int err;

  if (!d) return -ENOMEM;
  memcpy(d->path, path, bytes);
  err = kobject_init_and_add(&d->kobj, (struct kobj_type*)&directory_type, parent, "%s", name);
  if (err) {
    kobject_put(&d->kobj);
    return err;
  }
  d->next = t->directories;
  t->directories = d;
  return 0;
}

static struct topology_directory* find_directory(const struct vam_topology* t, const char* path,
                                                 size_t bytes) {
  struct topology_directory* d;

  for (d = t->directories; d; d = d->next) {
    if (strlen(d->path) == bytes && !memcmp(d->path, path, bytes)) return d;
  }
  return NULL;
}

static int make_file(struct vam_machine* machine, struct topology_directory* d,
                     const struct vamdgpu_text* text, const char* name) {
  struct topology_file* f = kzalloc(sizeof(*f), GFP_KERNEL);

  if (!f) return -ENOMEM;
  sysfs_attr_init(&f->attr);
  f->attr.name = name;
  f->attr.mode = 0444;
  f->machine = machine;
  f->text = text;
  f->next = machine->topology->files;
  machine->topology->files = f;
  return sysfs_create_file(&d->kobj, &f->attr);
}

static int make(struct vam_machine* machine, const struct vamdgpu_text* text) {
  char path[VAMDGPU_MAX_PATH];
  size_t bytes = text->path_bytes - 1;
  const bool is_directory = vamdgpu_text_path(text)[bytes - 1] == '/';
  const char* slash;
  struct topology_directory* parent;

  strscpy(path, vamdgpu_text_path(text), sizeof(path));
  if (is_directory) path[--bytes] = 0;
  slash = strrchr(path, '/');
  parent = find_directory(machine->topology, path, slash ? (size_t)(slash - path) : 0);
  if (!parent) {
    pr_err("vamdgpu: description: %s comes before its directory\n", path);
    return -EINVAL;
  }
  if (is_directory)
    return make_directory(machine->topology, &parent->kobj, path, bytes, slash ? slash + 1 : path);
  return make_file(machine, parent, text, vamdgpu_text_path(text) + (slash ? slash + 1 - path : 0));
}

int vam_topology_create(struct vam_machine* machine, const struct vam_description* description) {
  const struct vamdgpu_text* text = NULL;
  int err;

  machine->topology = kzalloc(sizeof(*machine->topology), GFP_KERNEL);
  if (!machine->topology) return -ENOMEM;
  err = make_directory(machine->topology, &machine->kfd->kobj, "", 0, "topology");
  while (!err && (text = vamdgpu_text_next(&description->file, text))) err = make(machine, text);
  if (err) vam_topology_destroy(machine);
  return err;
}

void vam_topology_destroy(struct vam_machine* machine) {
  struct vam_topology* t = machine->topology;

  if (!t) return;
  /* Removing a directory removes its files and waits for who reads them. */
  while (t->directories) {
    struct topology_directory* d = t->directories;

    t->directories = d->next;
    kobject_del(&d->kobj);
    kobject_put(&d->kobj);
  }
  while (t->files) {
    struct topology_file* f = t->files;

    t->files = f->next;
    kfree(f);
  }
  kfree(t);
  machine->topology = NULL;
}
