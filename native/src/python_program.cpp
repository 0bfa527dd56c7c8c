#include "python_program.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "error.hpp"
#include "python_values.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

using Numbers = std::vector<int64_t>;
using FunctionTuple =
    std::tuple<int64_t, int64_t, Numbers, Numbers, std::vector<std::array<int64_t, 5>>, std::vector<Numbers>>;

std::vector<FunctionText> read_functions(const nb::list& functions) {
  std::vector<FunctionText> texts;
  for (nb::handle function : functions) {
    FunctionTuple parts;
    if (!nb::try_cast(function, parts)) {
      const std::string place = "function " + std::to_string(texts.size());
      throw InvalidProgram(place + " is no (n_values, n_dims, inputs, outputs, dim_code, steps) of 64-bit integers");
    }
    auto& [n_values, n_dims, inputs, outputs, dim_code, steps] = parts;
    texts.push_back({n_values, n_dims, std::move(inputs), std::move(outputs), std::move(dim_code), std::move(steps)});
  }
  return texts;
}

std::vector<Value> read_constants(const nb::list& constants) {
  std::vector<Value> values;
  for (nb::handle constant : constants) values.push_back(from_python(nb::borrow(constant), nullptr));
  return values;
}

PyObject* python_object(const Value& constant) {
  const Value& host = constant->kind == Kind::tensor ? static_cast<Tensor&>(*constant).host : constant;
  return static_cast<PythonObject&>(*host).object;
}

int traverse_program(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<PythonProgram>(self)->traverse(visit, arg) : 0;
}

int clear_program(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PythonProgram>(self)->clear();
  return 0;
}

}  // namespace

PythonProgram::PythonProgram(const nb::list& functions, const nb::list& called, const nb::list& constants,
                             int64_t slot_count)
    : program(build_program(read_functions(functions), static_cast<int64_t>(called.size()), read_constants(constants),
                            slot_count)),
      slots(static_cast<size_t>(program.slots)) {
  for (nb::handle callout : called) {
    if (!PyCallable_Check(callout.ptr())) {
      const std::string place = "call-out " + std::to_string(callouts.size());
      drop_callouts();
      throw InvalidProgram(place + " cannot be called");
    }
    callouts.push_back(nb::borrow(callout).release().ptr());
  }
}

void PythonProgram::publish(const nb::dict& kernels) {
  std::vector<std::pair<size_t, Slot>> changes;
  for (auto [key, value] : kernels) {
    const auto slot = nb::cast<int64_t>(key);
    const auto [address, code] = nb::cast<std::tuple<uintptr_t, nb::object>>(value);
    if (slot < 0 || slot >= program.slots) {
      throw nb::index_error(
          ("slot " + std::to_string(slot) + ", but there are " + std::to_string(program.slots)).c_str());
    }
    // Tables die while the GIL is held: a call drops its snapshot at its end, and publishing is done from Python.
    std::shared_ptr<void> keep(nb::object(code).release().ptr(),
                               [](void* held) { Py_DECREF(static_cast<PyObject*>(held)); });
    changes.emplace_back(static_cast<size_t>(slot), Slot{reinterpret_cast<KernelFn>(address), std::move(keep)});
  }
  slots.publish(changes);
}

nb::list PythonProgram::kernel_addresses() const {
  nb::list addresses;
  for (const Slot& slot : *slots.snapshot()) addresses.append(reinterpret_cast<uintptr_t>(slot.kernel));
  return addresses;
}

void PythonProgram::time_kernels(bool on) {
  timing_ = on;
  if (on) times_ = std::make_shared<StepTimes>(program);
}

nb::list PythonProgram::kernel_times() const {
  nb::list timed;
  for (size_t function = 0; times_ != nullptr && function < program.functions.size(); ++function) {
    for (size_t step = 0; step < program.functions[function].steps.size(); ++step) {
      const StepTimes::Entry& entry = times_->at(function, step);
      const uint64_t calls = entry.calls.load(std::memory_order_relaxed);
      if (calls == 0) continue;
      timed.append(nb::make_tuple(function, step, calls, entry.nanoseconds.load(std::memory_order_relaxed)));
    }
  }
  return timed;
}

int PythonProgram::traverse(visitproc visit, void* arg) const {
  for (PyObject* callout : callouts) Py_VISIT(callout);
  // A running call that shares a constant shares our one reference to it.
  for (const Value& constant : program.constants) Py_VISIT(python_object(constant));
  for (const Slot& slot : *slots.snapshot()) Py_VISIT(static_cast<PyObject*>(slot.code.get()));
  return 0;
}

void PythonProgram::clear() {
  cleared = true;
  drop_callouts();
  const std::vector<Value> constants = std::move(program.constants);
  std::vector<std::pair<size_t, Slot>> empty;
  for (size_t slot = 0; slot < static_cast<size_t>(program.slots); ++slot) empty.emplace_back(slot, Slot{});
  slots.publish(empty);
}

void PythonProgram::drop_callouts() {
  const std::vector<PyObject*> dropped = std::move(callouts);
  callouts.clear();
  for (PyObject* callout : dropped) Py_DECREF(callout);
}

void bind_program(nb::module_& module) {
  static const PyType_Slot type_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_program)},
                                           {Py_tp_clear, reinterpret_cast<void*>(clear_program)},
                                           {0, nullptr}};
  nb::class_<PythonProgram>(module, "Program", nb::type_slots(type_slots))
      .def(nb::init<const nb::list&, const nb::list&, const nb::list&, int64_t>(), nb::arg("functions"),
           nb::arg("callouts"), nb::arg("constants"), nb::arg("slots") = 0)
      .def("publish", &PythonProgram::publish, nb::arg("kernels"))
      .def_ro("number", &PythonProgram::number)
      .def("kernel_addresses", &PythonProgram::kernel_addresses)
      .def("time_kernels", &PythonProgram::time_kernels, nb::arg("on"))
      .def("kernel_times", &PythonProgram::kernel_times);
}

}  // namespace tierup
