// SPDX-License-Identifier: MIT
// Another's plugin for amdgpu, which does nothing. With VERSION its descriptor has an implementation version,
// as in development sources of CRIU.
namespace {

struct Descriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int ret);
  unsigned version, max_hooks;
  void* hooks[10];
#ifdef VERSION
  unsigned implementation_version = VERSION;
#endif
};

}  // namespace

extern "C" {

extern Descriptor CR_PLUGIN_DESC;
Descriptor CR_PLUGIN_DESC = {"amdgpu_plugin", nullptr, nullptr, 0x200, 10, {}};
#ifdef VERSION
extern const unsigned CR_PLUGIN_DESC_SIZE;
const unsigned CR_PLUGIN_DESC_SIZE = sizeof(Descriptor);
#endif
}
