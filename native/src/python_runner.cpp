#include "python_runner.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "core_uses.hpp"
#include "error.hpp"
#include "numpy_api.hpp"
#include "python_errors.hpp"
#include "python_values.hpp"

namespace nb = nanobind;

namespace tierup {
namespace {

constexpr int32_t kAnyObject = -1;
constexpr int32_t kCheckedObject = -2;  // any object, once convert_feeds() has looked at it
constexpr int64_t kOpen = -1;
constexpr int64_t kFirstNamed = -2;  // -2 - k stands for the name k

nb::object interned(nb::handle name) {
  if (!PyUnicode_CheckExact(name.ptr())) raise(PyExc_TypeError, "the names of inputs and outputs are str");
  PyObject* own = nb::borrow(name).release().ptr();
  PyUnicode_InternInPlace(&own);
  return nb::steal(own);
}

}  // namespace

// Everything that one call holds. The GIL is taken back before any of it is given back.
class Runner::Call {
 public:
  explicit Call(const nb::object& program_object)
      : keep_(program_object),
        program(*nb::inst_ptr<PythonProgram>(program_object)),
        slots(program.slots.snapshot()),
        state(program.states.take()) {
    state->inputs.resize(program.program.functions[0].inputs.size());
    state->outputs.resize(program.program.functions[0].outputs.size());
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    gil.acquire();
    reset_inputs();
    for (Value& output : state->outputs) output.reset();
    program.states.give_back(std::move(state));
  }

  void reset_inputs() {
    for (Value& input : state->inputs) input.reset();
  }

 private:
  nb::object keep_;

