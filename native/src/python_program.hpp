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
                int64_t slots, const nanobind::list& facts);
  ~PythonProgram() { drop_callouts(); }

  // {slot: (address, whatever keeps the code loaded)}; address 0 empties the slot. All go live together.
  void publish(const nanobind::dict& kernels);
  nanobind::list kernel_addresses() const;

  // [(slot, first, key, address, code, range, grain, scratch)]: put before the open kernels, all together. Returns what
  // had to go, as (slot, key, uses). A key that does not fit the steps of its slot is refused. One that is longer by a
  // number has bits there for the facts that the variant relies on.
  nanobind::list add_variants(const nanobind::list& variants);
  // [(slot, key)] of those to take out, all together. Returns how many there were.
  size_t remove_variants(const std::vector<std::pair<size_t, std::vector<int64_t>>>& variants);
  // All variants are set aside, and the open kernels answer; or what was set aside comes back.
  void exchange_variants();
  // (slot, key, address, uses) of each.
  nanobind::list variants() const;
  // Pass over variants that fit, with this probability.
  void miss_variants(double share, uint64_t seed);
  double miss_share() const { return miss_share_; }

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
  double miss_share_ = 0;
  std::vector<std::vector<Variant>> aside_;  // variants of each slot that are not live
};

void bind_program(nanobind::module_& module);

}  // namespace tierup
