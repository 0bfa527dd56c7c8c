#include "python_program.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <variant>

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

// [(input, an element's bytes)]
std::vector<Fact> read_facts(const nb::list& facts) {
  std::vector<Fact> read;
  for (nb::handle fact : facts) {
    const auto [input, element] = nb::cast<std::tuple<int32_t, nb::bytes>>(fact);
    const auto* const first = static_cast<const std::byte*>(element.data());
    read.push_back({input, {first, first + element.size()}});
  }
  return read;
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
                             int64_t slot_count, const nb::list& facts)
    : program(build_program(read_functions(functions), static_cast<int64_t>(called.size()), read_constants(constants),
                            slot_count, read_facts(facts))),
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

namespace {

// How many sizes the steps of each slot pass; -1 where they do not agree, or there are none.
std::vector<int64_t> sizes_by_slot(const Program& program) {
  constexpr int64_t kUnseen = -2;
  std::vector<int64_t> counts(static_cast<size_t>(program.slots), kUnseen);
  for (const Function& function : program.functions) {
    for (const Step& step : function.steps) {
      const auto* const kernel = std::get_if<step::Kernel>(&step);
      if (kernel == nullptr) continue;
      int64_t& count = counts[static_cast<size_t>(kernel->slot)];
      const auto own = static_cast<int64_t>(kernel->sizes.size());
      count = count == kUnseen || count == own ? own : -1;
    }
  }
  for (int64_t& count : counts) count = std::max<int64_t>(count, -1);
  return counts;
}

struct Addition {
  size_t slot;
  int32_t first;
  Variant variant;
};

// Tables die while the GIL is held: a call drops its snapshot at its end, and publishing is done from Python.
std::shared_ptr<void> kept_loaded(const nb::object& code) {
  return {nb::object(code).release().ptr(), [](void* held) { Py_DECREF(static_cast<PyObject*>(held)); }};
}

Addition read_variant(nb::handle row, const std::vector<int64_t>& sizes, size_t facts) {
  auto [slot, first, key, address, code, range, grain, scratch] =
      nb::cast<std::tuple<int64_t, int32_t, Numbers, uintptr_t, nb::object, int64_t, int64_t, int64_t>>(row);
  if (slot < 0 || static_cast<size_t>(slot) >= sizes.size()) throw nb::index_error("a variant is for a slot that is not there");
  const int64_t passed = sizes[static_cast<size_t>(slot)];
  const int64_t plain = passed - first + 1;
  if (static_cast<int64_t>(key.size()) == plain) key.push_back(0);
  if (first < 0 || passed < first || static_cast<int64_t>(key.size()) != plain + 1) {
    throw nb::value_error("a variant's key does not fit the steps of its slot");
  }
  if (key.back() < 0 || key.back() >= int64_t{1} << facts) throw nb::value_error("a variant relies on facts that are not there");
  if (address == 0 || range < 0 || scratch < 0) throw nb::value_error("a variant has no kernel, or less than no work");
  return {static_cast<size_t>(slot), first,
          Variant{key, reinterpret_cast<KernelFn>(address), kept_loaded(code), range, grain, scratch}};
}

}  // namespace

void PythonProgram::publish(const nb::dict& kernels) {
  std::vector<std::pair<size_t, Slot>> changes;
  for (auto [key, value] : kernels) {
    const auto slot = nb::cast<int64_t>(key);
    const auto [address, code] = nb::cast<std::tuple<uintptr_t, nb::object>>(value);
    if (slot < 0 || slot >= program.slots) {
      throw nb::index_error(
          ("slot " + std::to_string(slot) + ", but there are " + std::to_string(program.slots)).c_str());
    }
    changes.emplace_back(static_cast<size_t>(slot), Slot{reinterpret_cast<KernelFn>(address), kept_loaded(code)});
  }
  slots.publish(changes);
}

namespace {

// As it was given.
nb::tuple python_key(const Variant& variant) {
  Numbers key = variant.key;
  if (variant.needs() == 0) key.pop_back();
  return nb::tuple(nb::cast(key));
}

}  // namespace

