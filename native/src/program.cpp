#include "program.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "error.hpp"
#include "facts.hpp"
#include "tensor.hpp"

namespace tierup {

const char* step_name(size_t opcode) {
  static constexpr std::array<const char*, std::variant_size_v<Step>> names = {
      "dims",       "alloc", "constant", "callout", "kernel", "copy",  "move",  "free",    "jump", "branch",
      "branch_dim", "call",  "scalar",   "index",   "push",   "stack", "arena", "default", "view"};
  return names[opcode];
}

namespace {

// Far above any plan; keeps a damaged number from asking for all memory.
constexpr int64_t kMaxRegisters = int64_t{1} << 24;

enum class Absent : bool { refused, allowed };

// Reads a step's operands one by one. Every refusal names the place and the operand.
class Reader {
 public:
  Reader(std::span<const int64_t> operands, std::string place) : operands_(operands), place_(std::move(place)) {}

  [[noreturn]] void refuse(const std::string& reason) const { throw InvalidProgram(place_ + ": " + reason); }

  int64_t literal(const char* name, int64_t low, int64_t high) {
    const int64_t value = take(name);
    if (value < low || value > high) {
      refuse("operand '" + std::string(name) + "' is " + std::to_string(value) + ", expected " + std::to_string(low) +
             " to " + std::to_string(high));
    }
    return value;
  }

  // An index below `count`; -1 too where absence is allowed.
  int32_t index(const char* name, size_t count, Absent absent = Absent::refused) {
    const int64_t value = take(name);
    check_index(name, value, count, absent);
    return static_cast<int32_t>(value);
  }

  Indices indices(const char* name, size_t count, Absent absent = Absent::refused) {
    const int64_t length = literal(name, 0, std::numeric_limits<int32_t>::max());
    if (static_cast<size_t>(length) > operands_.size() - at_) {
      refuse("list '" + std::string(name) + "' has " + std::to_string(length) + " items, but only " +
             std::to_string(operands_.size() - at_) + " operands follow");
    }
    Indices items;
    items.reserve(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) items.push_back(index(name, count, absent));
    return items;
  }

  // The dims of a tensor, of which there cannot be more than a tensor has axes.
  Indices shape(size_t n_dims, int32_t max_rank) {
    Indices dims = indices("dims", n_dims);
    if (dims.size() > static_cast<size_t>(max_rank)) {
      refuse("list 'dims' has " + std::to_string(dims.size()) + " items, a tensor has at most " +
             std::to_string(max_rank) + " axes");
    }
    return dims;
  }

  // A type whose elements native code may touch.
  int32_t dtype() {
    const int64_t value = take("dtype");
    if (element_bytes(value) == 0 || value == kString) {
      refuse("operand 'dtype' is " + std::to_string(value) + ", which is no type that native code can hold");
    }
    return static_cast<int32_t>(value);
  }

  int32_t axis() { return static_cast<int32_t>(literal("axis", -kMaxRank, kMaxRank - 1)); }

  void finish() const {
    if (at_ != operands_.size()) refuse(std::to_string(operands_.size() - at_) + " operands too many");
  }

 private:
  int64_t take(const char* name) {
    if (at_ == operands_.size()) refuse("operand '" + std::string(name) + "' is missing");
    return operands_[at_++];
  }

  void check_index(const char* name, int64_t value, size_t count, Absent absent) const {
    if (value == -1 && absent == Absent::allowed) return;
    if (value < 0 || static_cast<uint64_t>(value) >= count) {
      refuse("operand '" + std::string(name) + "' is " + std::to_string(value) + ", but there are " +
             std::to_string(count));
    }
  }

  std::span<const int64_t> operands_;
  std::string place_;
  size_t at_ = 0;
};

// What a function's steps may refer to.
struct Scope {
  const std::vector<FunctionText>& functions;
  const FunctionText& function;
  size_t values, dims, constants, callouts, slots;

