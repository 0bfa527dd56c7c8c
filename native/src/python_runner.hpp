// What a user calls: checks the inputs, runs the program, hands out the outputs.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "call_times.hpp"
#include "hold.hpp"
#include "python_program.hpp"
#include "signatures.hpp"
#include "watching.hpp"

namespace tierup {

class Runner {
 public:
  // inputs: (name, type code, shape or None, required). A code of -1 takes any object, -2 any that convert_feeds() lets
  // through. In a shape, -1 is open, and -2 - k is open with the name k: sizes with one name agree within a call.
  Runner(const nanobind::list& inputs, const nanobind::list& outputs);

  // {output: array}, and the outputs named in `names` (all of them if None) in a list. `self` is the Python object.
  nanobind::object call_dict(nanobind::handle self, nanobind::handle feeds);
  nanobind::object call_list(nanobind::handle self, nanobind::handle names, nanobind::handle feeds);

  // A call that runs keeps the program it started with. None takes the program away.
  void set_program(nanobind::object program);
  nanobind::object program() const { return program_.is_valid() ? program_ : nanobind::none(); }

  // Another program answers this share of the calls, drawn at random; None: no call any more.
  void set_rival(nanobind::object program, double share, uint64_t seed);
  uint64_t rival_calls() const { return rival_calls_; }

  // Calls wait before a program is chosen for them, but no longer than so many seconds from now on; 0: no longer at all.
  void hold_calls(double seconds);
  uint64_t held_calls() const { return held_calls_; }

  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // The method notice_calls() is called once after as many calls; 0: never. Whoever wants more asks again.
  void set_notice_after(uint64_t calls) { notice_after_ = calls == 0 ? kNever : this->calls() + calls; }

  // The method sample_call(feeds, outputs, program's number) is called once after as many calls; 0: never.
  void set_sample_after(uint64_t calls) { sample_after_ = calls == 0 ? kNever : this->calls() + calls; }

  // [(shape of each input, number of the program, nanoseconds)] of the calls that were timed lately, the oldest first.
  nanobind::list times() const;
  uint64_t timed() const { return times_.written(); }

  // Whether calls are timed (while there is a rival they are in any case), and whether some are watched closely.
  void set_timing(bool on) { timing_ = on; }
  void set_watching(bool on) { watching_.set_on(on); }
  void watch_closely(uint64_t calls) { watching_.watch_closely(calls); }
  // [(shape of each input, number of the program, nanoseconds, nanoseconds that watching took, regions, inputs)] of the
  // calls that were watched since the last time; see _native.pyi for the parts.
  nanobind::list take_watched();
  const Watching& watching() const { return watching_; }
  void set_analysis_ns(double nanoseconds) { watching_.set_analysis_ns(nanoseconds); }

  // Every call's inputs go through convert_feeds(), before the program is chosen: it may change the program for them.
  void set_always_convert(bool always) { always_convert_ = always; }

  // [(shape of each input, or None where it is no tensor), calls] of the signatures that came lately.
  nanobind::list signatures() const;

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Input {
    nanobind::object name;
    int32_t dtype;
    bool any_shape;
    bool required;
    std::vector<int64_t> shape;
  };
  class Call;
  static constexpr uint64_t kNever = UINT64_MAX;

  void wait_while_held();
  const nanobind::object& choose();
  void check_program(nanobind::handle program) const;
  void notice(nanobind::handle self);
  void ask_for_analysis(nanobind::handle self);
  void execute(Call& call, WatchedCall* watched);
  void answer(Call& call, uint64_t signature);
  void answer_watched(Call& call, uint64_t signature);
  bool answer_otherwise(Call& call, nanobind::handle self, nanobind::handle feeds, const std::string& reason);
  void sample(nanobind::handle self, nanobind::handle feeds, nanobind::handle outputs, uint64_t program);
  nanobind::object prepared(nanobind::handle self, nanobind::handle feeds) const;
  void require_program(nanobind::handle self, nanobind::handle feeds) const;
  nanobind::object run(Call& call, nanobind::handle self, nanobind::handle feeds);
  nanobind::object convert(nanobind::handle self, nanobind::handle feeds) const;
  bool bind(PyObject* feeds, Call& call, bool converted) const;
  bool bind_one(const Input& input, PyObject* object, Call& call, Value& target, bool converted) const;
  const Input* find_input(PyObject* name, size_t guess) const;
  std::vector<size_t> find_outputs(nanobind::handle names) const;

  std::vector<Input> inputs_;
  std::vector<nanobind::object> outputs_;
  nanobind::dict input_index_;   // name -> position
  nanobind::dict output_index_;  // name -> position
  size_t required_ = 0;
  size_t named_dims_ = 0;
  nanobind::object program_;
  std::atomic<uint64_t> calls_{0};
  Hold hold_;
  // From here on: touched while the GIL is held.
  nanobind::object rival_;
  double rival_share_ = 0;
  uint64_t rival_calls_ = 0;
  uint64_t held_calls_ = 0;
  Draw draw_;
  Signatures signatures_;
  CallTimes times_;
  bool timing_ = true;
  Watching watching_;
  uint64_t notice_after_ = kNever;
  uint64_t sample_after_ = kNever;
  bool always_convert_ = false;
};

void bind_runner(nanobind::module_& module);

}  // namespace tierup