nb::list PythonProgram::add_variants(const nb::list& rows) {
  const std::vector<int64_t> sizes = sizes_by_slot(program);
  std::vector<Addition> added;
  for (nb::handle row : rows) added.push_back(read_variant(row, sizes, program.facts.size()));
  std::vector<std::pair<size_t, Variant>> gone;
  slots.update([&](SlotTable& table) {
    for (Addition& one : added) {
      table[one.slot].first = one.first;
      for (Variant& old : table[one.slot].add(std::move(one.variant))) gone.emplace_back(one.slot, std::move(old));
    }
  });
  nb::list told;
  for (const auto& [slot, old] : gone) told.append(nb::make_tuple(slot, python_key(old), old.uses->load()));
  return told;
}

size_t PythonProgram::remove_variants(const std::vector<std::pair<size_t, std::vector<int64_t>>>& rows) {
  const std::vector<int64_t> sizes = sizes_by_slot(program);
  size_t removed = 0;
  slots.update([&](SlotTable& table) {
    for (const auto& [slot, key] : rows) {
      Numbers whole = key;
      if (slot >= table.size()) continue;
      if (static_cast<int64_t>(key.size()) + table[slot].first == sizes[slot] + 1) whole.push_back(0);
      removed += table[slot].remove(whole);
    }
  });
  return removed;
}

void PythonProgram::exchange_variants() {
  aside_.resize(static_cast<size_t>(program.slots));
  slots.update([&](SlotTable& table) {
    for (size_t slot = 0; slot < table.size(); ++slot) aside_[slot] = table[slot].exchange(std::move(aside_[slot]));
  });
}

nb::list PythonProgram::variants() const {
  nb::list rows;
  const auto table = slots.snapshot();
  for (size_t slot = 0; slot < table->size(); ++slot) {
    for (const Variant& one : (*table)[slot].variants) {
      rows.append(nb::make_tuple(slot, python_key(one), reinterpret_cast<uintptr_t>(one.kernel), one.uses->load()));
    }
  }
  return rows;
}

void PythonProgram::miss_variants(double share, uint64_t seed) {
  if (!(share >= 0 && share <= 1)) throw nb::value_error("a share is a number from 0 to 1");
  miss_share_ = share;
  states.reseed(seed);
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
  for (const Slot& slot : *slots.snapshot()) {
    Py_VISIT(static_cast<PyObject*>(slot.code.get()));
    for (const Variant& variant : slot.variants) Py_VISIT(static_cast<PyObject*>(variant.code.get()));
  }
  for (const auto& variants : aside_) {
    for (const Variant& variant : variants) Py_VISIT(static_cast<PyObject*>(variant.code.get()));
  }
  return 0;
}

void PythonProgram::clear() {
  cleared = true;
  drop_callouts();
  const std::vector<Value> constants = std::move(program.constants);
  std::vector<std::pair<size_t, Slot>> empty;
  for (size_t slot = 0; slot < static_cast<size_t>(program.slots); ++slot) empty.emplace_back(slot, Slot{});
  slots.publish(empty);
  const auto aside = std::move(aside_);
  aside_.clear();
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
      .def(nb::init<const nb::list&, const nb::list&, const nb::list&, int64_t, const nb::list&>(),
           nb::arg("functions"), nb::arg("callouts"), nb::arg("constants"), nb::arg("slots") = 0,
           nb::arg("facts") = nb::list())
      .def("publish", &PythonProgram::publish, nb::arg("kernels"))
      .def_ro("number", &PythonProgram::number)
      .def("kernel_addresses", &PythonProgram::kernel_addresses)
      .def("add_variants", &PythonProgram::add_variants, nb::arg("variants"))
      .def("remove_variants", &PythonProgram::remove_variants, nb::arg("variants"))
      .def("exchange_variants", &PythonProgram::exchange_variants)
      .def("variants", &PythonProgram::variants)
      .def("miss_variants", &PythonProgram::miss_variants, nb::arg("share"), nb::arg("seed") = 0)
      .def("time_kernels", &PythonProgram::time_kernels, nb::arg("on"))
      .def("kernel_times", &PythonProgram::kernel_times);
}

}  // namespace tierup