  size_t targets() const { return function.steps.size() + 1; }  // one past the last step ends the function
};

Step decode_alloc(Reader& in, const Scope& scope) {
  const int32_t value = in.index("value", scope.values);
  const int32_t dtype = in.dtype();
  const auto place = static_cast<int32_t>(in.literal("place", kHeap, kArena));
  const int32_t offset =
      place == kArena ? in.index("offset", scope.dims) : static_cast<int32_t>(in.literal("offset", -1, -1));
  return step::Alloc{value, dtype, place, offset, in.shape(scope.dims, kMaxRank)};
}

Step decode_kernel(Reader& in, const Scope& scope) {
  const int32_t slot = in.index("slot", scope.slots);
  Indices buffers = in.indices("buffers", scope.values);
  Indices sizes = in.indices("sizes", scope.dims);
  const int32_t scratch = in.index("scratch", scope.dims, Absent::allowed);
  const int32_t range = in.index("range", scope.dims);
  const int32_t grain = in.index("grain", scope.dims);
  return step::Kernel{slot, std::move(buffers), std::move(sizes), scratch, range, grain};
}

Step decode_call(Reader& in, const Scope& scope) {
  const int32_t function = in.index("function", scope.functions.size());
  Indices ins = in.indices("ins", scope.values, Absent::allowed);
  Indices outs = in.indices("outs", scope.values, Absent::allowed);
  const FunctionText& callee = scope.functions[static_cast<size_t>(function)];
  if (ins.size() != callee.inputs.size() || outs.size() != callee.outputs.size()) {
    in.refuse("function " + std::to_string(function) + " takes " + std::to_string(callee.inputs.size()) +
              " values and gives " + std::to_string(callee.outputs.size()) + ", the step passes " +
              std::to_string(ins.size()) + " and takes " + std::to_string(outs.size()));
  }
  return step::Call{function, std::move(ins), std::move(outs)};
}

Step decode_scalar(Reader& in, const Scope& scope) {
  const int32_t value = in.index("value", scope.values);
  const int32_t dtype = in.dtype();
  if (dtype != kI64 && dtype != kI32 && dtype != kBool) {
    in.refuse("operand 'dtype' is " + std::to_string(dtype) + ", a scalar is int64 (7), int32 (6) or bool (9)");
  }
  return step::Scalar{value, dtype, in.index("dim", scope.dims)};
}

Step decode_stack(Reader& in, const Scope& scope) {
  const int32_t dst = in.index("dst", scope.values);
  const int32_t list = in.index("list", scope.values);
  const int32_t axis = in.axis();
  const bool reverse = in.literal("reverse", 0, 1) != 0;
  const int32_t dtype = in.dtype();
  return step::Stack{dst, list, axis, reverse, dtype, in.shape(scope.dims, kMaxRank - 1)};
}

Step decode_dims(Reader& in, const Scope& scope) {
  const auto length = static_cast<int64_t>(scope.function.dim_code.size());
  const auto begin = static_cast<int32_t>(in.literal("begin", 0, length));
  const auto end = static_cast<int32_t>(in.literal("end", begin, length));
  return step::Dims{begin, end};
}

// Braced initialisers are evaluated from left to right, which is the order of the operands.
Step decode_operands(size_t opcode, Reader& in, const Scope& scope) {
  const size_t values = scope.values, dims = scope.dims, targets = scope.targets();
  switch (opcode) {
    case 0: return decode_dims(in, scope);
    case 1: return decode_alloc(in, scope);
    case 2: return step::Constant{in.index("value", values), in.index("constant", scope.constants)};
    case 3:
      return step::Callout{in.index("callout", scope.callouts), in.indices("ins", values, Absent::allowed),
                           in.indices("outs", values, Absent::allowed)};
    case 4: return decode_kernel(in, scope);
    case 5: return step::Copy{in.index("dst", values), in.index("src", values)};
    case 6: return step::Move{in.index("dst", values), in.index("src", values)};
    case 7: return step::Free{in.index("value", values)};
    case 8: return step::Jump{in.index("target", targets)};
    case 9: return step::Branch{in.index("value", values), in.index("target", targets)};
    case 10: return step::BranchDim{in.index("dim", dims), in.index("target", targets)};
    case 11: return decode_call(in, scope);
    case 12: return decode_scalar(in, scope);
    case 13: return step::Index{in.index("dst", values), in.index("src", values), in.axis(), in.index("dim", dims)};
    case 14: return step::Push{in.index("list", values), in.index("src", values)};
    case 15: return decode_stack(in, scope);
    case 16: return step::Arena{in.index("dim", dims)};
    case 17: return step::Default{in.index("value", values), in.index("constant", scope.constants)};
    case 18: return step::View{in.index("dst", values), in.index("src", values), in.shape(dims, kMaxRank)};
  }
  __builtin_unreachable();  // the caller checked the opcode
}

Step decode_step(const std::vector<int64_t>& text, const std::string& place, const Scope& scope) {
  if (text.empty()) throw InvalidProgram(place + ": the step has no opcode");
  if (text[0] < 0 || static_cast<uint64_t>(text[0]) >= std::variant_size_v<Step>) {
    throw InvalidProgram(place + ": unknown opcode " + std::to_string(text[0]));
  }
  const auto opcode = static_cast<size_t>(text[0]);
  Reader in(std::span<const int64_t>(text).subspan(1), place + " (" + step_name(opcode) + ")");
  Step step = decode_operands(opcode, in, scope);
  in.finish();
  return step;
}

int64_t read_dim_operand(Reader& in, const char* name, DimOperand operand, const Scope& scope) {
  constexpr int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  switch (operand) {
    case DimOperand::dim: return in.index(name, scope.dims);
    case DimOperand::value: return in.index(name, scope.values);
    case DimOperand::positive: return in.literal(name, 1, high);
    case DimOperand::literal:
    case DimOperand::none: return in.literal(name, low, high);
  }
  __builtin_unreachable();
}

DimInstruction decode_dim(const std::array<int64_t, 5>& text, const std::string& place, const Scope& scope) {
  if (text[0] < 0 || text[0] >= kDimOps) throw InvalidProgram(place + ": unknown op " + std::to_string(text[0]));
  const auto op = static_cast<DimOp>(text[0]);
  const DimOpRow& row = dim_op_row(op);
  Reader in(std::span<const int64_t>(text).subspan(1), place + " (" + row.name + ")");
  return {op, in.index("dst", scope.dims), read_dim_operand(in, "a", row.a, scope),
          read_dim_operand(in, "b", row.b, scope), read_dim_operand(in, "c", row.c, scope)};
}

Indices decode_registers(const std::vector<int64_t>& text, const std::string& place, size_t values) {
  Reader in(text, place);
  Indices registers;
  for (size_t i = 0; i < text.size(); ++i) registers.push_back(in.index("register", values));
  return registers;
}

size_t decode_count(int64_t count, const std::string& what) {
  if (count < 0 || count > kMaxRegisters) {
    throw InvalidProgram(what + " is " + std::to_string(count) + ", expected 0 to " + std::to_string(kMaxRegisters));
  }
  return static_cast<size_t>(count);
}

Function decode_function(const Scope& scope, const std::string& place) {
  const FunctionText& text = scope.function;
  Function function;
  function.n_values = scope.values;
  function.n_dims = scope.dims;
  function.inputs = decode_registers(text.inputs, place + ", inputs", scope.values);
  function.outputs = decode_registers(text.outputs, place + ", outputs", scope.values);
  Indices sorted = function.inputs;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    throw InvalidProgram(place + ", inputs: a register is named twice");
  }
  for (const auto& instruction : text.dim_code) {
    const std::string at = place + ", dim instruction " + std::to_string(function.dim_code.size());
    function.dim_code.push_back(decode_dim(instruction, at, scope));
  }
  for (const auto& step : text.steps) {
    const std::string at = place + ", step " + std::to_string(function.steps.size());
    function.steps.push_back(decode_step(step, at, scope));
  }
  return function;
}

}  // namespace

