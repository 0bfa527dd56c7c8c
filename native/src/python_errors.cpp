#include "python_errors.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

// Never freed: it has to outlive every model.
PyObject* call_error = nullptr;

}  // namespace

PyObject* call_error_type() { return call_error != nullptr ? call_error : PyExc_RuntimeError; }

void set_call_error(nb::object type) { Py_XSETREF(call_error, type.release().ptr()); }

void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

}  // namespace tierup
