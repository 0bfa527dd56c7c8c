// Python as a host: the GIL of one call, and the call-outs made in it.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "host.hpp"

namespace tierup {

// Calls Python. Python before 3.14 ends daemon threads that want the GIL during its finalisation by unwinding their
// stack. Nothing of ours may be destroyed then, so the thread stops here, as later Pythons have it; the process is ending.
// Python itself throws nothing else.
template <typename Body>
auto in_python(Body body) noexcept {
  try {
    return body();
  } catch (...) {
    for (;;) pause();
  }
}

inline void drop_reference(PyObject* object) noexcept {
  in_python([&] { Py_DECREF(object); });
}

// Whether this call holds the GIL. It starts with it, lets it go when told to, and takes it back when Python is needed.
class Gil {
 public:
  Gil() = default;
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { acquire(); }

  void release() {
    if (held()) saved_ = PyEval_SaveThread();
  }
  void acquire();

  bool held() const { return saved_ == nullptr; }

  // Gives a reference back: now, or when the GIL is here again.
  void drop(PyObject* object) noexcept;

 private:
  PyThreadState* saved_ = nullptr;
  std::vector<PyObject*> dropped_;
};

// Guards a whole function that needs no Python. nanobind's own guard ends the process where Python ends the thread.
class WithoutGil {
 public:
  WithoutGil() { gil_.release(); }

 private:
  Gil gil_;
};

// A reference to a Python object. Within a call it knows the call's GIL; a constant's is null, as constants die only
// with their program, while the GIL is held.
class PythonObject final : public HostObject {
 public:
  PythonObject(PyObject* stolen, Gil* gil) : object(stolen), gil_(gil) {}
  ~PythonObject() override {
    if (gil_ != nullptr) {
      gil_->drop(object);
    } else {
      drop_reference(object);
    }
  }

  PyObject* const object;

 private:
  Gil* const gil_;
};

class PythonHost final : public Host {
 public:
  PythonHost(const std::vector<PyObject*>& callouts, Gil& gil) : callouts_(callouts), gil_(gil) {}

  void call_out(int32_t callout, std::span<Object* const> ins, std::span<Value* const> outs) override;
  void step_aside() override { gil_.release(); }
  void take_turns() override;

 private:
  const std::vector<PyObject*>& callouts_;
  Gil& gil_;
  std::chrono::steady_clock::time_point turned_{};
};

}  // namespace tierup
