// Values between Python and native code.
#pragma once

#include <nanobind/nanobind.h>

#include "python_host.hpp"
#include "tensor.hpp"

namespace tierup {

// The NumPy type of each code, as Python gives it: ml_dtypes registers its types at run time. Kept for good.
void set_dtypes(const nanobind::dict& dtypes);

// The code of an array's element type, -1 if it has none or is in foreign byte order.
int32_t dtype_code(PyObject* array);

// An array of a known type as a tensor over the array's own memory.
Ref<Tensor> tensor_over(nanobind::object array, int32_t dtype, Gil* gil);

// Arrays and NumPy scalars become tensors, everything else stays a host object.
Value from_python(nanobind::object object, Gil* gil);

// A value as a call-out gets it. What came from Python is passed as it came; native memory is wrapped, and kept alive
// by the wrapper; what lies in an arena is copied.
nanobind::object as_argument(Object& value, Gil& gil);

// A value as the caller gets it: his alone, sharing memory with nothing.
nanobind::object as_output(Value value);

}  // namespace tierup
