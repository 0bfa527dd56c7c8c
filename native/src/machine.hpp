// What this machine can do, measured: FMA peak, read bandwidth, fork-join latency.
// Nothing here knows Python except bind_machine; every measurement takes the CPUs it may use as an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nanobind {
class module_;
}

namespace tierup {

// The best of several short runs, all threads together.
struct Rate {
  double per_s;
  double quiet_share;  // CPU time ÷ wall time in that run: below 1, other work took some of the cores
};

// One pinned thread a CPU, started together. `bytes_each` is the working set of each thread; it is read in passes.
Rate measure_fma_flops(const std::vector<int>& cpus);
Rate measure_read_bytes(const std::vector<int>& cpus, std::size_t bytes_each);

// From the call of a parallel loop to its return, when every thread of a pool takes part: the best of several pools.
// Both are 0 if there is nothing to join: one thread, or a system that refuses more.
struct ForkJoin {
  double spinning_us = 0;  // the workers have just finished something and still spin
  double parked_us = 0;    // the workers sleep
  double quiet_share = 1;  // of the spinning loops: those in which every thread had a core
};
ForkJoin measure_fork_join(int threads);

// The measuring kernels, in the widest vectors that this CPU runs.
struct MachineKernels {
  const char* isa;
  std::int64_t flops_per_step;
  float (*fma_steps)(std::int64_t steps);
  std::uint64_t (*read_passes)(const std::byte* data, std::size_t bytes, std::int64_t passes);
};
constexpr std::size_t kReadBlockBytes = 1024;  // a working set is a multiple of this
const MachineKernels& machine_kernels();
std::vector<const MachineKernels*> runnable_machine_kernels();  // all that this CPU runs, widest first: for tests

// What CPUID calls the hypervisor ("KVMKVMKVM"), or "" where there is none or no CPUID.
std::string hypervisor_signature();

void bind_machine(nanobind::module_& module);

}  // namespace tierup
