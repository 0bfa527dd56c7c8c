#include "python_host.hpp"

#include <chrono>

#include <nanobind/nanobind.h>

#include "python_values.hpp"

namespace nb = nanobind;

namespace tierup {

void Gil::acquire() {
  if (!held()) {
    in_python([&] { PyEval_RestoreThread(saved_); });
    saved_ = nullptr;
  }
  // Destructors may run code that drops more.
  while (!dropped_.empty()) {
    PyObject* object = dropped_.back();
    dropped_.pop_back();
    drop_reference(object);
  }
}

void Gil::drop(PyObject* object) noexcept {
  if (held()) {
    drop_reference(object);
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
  const auto results = nb::steal(
      in_python([&] { return PyObject_Vectorcall(callable, arguments.data(), arguments.size(), nullptr); }));
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

// Signals are seen to, and another thread that waits for the GIL gets it.
// Who waits for the GIL asks for it after 5 ms, and only then is it handed over: released for a moment more often than
// that, it is taken back before the other has woken up, and no request is ever made.
void PythonHost::take_turns() {
  const auto now = std::chrono::steady_clock::now();
  if (now - turned_ < std::chrono::milliseconds(8)) return;
  turned_ = now;
  gil_.acquire();
  if (in_python([] { return PyErr_CheckSignals(); }) != 0) throw nb::python_error();
  gil_.release();
  gil_.acquire();
}

}  // namespace tierup
