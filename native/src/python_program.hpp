// A program as Python holds it: the core's program with its call-outs, kernels and idle call states.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "interpreter.hpp"
#include "program.hpp"
#include "slots.hpp"

namespace tierup {

struct PythonProgram {
  PythonProgram(const nanobind::list& functions, const nanobind::list& callouts, const nanobind::list& constants,
                int64_t slots);
  ~PythonProgram() { drop_callouts(); }

  // {slot: (address, whatever keeps the code loaded)}; address 0 empties the slot. All go live together.
  void publish(const nanobind::dict& kernels);
  nanobind::list kernel_addresses() const;

  int traverse(visitproc visit, void* arg) const;
  void clear();

  Program program;
  std::vector<PyObject*> callouts;
  Slots slots;
  CallStates states;
  bool cleared = false;  // by the garbage collector: cannot run any more

 private:
  void drop_callouts();
};

void bind_program(nanobind::module_& module);

}  // namespace tierup
