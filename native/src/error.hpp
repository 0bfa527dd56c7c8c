// The two ways in which native code says no.
#pragma once

#include <stdexcept>

namespace tierup {

// A program that is not well formed. The message names function, step and operand.
struct InvalidProgram : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A call that cannot go on: its inputs do not fit the program. Thrown without a place, which the interpreter adds.
struct CallError : std::runtime_error {
  using std::runtime_error::runtime_error;
  bool located = false;
  bool in_data = false;  // a kernel has found it in the data, where the baseline would find it, too
};

}  // namespace tierup
