// What native code needs of the language around it. Python in the module, a stand-in in the tests.
#pragma once

#include <cstdint>
#include <span>

#include "object.hpp"

namespace tierup {

// One per call. A host object is given back by its own destructor, on the thread of the call.
class Host {
 public:
  // Calls call-out `callout`. An input that is null (left out, or an empty register) passes the host's "nothing"; an
  // output that is null is dropped. Throws what the host likes; it passes through the interpreter unchanged.
  virtual void call_out(int32_t callout, std::span<Object* const> ins, std::span<Value* const> outs) = 0;

  // What comes next may take long and needs nothing of the host: let others have its lock.
  virtual void step_aside() = 0;

  // The call has been running for a while and may go on for long: see to what others want, which may end the call.
  // Throws what the host likes.
  virtual void take_turns() = 0;

 protected:
  ~Host() = default;
};

}  // namespace tierup
