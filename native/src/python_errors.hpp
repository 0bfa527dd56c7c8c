// What calls raise.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace tierup {

// The type of the error that a call which its inputs do not fit ends with; RuntimeError until it is set.
PyObject* call_error_type();
void set_call_error(nanobind::object type);

[[noreturn]] void raise(PyObject* type, const std::string& message);

}  // namespace tierup
