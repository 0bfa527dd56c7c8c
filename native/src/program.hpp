// A program: plain numbers in, checked and decoded steps out. docs/native-program.md is its definition.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "dims.hpp"
#include "object.hpp"

namespace tierup {

using Indices = std::vector<int32_t>;

// One struct a step, in the order of their opcodes. An index that may be absent is -1 then.
namespace step {
// clang-format off
struct Dims { int32_t begin, end; };
struct Alloc { int32_t value, dtype, place, offset; Indices dims; };
struct Constant { int32_t value, constant; };
struct Callout { int32_t callout; Indices ins, outs; };
struct Kernel { int32_t slot; Indices buffers, sizes; int32_t scratch, range, grain; };
struct Copy { int32_t dst, src; };
struct Move { int32_t dst, src; };
struct Free { int32_t value; };
struct Jump { int32_t target; };
struct Branch { int32_t value, target; };
struct BranchDim { int32_t dim, target; };
struct Call { int32_t function; Indices ins, outs; };
struct Scalar { int32_t value, dtype, dim; };
struct Index { int32_t dst, src, axis, dim; };
struct Push { int32_t list, src; };
struct Stack { int32_t dst, list, axis; bool reverse; int32_t dtype; Indices dims; };
struct Arena { int32_t dim; };
struct Default { int32_t value, constant; };
struct View { int32_t dst, src; Indices dims; };
// clang-format on
}  // namespace step

using Step = std::variant<step::Dims, step::Alloc, step::Constant, step::Callout, step::Kernel, step::Copy, step::Move,
                          step::Free, step::Jump, step::Branch, step::BranchDim, step::Call, step::Scalar, step::Index,
                          step::Push, step::Stack, step::Arena, step::Default, step::View>;

const char* step_name(size_t opcode);

enum Place : int32_t { kHeap = 0, kArena = 1 };

// A function as it is handed over.
struct FunctionText {
  int64_t n_values = 0;
  int64_t n_dims = 0;
  std::vector<int64_t> inputs, outputs;
  std::vector<std::array<int64_t, 5>> dim_code;
  std::vector<std::vector<int64_t>> steps;
};

struct Function {
  size_t n_values = 0;
  size_t n_dims = 0;
  Indices inputs, outputs;
  std::vector<DimInstruction> dim_code;
  std::vector<Step> steps;
};

// Something that variants may rely on, and that is looked at when a call begins: every element of an input is this.
struct Fact {
  int32_t input = 0;              // among those of the model
  std::vector<std::byte> element;  // as it lies in memory
};

// Immutable: any number of threads may run it.
struct Program {
  std::vector<Function> functions;  // the first is the model
  std::vector<Value> constants;
  int32_t callouts = 0;
  int32_t slots = 0;
  std::vector<Fact> facts;
};

// Decodes and checks everything that can be checked without a call. Throws InvalidProgram.
Program build_program(const std::vector<FunctionText>& functions, int64_t callouts, std::vector<Value> constants,
                      int64_t slots, std::vector<Fact> facts = {});

}  // namespace tierup
