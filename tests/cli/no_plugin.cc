// SPDX-License-Identifier: MIT
// A library that says it is ours and has no plugin descriptor.
extern "C" const char no_plugin_identity[] = "sluice amdgpu_plugin 9.9";
