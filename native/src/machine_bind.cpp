// The Python face of the fingerprint: numbers in, numbers out, the GIL released while anything is timed.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "machine.hpp"
#include "perf_counters.hpp"
#include "python_host.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

using RateAndQuiet = std::pair<double, double>;

RateAndQuiet in_billions(const Rate& rate) { return {rate.per_s / 1e9, rate.quiet_share}; }

std::vector<std::pair<std::string, int>> counter_errors() {
  std::vector<std::pair<std::string, int>> errors;
  for (const CounterProbe& probe : probe_counters(hardware_counters())) errors.emplace_back(probe.name, probe.error);
  return errors;
}

}  // namespace

void bind_machine(nb::module_& module) {
  using NoGil = nb::call_guard<WithoutGil>;
  module.def(
      "machine_fma_gflops", [](const std::vector<int>& cpus) { return in_billions(measure_fma_flops(cpus)); },
      nb::arg("cpus"), NoGil(), "The f32 FMA peak of one thread on each CPU, and the share of the cores it got.");
  module.def(
      "machine_read_gbytes_per_s",
      [](const std::vector<int>& cpus, std::size_t bytes_each) {
        return in_billions(measure_read_bytes(cpus, bytes_each));
      },
      nb::arg("cpus"), nb::arg("bytes_each"), NoGil(),
      "How fast one thread on each CPU reads a working set of its own, and the share of the cores it got.");
  module.def(
      "machine_fork_join_us",
      [](int threads) {
        const ForkJoin latency = measure_fork_join(threads);
        return std::tuple{latency.spinning_us, latency.parked_us, latency.quiet_share};
      },
      nb::arg("threads"), NoGil(),
      "The latency of a parallel loop, workers spinning and parked (zeros if alone), and the share of the cores.");
  module.def(
      "machine_counter_errors", counter_errors, NoGil(),
      "(name, errno) of each hardware counter; 0 if it counts, ENODATA if it opens but does not count.");
  module.def(
      "machine_vector_isa", [] { return std::string(machine_kernels().isa); }, "The vectors that were measured.");
  module.def("machine_hypervisor", hypervisor_signature, "CPUID's name for the hypervisor; empty if there is none.");
}

}  // namespace tierup
