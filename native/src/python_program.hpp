// A program as Python holds it: the core's program with its call-outs, kernels and idle call states.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
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

  // Begin to time the kernel steps of calls that start from now on, or stop; and (function, step, calls, nanoseconds).
  void time_kernels(bool on);
  nanobind::list kernel_times() const;
  // What calls add their times to, or null. Both are read and written while the GIL is held.
  std::shared_ptr<StepTimes> times() const { return timing_ ? times_ : nullptr; }

  int traverse(visitproc visit, void* arg) const;
  void clear();

  Program program;
  std::vector<PyObject*> callouts;
  Slots slots;
  CallStates states;
  const uint64_t number = ++numbers_;  // no other program of this process has it
  bool cleared = false;  // by the garbage collector: cannot run any more

 private:
  void drop_callouts();

  inline static std::atomic<uint64_t> numbers_{0};
  bool timing_ = false;
  std::shared_ptr<StepTimes> times_;
};

void bind_program(nanobind::module_& module);

}  // namespace tierup
