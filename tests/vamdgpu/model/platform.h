/* SPDX-License-Identifier: MIT */
/*
 * The few things the device model takes from its surroundings: fixed-width types, three memory functions and
 * errno numbers (Linux x86-64 values, so that no header of the surroundings is needed). The model makes no OS
 * call and allocates nothing.
 */
#ifndef VAM_PLATFORM_H
#define VAM_PLATFORM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define VAM_STATIC_ASSERT(condition, what) static_assert(condition, what)
#else
#define VAM_STATIC_ASSERT(condition, what) _Static_assert(condition, what)
#endif

#define VAM_PAGE 4096ull /* the GPU's page, whatever the CPU's is */

enum vam_errno {
  VAM_EPERM = 1,
  VAM_ENOENT = 2,
  VAM_ESRCH = 3,
  VAM_EINTR = 4,
  VAM_EIO = 5,
  VAM_EBADF = 9,
  VAM_EAGAIN = 11,
  VAM_ENOMEM = 12,
  VAM_EACCES = 13,
  VAM_EFAULT = 14,
  VAM_EBUSY = 16,
  VAM_EEXIST = 17,
  VAM_ENODEV = 19,
  VAM_EINVAL = 22,
  VAM_ENFILE = 23,
  VAM_ENOTTY = 25,
  VAM_ENOSPC = 28,
  VAM_ERANGE = 34,
  VAM_ENODATA = 61,
  VAM_ETIME = 62,
  VAM_EOPNOTSUPP = 95,
  VAM_EADDRINUSE = 98,
  VAM_EALREADY = 114,
  VAM_ECANCELED = 125,
  VAM_ENOTSUPP = 524
};

#endif
