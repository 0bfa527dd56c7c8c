#include "python_code.hpp"

#include <nanobind/stl/vector.h>

#include <system_error>
#include <vector>

#include "code.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

void load_code(Code* self, const std::vector<nb::bytes>& images) {
  std::vector<std::span<const std::byte>> views;
  for (const nb::bytes& image : images) views.emplace_back(static_cast<const std::byte*>(image.data()), image.size());
  try {
    new (self) Code(views);
  } catch (const std::system_error& error) {
    nb::object arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw nb::python_error();
  }
}

}  // namespace

void bind_code(nb::module_& module) {
  nb::class_<Code>(module, "Code")
      .def("__init__", &load_code, nb::arg("images"))
      .def_prop_ro("addresses", &Code::addresses)
      .def_prop_ro("bytes", &Code::bytes);
}

}  // namespace tierup
