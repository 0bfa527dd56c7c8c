// The type that Python sees of a runner: slots, methods, and errors on their way out.
#include <nanobind/stl/string.h>

#include "error.hpp"
#include "python_errors.hpp"
#include "python_observed.hpp"
#include "python_runner.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

// Runs `body` and turns what it throws into a Python error, for slots that nanobind does not wrap.
template <typename Body>
PyObject* guarded(Body body) noexcept {
  try {
    return body().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const CallError& error) {
    PyErr_SetString(call_error_type(), error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

Runner& ready(nb::handle self) {
  if (!nb::inst_ready(self)) raise(PyExc_RuntimeError, "Runner.__init__() was not called");
  return *nb::inst_ptr<Runner>(self);
}

PyObject* call_runner(PyObject* self, PyObject* args, PyObject* kwargs) {
  return guarded([&] {
    Runner& runner = ready(self);
    if (PyTuple_GET_SIZE(args) != 0) raise(PyExc_TypeError, "the inputs of a model are given by keyword");
    const nb::object feeds = kwargs != nullptr ? nb::borrow(kwargs) : nb::object(nb::dict());
    return runner.call_dict(self, feeds);
  });
}

int traverse_runner(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Runner>(self)->traverse(visit, arg) : 0;
}

int clear_runner(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Runner>(self)->clear();
  return 0;
}

nb::object refuse_feeds(nb::handle, nb::handle) { raise(call_error_type(), "the inputs do not fit the model"); }

}  // namespace

void bind_runner(nb::module_& module) {
  static const PyType_Slot type_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_runner)},
                                           {Py_tp_clear, reinterpret_cast<void*>(clear_runner)},
                                           {Py_tp_call, reinterpret_cast<void*>(call_runner)},
                                           {0, nullptr}};
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const CallError& error) {
      PyErr_SetString(call_error_type(), error.what());
    }
  });
  nb::class_<Runner>(module, "Runner", nb::type_slots(type_slots), nb::is_weak_referenceable())
      .def(nb::init<const nb::list&, const nb::list&>(), nb::arg("inputs"), nb::arg("outputs"))
      .def(
          "call_dict",
          [](nb::handle_t<Runner> self, nb::handle feeds) { return ready(self).call_dict(self, feeds); },
          nb::arg("feeds").none())
      .def(
          "call_list",
          [](nb::handle_t<Runner> self, nb::handle names, nb::handle feeds, nb::handle) {
            return ready(self).call_list(self, names, feeds);
          },
          nb::arg("output_names").none(), nb::arg("input_feed").none(), nb::arg("run_options").none() = nb::none())
      .def("convert_feeds", &refuse_feeds, nb::arg("feeds").none())
      .def_prop_rw("program", &Runner::program, &Runner::set_program, nb::for_setter(nb::arg("program").none()))
      .def("notice_calls", [](nb::handle_t<Runner>) {})
      .def("answer_otherwise", [](nb::handle_t<Runner>, nb::handle, nb::handle, nb::handle) { return nb::none(); })
      .def("notice_after", [](nb::handle_t<Runner> self, uint64_t calls) { ready(self).set_notice_after(calls); },
           nb::arg("calls"))
      .def("sample_call", [](nb::handle_t<Runner>, nb::handle, nb::handle, uint64_t) {}, nb::arg("feeds"),
           nb::arg("outputs"), nb::arg("program"))
      .def("sample_after", [](nb::handle_t<Runner> self, uint64_t calls) { ready(self).set_sample_after(calls); },
           nb::arg("calls"))
      .def("set_rival", &Runner::set_rival, nb::arg("program").none(), nb::arg("share") = 0.5, nb::arg("seed") = 0)
      .def_prop_ro("rival_calls", &Runner::rival_calls)
      .def("hold_calls", &Runner::hold_calls, nb::arg("seconds"))
      .def_prop_ro("held_calls", &Runner::held_calls)
      .def("times", &Runner::times)
      .def_prop_ro("timed", &Runner::timed)
      .def("set_timing", &Runner::set_timing, nb::arg("on"))
      .def("set_watching", &Runner::set_watching, nb::arg("on"))
      .def("watch_closely", [](nb::handle_t<Runner> self, uint64_t calls) { ready(self).watch_closely(calls); },
           nb::arg("calls"))
      .def("analyse_calls", [](nb::handle_t<Runner>) {})
      .def("take_watched", &Runner::take_watched)
      .def("set_analysis_ns", &Runner::set_analysis_ns, nb::arg("nanoseconds"))
      .def_prop_ro("watch_gap", [](const Runner& runner) { return runner.watching().gap(); })
      .def_prop_ro("watched_dropped", [](const Runner& runner) { return runner.watching().dropped(); })
      .def("always_convert", [](nb::handle_t<Runner> self) { ready(self).set_always_convert(true); })
      .def("signatures", &Runner::signatures)
      .def_prop_ro("calls", &Runner::calls);
  bind_observed(module);
}

}  // namespace tierup