 public:
  PythonProgram& program;
  std::shared_ptr<const SlotTable> slots;
  Gil gil;
  std::unique_ptr<CallState> state;
};

Runner::Runner(const nb::list& inputs, const nb::list& outputs) {
  using InputTuple = std::tuple<nb::object, int32_t, nb::object, bool>;
  for (nb::handle input : inputs) {
    auto [name, dtype, shape, required] = nb::cast<InputTuple>(input);
    if (dtype != kAnyObject && dtype != kCheckedObject && element_bytes(dtype) == 0) throw nb::value_error("an input has an unknown type code");
    Input spec{interned(name), dtype, shape.is_none(), required, {}};
    if (!spec.any_shape) spec.shape = nb::cast<std::vector<int64_t>>(shape);
    for (const int64_t size : spec.shape) {
      // One count a call is kept for each name, so names are small numbers.
      if (size < kFirstNamed - (1 << 20)) throw nb::value_error("the named dims of the inputs are numbered from 0");
      if (size <= kFirstNamed) named_dims_ = std::max(named_dims_, static_cast<size_t>(kFirstNamed - size) + 1);
    }
    input_index_[spec.name] = inputs_.size();
    required_ += required ? 1 : 0;
    inputs_.push_back(std::move(spec));
  }
  for (nb::handle output : outputs) {
    output_index_[interned(output)] = outputs_.size();
    outputs_.push_back(interned(output));
  }
  if (input_index_.size() != inputs_.size() || output_index_.size() != outputs_.size()) {
    throw nb::value_error("a name is used for two inputs or two outputs");
  }
}

void Runner::check_program(nb::handle program) const {
  const Function& model = nb::cast<PythonProgram&>(program).program.functions[0];
  if (model.inputs.size() != inputs_.size() || model.outputs.size() != outputs_.size()) {
    throw nb::value_error(("the program has " + std::to_string(model.inputs.size()) + " inputs and " +
                           std::to_string(model.outputs.size()) + " outputs, the model has " +
                           std::to_string(inputs_.size()) + " and " + std::to_string(outputs_.size()))
                              .c_str());
  }
}

void Runner::set_program(nb::object program) {
  if (program.is_none()) return clear();
  check_program(program);
  program_ = std::move(program);
}

void Runner::set_rival(nb::object program, double share, uint64_t seed) {
  if (!(share >= 0 && share <= 1)) throw nb::value_error("a share is a number from 0 to 1");
  if (program.is_none()) program = nb::object();
  if (program.is_valid()) check_program(program);
  rival_share_ = share;
  draw_ = Draw(seed);
  std::swap(rival_, program);  // what it replaces goes last: its end may run Python code
}

void Runner::hold_calls(double seconds) {
  constexpr double kLongest = 60;
  if (!(seconds >= 0 && seconds <= kLongest)) throw nb::value_error("calls are held for 0 to 60 seconds");
  if (seconds == 0) return hold_.end();
  hold_.begin(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
}

void Runner::wait_while_held() {
  if (!hold_.holds()) return;
  constexpr std::chrono::milliseconds kUninterrupted{20};
  ++held_calls_;
  Gil gil;
  for (bool waits = true; waits;) {
    gil.release();
    waits = hold_.sleep(kUninterrupted);
    gil.acquire();
    if (in_python([] { return PyErr_CheckSignals(); }) != 0) throw nb::python_error();
  }
}

// Whoever answers the next call.
const nb::object& Runner::choose() {
  if (!rival_.is_valid() || !draw_(rival_share_)) return program_;
  ++rival_calls_;
  return rival_;
}

// Names mostly come interned and in order, so that `guess` is right; otherwise the dict knows.
const Runner::Input* Runner::find_input(PyObject* name, size_t guess) const {
  if (guess < inputs_.size() && inputs_[guess].name.ptr() == name) return &inputs_[guess];
  if (!PyUnicode_CheckExact(name)) return nullptr;
  PyObject* position = PyDict_GetItemWithError(input_index_.ptr(), name);
  return position != nullptr ? &inputs_[PyLong_AsSize_t(position)] : nullptr;
}

// Whether `object` is what the spec asks for, as it is. Anything else is for convert_feeds().
bool Runner::bind_one(const Input& input, PyObject* object, Call& call, Value& target, bool converted) const {
  if (input.dtype == kCheckedObject && !converted) return false;
  if (input.dtype == kAnyObject || input.dtype == kCheckedObject) {
    target = from_python(nb::borrow(object), &call.gil);
    return true;
  }
  if (!PyArray_CheckExact(object) || dtype_code(object) != input.dtype) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (!input.any_shape) {
    if (static_cast<size_t>(PyArray_NDIM(array)) != input.shape.size()) return false;
    for (size_t i = 0; i < input.shape.size(); ++i) {
      const int64_t wanted = input.shape[i], size = PyArray_DIMS(array)[i];
      if (wanted == kOpen) continue;
      if (wanted >= 0) {
        if (size != wanted) return false;
        continue;
      }
      int64_t& first = call.state->sizes[static_cast<size_t>(kFirstNamed - wanted)];
      if (first != kOpen && first != size) return false;
      first = size;
    }
  }
  target = tensor_over(nb::borrow(object), input.dtype, &call.gil);
  return true;
}

bool Runner::bind(PyObject* feeds, Call& call, bool converted) const {
  call.reset_inputs();
  if (!PyDict_CheckExact(feeds)) return false;
  call.state->sizes.assign(named_dims_, kOpen);  // the sizes seen so far, by name
  size_t required = 0, at = 0;
  Py_ssize_t cursor = 0;
  PyObject *name, *object;
  while (PyDict_Next(feeds, &cursor, &name, &object)) {
    const Input* input = find_input(name, at++);
    if (input == nullptr) return false;
    const auto position = static_cast<size_t>(input - inputs_.data());
    if (!bind_one(*input, object, call, call.state->inputs[position], converted)) return false;
    required += input->required ? 1 : 0;
  }
  return required == required_;
}

nb::object Runner::convert(nb::handle self, nb::handle feeds) const {
  static PyObject* const method = PyUnicode_InternFromString("convert_feeds");
  PyObject* converted = in_python([&] { return PyObject_CallMethodOneArg(self.ptr(), method, feeds.ptr()); });
  if (converted == nullptr) throw nb::python_error();
  return nb::steal(converted);
}

void Runner::execute(Call& call, WatchedCall* watched) {
  PythonHost host(call.program.callouts, call.gil);
  const CallContext context{call.program.program,  *call.slots, pool(), host, *call.state,
                            call.program.times(), watched, call.program.miss_share()};
  tierup::run(context, call.state->inputs, call.state->outputs);
}

void Runner::answer(Call& call, uint64_t signature) {
  const bool rival = rival_.is_valid();
  const bool timed = (timing_ || rival) && times_.due(rival);
  const auto begin = timed ? CallTimes::Clock::now() : CallTimes::Clock::time_point();
  execute(call, nullptr);
  const auto end = timed ? CallTimes::Clock::now() : begin;  // without the wait for the GIL, which is not the plan's
  call.gil.acquire();
  if (!timed) return;
  const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin);
  times_.note({signature, call.program.number, static_cast<uint64_t>(taken.count())});
}

// Its time is noted beside the others' only where what watching adds does not show.
void Runner::answer_watched(Call& call, uint64_t signature) {
  WatchedCall watched(static_cast<size_t>(call.program.program.slots), call.state->inputs,
                      &ThreadCounters::of_this_thread(RegionCounters::instance()));
  watched.signature = signature;
  watched.program = call.program.number;
  const auto begin = CallTimes::Clock::now();
  try {
    execute(call, &watched);
  } catch (...) {
    watched.end();
    watching_.give_up();
    throw;
  }
  const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(CallTimes::Clock::now() - begin);
  watched.end();
  watching_.keep(std::move(watched));
  call.gil.acquire();
  const auto nanoseconds = static_cast<uint64_t>(taken.count());
  if (timing_ && nanoseconds >= CallTimes::kLongNs) times_.note({signature, call.program.number, nanoseconds});
}

// What a plan cannot answer, the model may know how to; if it does not, either, it raises, or says None.
bool Runner::answer_otherwise(Call& call, nb::handle self, nb::handle feeds, const std::string& reason) {
  call.gil.acquire();
  static PyObject* const method = PyUnicode_InternFromString("answer_otherwise");
  const nb::object why = nb::cast(reason), number = nb::cast(call.program.number);
  PyObject* arguments[] = {self.ptr(), feeds.ptr(), why.ptr(), number.ptr()};
  PyObject* found = in_python([&] { return PyObject_VectorcallMethod(method, arguments, 4, nullptr); });
  if (found == nullptr) throw nb::python_error();
  const nb::object answers = nb::steal(found);
  if (answers.is_none()) return false;
  const nb::tuple outputs = nb::cast<nb::tuple>(answers);
  if (outputs.size() != outputs_.size()) raise(PyExc_RuntimeError, "answer_otherwise() gave another number of outputs");
  for (size_t i = 0; i < outputs_.size(); ++i) call.state->outputs[i] = from_python(nb::object(outputs[i]), &call.gil);
  return true;
}

// The inputs as they were bound.
nb::object Runner::run(Call& call, nb::handle self, nb::handle feeds) {
  if (call.program.cleared) raise(PyExc_RuntimeError, "the model is closed");
  calls_.fetch_add(1, std::memory_order_relaxed);
  core_uses.note();
  nb::object bound = nb::borrow(feeds);
  if (!bind(feeds.ptr(), call, false)) {
    bound = convert(self, feeds);
    if (!bind(bound.ptr(), call, true)) {
      raise(PyExc_RuntimeError, "convert_feeds() returned inputs that still do not fit the model");
    }
  }
  const uint64_t signature = signatures_.note(call.state->inputs);
  try {
    if (watching_.due()) {
      answer_watched(call, signature);
    } else {
      answer(call, signature);
    }
  } catch (const CallError& error) {
    if (error.in_data || !answer_otherwise(call, self, bound, error.what())) throw;
  } catch (nb::python_error& error) {
    call.gil.acquire();
    if (!error.matches(call_error_type())) throw;
    if (!answer_otherwise(call, self, bound, nb::cast<std::string>(nb::str(error.value())))) throw;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!call.state->outputs[i]) {
      throw CallError("the program left output '" + nb::cast<std::string>(outputs_[i]) + "' empty");
    }
  }
  return bound;
}

