// SPDX-License-Identifier: MIT
// linux/kfd_ioctl.h includes <drm/drm.h>, which Debian ships as <libdrm/drm.h> only.
#pragma once
#include <libdrm/drm.h>
