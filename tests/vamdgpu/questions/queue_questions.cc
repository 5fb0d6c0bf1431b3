// SPDX-License-Identifier: MIT
// Questions to /dev/kfd about queues of a process: which buffers CREATE_QUEUE takes, and what else is done to
// a queue.
#include "kfd_call.h"

namespace vamdgpu::questions {
namespace {

// CREATE_QUEUE; a queue that is made is destroyed again.
std::string tried(const Kfd& kfd, Args args) {
  const int error = questions::kfd(kfd.fd, 0x02, args);
  if (error != 0) return name_of(error);
  const int destroyed = destroy_queue(kfd, args.get32(52));
  return destroyed == 0 ? "ok" : "ok, destroyed: " + name_of(destroyed);
}

// CREATE_QUEUE with one buffer replaced by another mapping, which is taken down afterwards.
std::string tried_with(const Kfd& kfd, const Args& args, unsigned at, std::uint64_t va, std::uint64_t bytes,
                       std::uint64_t inside = 0, std::uint32_t flags = kAllocGtt | kWritable) {
  const Memory memory = mapped(kfd, va, bytes, flags);
  if (memory.handle == 0) return "no memory: " + name_of(memory.error);
  Args changed = args;
  std::string answer = tried(kfd, changed.u64(at, va + inside));
  unmap_from_gpu(kfd, memory);
  free_memory(kfd, memory);
  return answer;
}

}  // namespace

void ask_queues(List& list) {
  const Kfd kfd = open_kfd(list);
  if (kfd.fd < 0) return;
  const QueueBuffers buffers = queue_buffers(kfd, kKfdVa);
  if (!buffers.made()) return list.fail("buffers of a queue");
  const SaveArea area = save_area(kfd.gpu);
  const Args sdma = create_queue(kfd, buffers, kSdma), aql = create_queue(kfd, buffers, kAql);
  constexpr unsigned kRing = 0, kWritePointer = 8, kReadPointer = 16, kEop = 56, kArea = 72;
  const std::uint64_t elsewhere = kKfdVa + 0x40000000;
  const auto changed = [](Args args, unsigned at, std::uint64_t value) { return args.u32(at, value); };

  list.ask("ctl_stack_size of the node, as the kernel's formula has it",
           kfd.gpu.property("ctl_stack_size") == area.ctl_stack_bytes ? "the same"
           : kfd.gpu.properties.count("ctl_stack_size") == 0          ? "not told"
                                                                      : "another",
           {"not told", "the same", "the same"});
  list.ask("cwsr_size of the node, as the kernel's formula has it",
           kfd.gpu.property("cwsr_size") == area.ctx_bytes ? "the same"
           : kfd.gpu.properties.count("cwsr_size") == 0    ? "not told"
                                                           : "another",
           {"not told", "the same", "the same"});
  list.ask("CREATE_QUEUE, SDMA", tried(kfd, sdma), "ok");
  list.ask("CREATE_QUEUE, AQL", tried(kfd, aql), "ok");
  list.ask("CREATE_QUEUE, compute", tried(kfd, create_queue(kfd, buffers, kCompute)), "ok");
  list.ask("CREATE_QUEUE, SDMA over XGMI", tried(kfd, create_queue(kfd, buffers, kSdmaXgmi)), "ok");
  list.ask("CREATE_QUEUE, SDMA of engine 0", tried(kfd, create_queue(kfd, buffers, kSdmaByEngine)),
           {"errno 524", "ok", "ok"});
  list.ask("CREATE_QUEUE, SDMA of engine 4",
           tried(kfd, changed(create_queue(kfd, buffers, kSdmaByEngine), 88, 4)), {"errno 524", "ok", "ok"});
  list.ask("CREATE_QUEUE, SDMA of engine 5",
           tried(kfd, changed(create_queue(kfd, buffers, kSdmaByEngine), 88, 5)),
           {"errno 524", "EINVAL", "EINVAL"});
  list.ask(
      "CREATE_QUEUE, argument of 88 bytes",
      [&] {
        Args args(88);
        for (unsigned at = 0; at < 88; at += 8) args.u64(at, sdma.get64(at));
        return tried(kfd, args);
      }(),
      "ok");
  list.ask("CREATE_QUEUE, share of 0 %", tried(kfd, changed(sdma, 44, 0)), "ok");
  list.ask("CREATE_QUEUE, no ring", tried(kfd, Args(sdma).u64(kRing, 0).u32(32, 0)),
           {"ok", "EINVAL", "EINVAL"});
  // The ring.
  list.ask("CREATE_QUEUE, ring that is not mapped", tried(kfd, Args(sdma).u64(kRing, elsewhere)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, ring in a mapping of two pages", tried_with(kfd, sdma, kRing, elsewhere, 2 * kPage),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, ring in a mapping's second page",
           tried_with(kfd, sdma, kRing, elsewhere, 2 * kPage, kPage), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, ring of two pages in a mapping of one", tried(kfd, changed(sdma, 32, 2 * kPage)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, ring of 1024 bytes", tried(kfd, changed(sdma, 32, 1024)), "ok");
  list.ask("CREATE_QUEUE, ring of 1024 bytes in a mapping of two pages",
           tried_with(kfd, changed(sdma, 32, 1024), kRing, elsewhere, 2 * kPage), {"ok", "ok", "EINVAL"});
  list.ask("CREATE_QUEUE, ring of 512 bytes", tried(kfd, changed(sdma, 32, 512)), "ok");
  // Pointers.
  list.ask("CREATE_QUEUE, write pointer that is not mapped",
           tried(kfd, Args(sdma).u64(kWritePointer, elsewhere)), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, write pointer inside its page",
           tried(kfd, Args(sdma).u64(kWritePointer, buffers.write_pointer.va + 0x100)), "ok");
  list.ask("CREATE_QUEUE, write pointer in a mapping of two pages",
           tried_with(kfd, sdma, kWritePointer, elsewhere, 2 * kPage), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, write pointer in a mapping's second page",
           tried_with(kfd, sdma, kWritePointer, elsewhere, 2 * kPage, kPage), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, read pointer that is not mapped",
           tried(kfd, Args(sdma).u64(kReadPointer, elsewhere)), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, read pointer in a mapping of two pages",
           tried_with(kfd, sdma, kReadPointer, elsewhere, 2 * kPage), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, both pointers in one page",
           tried(kfd, Args(sdma).u64(kReadPointer, buffers.write_pointer.va + 0x80)), "ok");
  // EOP buffer, control stack and save area of compute queues.
  list.ask("CREATE_QUEUE, AQL, no EOP buffer", tried(kfd, Args(aql).u64(kEop, 0).u64(64, 0)), "ok");
  list.ask("CREATE_QUEUE, AQL, EOP buffer of 2048 bytes", tried(kfd, Args(aql).u64(64, 2048)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, EOP buffer in a mapping of two pages",
           tried_with(kfd, aql, kEop, elsewhere, 2 * kPage), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, EOP buffer of two pages",
           tried_with(kfd, Args(aql).u64(64, 2 * kPage), kEop, elsewhere, 2 * kPage), "ok");
  list.ask("CREATE_QUEUE, AQL, EOP buffer that is not mapped", tried(kfd, Args(aql).u64(kEop, elsewhere)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, control stack a page larger",
           tried(kfd, changed(aql, 84, area.ctl_stack_bytes + kPage)), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, no control stack", tried(kfd, changed(aql, 84, 0)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, save area a page smaller",
           tried(kfd, changed(aql, 80, area.ctx_bytes - kPage)), {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, save area a page larger", tried(kfd, changed(aql, 80, area.ctx_bytes + kPage)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, no save area", tried(kfd, changed(Args(aql).u64(kArea, 0), 80, 0)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, save area that is not mapped", tried(kfd, Args(aql).u64(kArea, elsewhere)),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, save area without the debugger's bytes",
           tried_with(kfd, aql, kArea, elsewhere, (area.ctx_bytes + kPage - 1) & ~(kPage - 1), 0,
                      kAllocVram | kWritable),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, save area in a mapping that is a page larger",
           tried_with(kfd, aql, kArea, elsewhere, area.whole() + kPage, 0, kAllocVram | kWritable),
           {"ok", "EINVAL", "EINVAL"});
  list.ask("CREATE_QUEUE, AQL, save area and size a page larger",
           tried_with(kfd, changed(aql, 80, area.ctx_bytes + kPage), kArea, elsewhere, area.whole() + kPage,
                      0, kAllocVram | kWritable),
           "ok");

  // A queue that stays.
  Args made = aql;
  if (questions::kfd(kfd.fd, 0x02, made) != 0) return list.fail("a queue that stays");
  const std::uint32_t queue = made.get32(52);
  list.ask("the first queue's number, after others were destroyed", std::to_string(queue), "0");
  list.ask("doorbell offset: type", hex(made.get64(24) >> 62), "0x3");
  list.ask("doorbell offset: GPU", (made.get64(24) >> 46 & 0xffff) == kfd.gpu.id ? "the gpu_id" : "another",
           "the gpu_id");
  list.ask("doorbell offset: inside the process's page", hex(made.get64(24) & 0x1fff), "0");
  Args second = sdma;
  list.ask("CREATE_QUEUE, SDMA, beside another queue", name_of(questions::kfd(kfd.fd, 0x02, second)), "ok");
  list.ask("its number", std::to_string(second.get32(52)), "1");
  list.ask("its doorbell, inside the page", hex(second.get64(24) & 0x1fff), "0x800");
  list.ask("UNMAP_MEMORY of a queue's ring", name_of(unmap_from_gpu(kfd, buffers.ring)),
           {"ok", "EBUSY", "EBUSY"});
  map_to_gpu(kfd, buffers.ring);
  list.ask("FREE_MEMORY of a queue's ring", name_of(free_memory(kfd, buffers.ring)), "EBUSY");
  list.ask(
      "UPDATE_QUEUE, share of 0 %",
      asked(kfd.fd, 0x07, Args(24).u64(0, buffers.ring.va).u32(8, queue).u32(12, 4096).u32(16, 0).u32(20, 7)),
      "ok");
  list.ask("UPDATE_QUEUE",
           asked(kfd.fd, 0x07,
                 Args(24).u64(0, buffers.ring.va).u32(8, queue).u32(12, 4096).u32(16, 100).u32(20, 7)),
           "ok");
  list.ask("UPDATE_QUEUE, priority 16",
           asked(kfd.fd, 0x07,
                 Args(24).u64(0, buffers.ring.va).u32(8, queue).u32(12, 4096).u32(16, 100).u32(20, 16)),
           "EINVAL");
  list.ask(
      "UPDATE_QUEUE, ring that is not mapped",
      asked(kfd.fd, 0x07, Args(24).u64(0, elsewhere).u32(8, queue).u32(12, 4096).u32(16, 100).u32(20, 7)),
      {"ok", "EFAULT", "EFAULT"});
  list.ask("UPDATE_QUEUE, ring back",
           asked(kfd.fd, 0x07,
                 Args(24).u64(0, buffers.ring.va).u32(8, queue).u32(12, 4096).u32(16, 100).u32(20, 7)),
           "ok");
  const std::uint32_t mask[4] = {~0U, ~0U, ~0U, ~0U};
  list.ask("SET_CU_MASK, 33 bits", asked(kfd.fd, 0x1a, Args(16).u32(0, queue).u32(4, 33).pointer(8, mask)),
           "EINVAL");
  list.ask("SET_CU_MASK, 128 bits", asked(kfd.fd, 0x1a, Args(16).u32(0, queue).u32(4, 128).pointer(8, mask)),
           "ok");
  list.ask("GET_QUEUE_WAVE_STATE of a queue that runs",
           asked(kfd.fd, 0x1b, Args(24).u64(0, buffers.area.va).u32(16, queue)), "EINVAL");
  list.ask("ALLOC_QUEUE_GWS", asked(kfd.fd, 0x1e, Args(16).u32(0, queue).u32(4, 64)), "ok");
  list.ask("SET_XNACK_MODE, off, with a queue", asked(kfd.fd, 0x21, Args(4)), {"EPERM", "EPERM", "EBUSY"},
           "EBUSY", kWithSvm);
  list.ask("RUNTIME_ENABLE with a queue", asked(kfd.fd, 0x25, Args(16).u32(8, 1)),
           {"ENOTTY", "EEXIST", "EEXIST"});
  list.ask("RUNTIME_ENABLE, off, with a queue", asked(kfd.fd, 0x25, Args(16)), {"ENOTTY", "ok", "ok"});
  list.ask("DESTROY_QUEUE", name_of(destroy_queue(kfd, queue)), "ok");
  list.ask("DESTROY_QUEUE again", name_of(destroy_queue(kfd, queue)), "EINVAL");
  list.ask(
      "CREATE_QUEUE gives the lowest number again",
      [&] {
        Args third = sdma;
        const std::string made_third = name_of(questions::kfd(kfd.fd, 0x02, third));
        return made_third + " " + std::to_string(third.get32(52));
      }(),
      "ok 0");
}

}  // namespace vamdgpu::questions
