#include "python_host.hpp"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include "python_values.hpp"

namespace nb = nanobind;

namespace tierup {

void Gil::acquire() {
  if (!held()) {
    try {
      PyEval_RestoreThread(saved_);
    } catch (...) {
      // Python before 3.14 ends daemon threads that come back during its finalisation by unwinding their stack. Nothing
      // of ours may be destroyed then, so the thread stops here, as later Pythons have it; the process is ending.
      for (;;) pause();
    }
    saved_ = nullptr;
  }
  // Destructors may run code that drops more.
  while (!dropped_.empty()) {
    PyObject* object = dropped_.back();
    dropped_.pop_back();
    Py_DECREF(object);
  }
}

void Gil::drop(PyObject* object) noexcept {
  if (held()) {
    Py_DECREF(object);
    return;
  }
  try {
    dropped_.push_back(object);
  } catch (const std::bad_alloc&) {
    // Leaked: there is neither room to remember it nor the right to free it.
  }
}

void PythonHost::call_out(int32_t callout, std::span<Object* const> ins, std::span<Value* const> outs) {
  gil_.acquire();
  std::vector<nb::object> held;
  std::vector<PyObject*> arguments;
  held.reserve(ins.size());
  arguments.reserve(ins.size());
  for (Object* in : ins) {
    held.push_back(in == nullptr ? nb::none() : as_argument(*in, gil_));
    arguments.push_back(held.back().ptr());
  }
  PyObject* callable = callouts_[static_cast<size_t>(callout)];
  const auto results = nb::steal(PyObject_Vectorcall(callable, arguments.data(), arguments.size(), nullptr));
  if (!results.is_valid()) throw nb::python_error();
  if (!PyTuple_CheckExact(results.ptr()) || static_cast<size_t>(PyTuple_GET_SIZE(results.ptr())) != outs.size()) {
    PyErr_Format(PyExc_TypeError, "call-out %d (%R) has to return a tuple of %zu results, it returned %R", callout,
                 callable, outs.size(), results.ptr());
    throw nb::python_error();
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    if (outs[i] == nullptr) continue;
    *outs[i] = from_python(nb::borrow(PyTuple_GET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i))), &gil_);
  }
}

}  // namespace tierup
