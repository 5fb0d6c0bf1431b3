// SPDX-License-Identifier: MIT
#include "pipeline/checksum/mac.h"

#include <dlfcn.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cassert>
#include <cerrno>
#include <new>

#include "base/format.h"

namespace sluice {

namespace {

// Both are the same in OpenSSL 1.1 and 3.
struct Library {
  decltype(&::HMAC) hmac = nullptr;
  decltype(&::EVP_sha256) sha256 = nullptr;
};

Library& library() {
  static Library loaded;
  return loaded;
}

}  // namespace

Result<void> load_mac() {
  if (library().hmac != nullptr) return {};
  void* handle = ::dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) handle = ::dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL);
  const char* const reason = handle == nullptr ? ::dlerror() : "it lacks HMAC or EVP_sha256";
  Library found;
  if (handle != nullptr) {
    found.hmac = reinterpret_cast<decltype(found.hmac)>(::dlsym(handle, "HMAC"));
    found.sha256 = reinterpret_cast<decltype(found.sha256)>(::dlsym(handle, "EVP_sha256"));
  }
  if (found.hmac == nullptr || found.sha256 == nullptr) {
    return Error{
        ELIBACC,
        formatted("SLUICE_KEY_FILE needs OpenSSL's libcrypto, which cannot be loaded ({}); install libssl3 "
                  "[SL-S02]",
                  reason == nullptr ? "unknown reason" : reason)};
  }
  library() = found;
  (void)mac_of({}, MacKey{});  // reads openssl.cnf and sets up its tables now
  return {};
}

Mac mac_of(std::span<const std::byte> bytes, const MacKey& key) {
  assert(library().hmac != nullptr);
  Mac mac{};
  unsigned size = mac.size();
  if (library().hmac(library().sha256(), key.data(), static_cast<int>(key.size()),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), mac.data(),
                     &size) == nullptr)
    throw std::bad_alloc();  // unreached: does not fail
  return mac;
}

}  // namespace sluice