namespace {

// The answer is there already: what goes wrong beside it is no reason to withhold it. An interrupt is no such thing: it
// was meant for whoever waits for the answer.
void told(PyObject* done, nb::handle self) {
  Py_XDECREF(done);
  if (done != nullptr) return;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
  PyErr_WriteUnraisable(self.ptr());
}

}  // namespace

void Runner::notice(nb::handle self) {
  if (calls() < notice_after_) return;
  notice_after_ = kNever;
  static PyObject* const method = PyUnicode_InternFromString("notice_calls");
  told(PyObject_CallMethodNoArgs(self.ptr(), method), self);
}

void Runner::ask_for_analysis(nb::handle self) {
  if (!watching_.ask()) return;
  static PyObject* const method = PyUnicode_InternFromString("analyse_calls");
  told(PyObject_CallMethodNoArgs(self.ptr(), method), self);
}

void Runner::sample(nb::handle self, nb::handle feeds, nb::handle outputs, uint64_t program) {
  if (calls() < sample_after_) return;
  sample_after_ = kNever;
  static PyObject* const method = PyUnicode_InternFromString("sample_call");
  const nb::object number = nb::cast(program);
  PyObject* arguments[] = {self.ptr(), feeds.ptr(), outputs.ptr(), number.ptr()};
  told(PyObject_VectorcallMethod(method, arguments, 4, nullptr), self);
}

