// tierup._native: the hot path as a Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define TIERUP_IMPORTS_NUMPY
#include "core_uses.hpp"
#include "huge_pages.hpp"
#include "machine.hpp"
#include "numpy_api.hpp"
#include "pool.hpp"
#include "python_code.hpp"
#include "python_errors.hpp"
#include "python_host.hpp"
#include "python_product.hpp"
#include "python_program.hpp"
#include "python_runner.hpp"
#include "python_values.hpp"
#include "rests.hpp"
#include "tensor.hpp"

namespace nb = nanobind;

namespace {

// Gives the system back what was freed; elsewhere the C library does so by itself, or not at all.
void trim_heap() {
  tierup::free_kept();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Of the first so many cores.
std::vector<uint64_t> core_uses(size_t cores) {
  std::vector<uint64_t> uses(std::min(cores, tierup::CoreUses::kMost));
  for (size_t core = 0; core < uses.size(); ++core) uses[core] = tierup::core_uses.of(core);
  return uses;
}

}  // namespace

NB_MODULE(_native, module) {
  // A model may well live until the process ends, in a daemon thread for one; that is nothing to print about.
  nb::set_leak_warnings(false);
  if (_import_array() < 0) throw nb::python_error();
  module.def("set_dtypes", &tierup::set_dtypes, nb::arg("dtypes"));
  module.def("set_call_error", &tierup::set_call_error, nb::arg("type"));
  module.def("set_threads", &tierup::set_threads, nb::arg("threads"), nb::call_guard<tierup::WithoutGil>());
  module.def("threads", &tierup::threads);
  module.def("hold_pool", [] { tierup::pool().hold(); }, nb::call_guard<tierup::WithoutGil>());
  module.def("let_pool_go", [] { tierup::pool().let_go(); });
  module.def("core_uses", &core_uses, nb::arg("cores"));
  module.def("trim_heap", &trim_heap, nb::call_guard<tierup::WithoutGil>());
  nb::class_<tierup::HugePages>(module, "HugePages")
      .def(nb::init<size_t>(), nb::arg("pages"))
      .def("take_place_of", &tierup::HugePages::take_place_of, nb::arg("address"),
           nb::call_guard<tierup::WithoutGil>())
      .def("give_back", &tierup::HugePages::give_back, nb::call_guard<tierup::WithoutGil>())
      .def_prop_ro("filling_s", &tierup::HugePages::filling_s);
  module.def("begin_rests", &tierup::begin_rests, nb::arg("least_share"));
  module.def("end_rests", &tierup::end_rests);
  tierup::bind_code(module);
  tierup::bind_program(module);
  tierup::bind_runner(module);
  tierup::bind_machine(module);
  tierup::bind_product(module);
}
