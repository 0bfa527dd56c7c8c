#include "python_observed.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "python_host.hpp"
#include "python_runner.hpp"
#include "python_values.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

nb::object shapes_of(const Signatures::Entry& entry) {
  nb::list shapes;
  for (size_t at = 0; at < entry.numbers.size();) {
    const int64_t rank = entry.numbers[at++];
    if (rank < 0) {
      shapes.append(nb::none());
      continue;
    }
    nb::list shape;
    for (int64_t axis = 0; axis < rank; ++axis) shape.append(entry.numbers[at++]);
    shapes.append(nb::tuple(shape));
  }
  return nb::tuple(shapes);
}

}  // namespace

nb::list Runner::signatures() const {
  nb::list all;
  for (const Signatures::Entry& entry : signatures_.entries()) {
    all.append(nb::make_tuple(shapes_of(entry), entry.calls));
  }
  return all;
}

nb::list Runner::times() const {
  nb::list all;
  std::vector<nb::object> shapes(signatures_.entries().size());
  for (size_t i = 0; i < times_.size(); ++i) {
    const CallTime& time = times_.at(i);
    const auto found = std::ranges::find(signatures_.entries(), time.signature, &Signatures::Entry::id);
    if (found == signatures_.entries().end()) continue;  // of a signature that was forgotten
    nb::object& known = shapes[static_cast<size_t>(found - signatures_.entries().begin())];
    if (!known.is_valid()) known = shapes_of(*found);
    all.append(nb::make_tuple(known, time.program, time.nanoseconds));
  }
  return all;
}

namespace {

// (slot, runs, nanoseconds, counts of the runs that were counted, how many those are)
nb::list regions_of(const WatchedCall& call, double ns) {
  nb::list regions;
  for (size_t slot = 0; slot < call.regions.size(); ++slot) {
    const RegionSpan& region = call.regions[slot];
    if (region.runs == 0) continue;
    nb::list counts;
    for (size_t i = 0; i < call.counters; ++i) counts.append(region.counts[i]);
    regions.append(nb::make_tuple(slot, region.runs, static_cast<double>(region.ticks) * ns, nb::tuple(counts),
                                  region.counted));
  }
  return regions;
}

nb::tuple as_tuple(const Statistics& found) {
  return nb::make_tuple(found.numbers, found.elements, found.looked, found.zeros, found.nonfinite, found.min, found.max,
                        found.hash);
}

nb::list inputs_of(const WatchedCall& call) {
  nb::list inputs;
  for (const InputLook& input : call.inputs) {
    if (input.tensor) {
      inputs.append(nb::make_tuple(input.same, as_tuple(input.statistics)));
    } else {
      inputs.append(nb::none());
    }
  }
  return inputs;
}

nb::tuple array_statistics(nb::handle array) {
  const Value value = from_python(nb::borrow(array), nullptr);
  const Tensor* tensor = as_tensor(value);
  if (tensor == nullptr || tensor->dtype == kString) throw nb::type_error("statistics are of arrays of numbers");
  return as_tuple(statistics_of(*tensor));
}

}  // namespace

nb::list Runner::take_watched() {
  nb::list all;
  for (const WatchedCall& call : watching_.take()) {
    const auto found = std::ranges::find(signatures_.entries(), call.signature, &Signatures::Entry::id);
    if (found == signatures_.entries().end()) continue;  // of a signature that was forgotten
    const double ns = ns_per_tick();
    all.append(nb::make_tuple(shapes_of(*found), call.program, static_cast<double>(call.taken) * ns,
                              static_cast<double>(call.overhead) * ns, regions_of(call, ns), inputs_of(call)));
  }
  return all;
}

void bind_observed(nb::module_& module) {
  module.def("statistics", &array_statistics, nb::arg("array"));
  module.def(
      "prepare_counters",
      [] {
        RegionCounters::instance().prepare();
        std::vector<std::string> names;
        for (const Counter& counter : RegionCounters::instance().usable()) names.emplace_back(counter.name);
        return names;
      },
      nb::call_guard<WithoutGil>());
}

}  // namespace tierup