// A model without a program lets convert_feeds() say why.
void Runner::require_program(nb::handle self, nb::handle feeds) const {
  if (program_.is_valid()) return;
  convert(self, feeds);
  raise(PyExc_RuntimeError, "the model has no program");
}

nb::object Runner::prepared(nb::handle self, nb::handle feeds) const {
  return always_convert_ ? convert(self, feeds) : nb::borrow(feeds);
}

nb::object Runner::call_dict(nb::handle self, nb::handle given) {
  wait_while_held();
  const nb::object feeds = prepared(self, given);
  require_program(self, feeds);
  Call call(choose());
  const nb::object bound = run(call, self, feeds);
  nb::object result = nb::steal(PyDict_New());
  if (!result.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const nb::object output = as_output(std::move(call.state->outputs[i]));
    if (PyDict_SetItem(result.ptr(), outputs_[i].ptr(), output.ptr()) < 0) throw nb::python_error();
  }
  notice(self);
  ask_for_analysis(self);
  sample(self, bound, result, call.program.number);
  return result;
}

// The positions of the outputs named; of all of them if none is, as ONNX Runtime has it.
std::vector<size_t> Runner::find_outputs(nb::handle names) const {
  std::vector<size_t> positions;
  for (nb::handle name : names.is_none() ? nb::object(nb::tuple()) : nb::borrow(names)) {
    PyObject* position = PyDict_GetItemWithError(output_index_.ptr(), name.ptr());
    if (position == nullptr) {
      if (PyErr_Occurred()) throw nb::python_error();
      PyErr_Format(call_error_type(), "the model has no output %R; its outputs are %R", name.ptr(),
                   output_index_.attr("keys")().ptr());
      throw nb::python_error();
    }
    positions.push_back(PyLong_AsSize_t(position));
  }
  if (positions.empty()) {
    for (size_t i = 0; i < outputs_.size(); ++i) positions.push_back(i);
  }
  return positions;
}

nb::object Runner::call_list(nb::handle self, nb::handle names, nb::handle given) {
  wait_while_held();
  const nb::object feeds = prepared(self, given);
  require_program(self, feeds);
  Call call(choose());  // before find_outputs(): going through `names` may run code that closes the model
  const std::vector<size_t> wanted = find_outputs(names);
  const nb::object bound = run(call, self, feeds);
  nb::list result;
  for (size_t i = 0; i < wanted.size(); ++i) {
    Value& output = call.state->outputs[wanted[i]];
    // An output that is asked for twice stays for the later one, which makes this one a copy.
    const bool again = std::ranges::count(wanted.begin() + static_cast<std::ptrdiff_t>(i), wanted.end(), wanted[i]) > 1;
    result.append(as_output(again ? output : std::move(output)));
  }
  notice(self);
  ask_for_analysis(self);
  if (calls() >= sample_after_) {
    nb::dict named;
    for (size_t i = 0; i < wanted.size(); ++i) named[outputs_[wanted[i]]] = result[i];
    sample(self, bound, named, call.program.number);
  }
  return result;
}

int Runner::traverse(visitproc visit, void* arg) const {
  Py_VISIT(program_.ptr());
  Py_VISIT(rival_.ptr());
  return 0;
}

// What goes with the last program may run Python code, and calls in it: they must not find the program any more.
void Runner::clear() {
  const nb::object dropped = std::move(program_), rival = std::move(rival_);
}

}  // namespace tierup
