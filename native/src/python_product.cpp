// The Python face of products: NumPy arrays in, the result written where it is wanted.
#include "python_product.hpp"

#include "numpy_api.hpp"
#include "product.hpp"
#include "python_errors.hpp"
#include "python_host.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

// A matrix of f32 in this machine's order of bytes.
PyArrayObject* matrix(nb::handle object, const char* what) {
  auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
  if (!PyArray_Check(object.ptr()) || PyArray_NDIM(array) != 2 || PyArray_TYPE(array) != NPY_FLOAT ||
      !PyArray_ISNOTSWAPPED(array)) {
    raise(PyExc_ValueError, what);
  }
  return array;
}

void multiply_arrays(nb::handle left_object, nb::handle right_object, nb::handle result_object) {
  PyArrayObject* left = matrix(left_object, "the left side is no matrix of f32");
  PyArrayObject* right = matrix(right_object, "the right side is no matrix of f32");
  PyArrayObject* result = matrix(result_object, "the result is no matrix of f32");
  if (!PyArray_IS_C_CONTIGUOUS(left)) {
    raise(PyExc_ValueError, "the left side has to be dense");
  }
  const npy_intp rows = PyArray_DIM(left, 0), inner = PyArray_DIM(left, 1), columns = PyArray_DIM(right, 1);
  if (PyArray_DIM(right, 0) != inner || PyArray_DIM(result, 0) != rows || PyArray_DIM(result, 1) != columns) {
    raise(PyExc_ValueError, "the sizes of the matrices do not fit");
  }
  if (columns > 1 && PyArray_STRIDE(right, 1) != sizeof(float)) {
    raise(PyExc_ValueError, "rows of the right side have to be dense");
  }
  const bool apart = rows < 2 || PyArray_STRIDE(result, 0) >= columns * static_cast<npy_intp>(sizeof(float));
  const bool dense = columns < 2 || PyArray_STRIDE(result, 1) == sizeof(float);
  if (!PyArray_ISBEHAVED(result) || !dense || !apart) {
    raise(PyExc_ValueError, "rows of the result have to be dense, one behind the other");
  }
  const Product product{static_cast<const std::byte*>(PyArray_DATA(left)),
                        static_cast<const std::byte*>(PyArray_DATA(right)),
                        PyArray_STRIDE(right, 0),
                        static_cast<float*>(PyArray_DATA(result)),
                        PyArray_STRIDE(result, 0) / static_cast<npy_intp>(sizeof(float)),
                        rows,
                        inner,
                        columns};
  const WithoutGil others_run;
  multiply(product);
}

}  // namespace

void bind_product(nb::module_& module) {
  module.def("multiply", &multiply_arrays, nb::arg("left"), nb::arg("right"), nb::arg("result"));
}

}  // namespace tierup