namespace {

void check_facts(const std::vector<Fact>& facts, size_t inputs) {
  if (facts.size() > kMostFacts) throw InvalidProgram("a program has at most " + std::to_string(kMostFacts) + " facts");
  for (const Fact& fact : facts) {
    if (fact.input < 0 || static_cast<size_t>(fact.input) >= inputs) {
      throw InvalidProgram("a fact is about input " + std::to_string(fact.input) + ", but the model has " +
                           std::to_string(inputs));
    }
    const size_t width = fact.element.size();
    if (width != 1 && width != 2 && width != 4 && width != 8) {
      throw InvalidProgram("a fact is about elements of " + std::to_string(width) + " bytes");
    }
  }
}

}  // namespace

Program build_program(const std::vector<FunctionText>& functions, int64_t callouts, std::vector<Value> constants,
                      int64_t slots, std::vector<Fact> facts) {
  if (functions.empty()) throw InvalidProgram("a program needs at least one function");
  Program program;
  program.callouts = static_cast<int32_t>(decode_count(callouts, "the number of call-outs"));
  program.slots = static_cast<int32_t>(decode_count(slots, "the number of slots"));
  program.constants = std::move(constants);
  for (const FunctionText& function : functions) {
    const std::string place = "function " + std::to_string(program.functions.size());
    const Scope scope{functions,
                      function,
                      decode_count(function.n_values, place + ": the number of values"),
                      decode_count(function.n_dims, place + ": the number of dims"),
                      program.constants.size(),
                      static_cast<size_t>(program.callouts),
                      static_cast<size_t>(program.slots)};
    program.functions.push_back(decode_function(scope, place));
  }
  check_facts(facts, program.functions[0].inputs.size());
  program.facts = std::move(facts);
  return program;
}

}  // namespace tierup
