// SPDX-License-Identifier: MIT
// One emulated GPU for one QEMU, which connects to it as to any vfio-user device:
//
//   amdgpu-card --socket PATH [--model NAME] [--vram SIZE] [--control PATH] [--trace PATH] [--peers DIR]
//   [--name NAME]
//
// It says "listening" on standard output when QEMU may connect, and goes when QEMU goes. What it finds wrong
// comes on standard error. Exit status 0; 1 when something failed, or QEMU did not speak the protocol; 2 for
// a wrong usage.
#include <CLI/CLI.hpp>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "base/units.h"
#include "boot/vbios.h"
#include "bus/serve.h"
#include "control/mailbox.h"
#include "gpu.h"
#include "models/model.h"

namespace {

using sluice::Result;

struct Options {
  std::string socket;
  std::string control;
  std::string trace;
  std::string peers;
  std::string model = "mi210";
  std::string name = "amdgpu-card";
  std::uint64_t vram = 512 * sluice::kMiB;
};

Result<void> run(const Options& options) {
  namespace card = sluice::card;
  card::Trace trace;
  if (!options.trace.empty()) SLUICE_TRY(trace.open(options.trace));
  SLUICE_TRY_ASSIGN(card::Vram vram, card::Vram::make(options.vram));
  const card::Model& model = *card::find_model(options.model);
  const std::vector<std::byte> rom = card::make_vbios(model);
  card::PciConfig config(model, options.vram, rom.size());
  card::DmaMaps maps;
  card::Peers peers(options.peers);
  card::Msi msi;
  card::Gpu gpu(model, vram.bytes(), maps, msi, trace);
  card::Control control(gpu.faults(), gpu.counters(), vram.bytes(), trace);
  card::Mailbox device(gpu, control);
  card::VfioUser session({device, vram, config, maps, peers, msi, rom, trace});
  card::Service service;
  if (!options.control.empty()) {
    SLUICE_TRY_ASSIGN(service.commands, card::listen_at(options.control));
  }
  SLUICE_TRY_ASSIGN(service.socket, card::listen_at(options.socket));
  (void)std::puts("listening");
  (void)std::fflush(stdout);
  return serve(std::move(service), session, device, control);
}

// What is wrong with the size of VRAM; nothing: it is a BAR's.
std::string vram_fault(const std::string& text) {
  std::uint64_t bytes = 0;
  if (!CLI::detail::lexical_cast(text, bytes)) return {};  // said already
  if (std::has_single_bit(bytes) && bytes >= 16 * sluice::kMiB && bytes <= 256 * sluice::kGiB) return {};
  return "VRAM is a power of two from 16M to 256G";
}

// What is wrong with the name of a model; nothing: there is one.
std::string model_fault(const std::string& text) {
  return sluice::card::find_model(text) == nullptr ? "there is no such model" : std::string();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    CLI::App app("One emulated GPU for one QEMU (vfio-user-pci)", "amdgpu-card");
    app.add_option("--socket", options.socket, "where QEMU connects")->required()->type_name("PATH");
    app.add_option("--model", options.model, "which GPU it is: mi210, mi300x (mi210)")
        ->type_name("NAME")
        ->check(CLI::Validator(model_fault, "", "model"));
    app.add_option("--vram", options.vram, "memory of the card, a power of two; M, G (512M)")
        ->type_name("SIZE")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Validator(vram_fault, "", "vram"));
    app.add_option("--control", options.control, "socket for faults and counters (control/control.h)")
        ->type_name("PATH");
    app.add_option("--trace", options.trace, "what the card does, by name")->type_name("PATH");
    app.add_option("--peers", options.peers, "directory of all cards of the machine, for P2P (bus/peers.h)")
        ->type_name("DIR")
        ->check(CLI::ExistingDirectory);
    app.add_option("--name", options.name, "in messages (amdgpu-card)")->type_name("NAME");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    const Result<void> ended = run(options);
    if (ended) return 0;
    std::fprintf(stderr, "%s: %s\n", options.name.c_str(), ended.error().what.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "amdgpu-card: %s\n", error.what());
  }
  return 1;
}
