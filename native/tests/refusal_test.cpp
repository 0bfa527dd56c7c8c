// Malformed programs: each is refused when it is built, with a message that names the place.
#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

// One function with 3 values, 2 dims, 2 dim instructions; 1 call-out, 1 constant, 1 slot.
Script with_steps(std::vector<std::vector<int64_t>> steps) {
  return {{{3, 2, {0}, {1}, {{0, 0, 1, 0, 0}, {0, 1, 1, 0, 0}}, std::move(steps)}},
          {[](auto, auto) {}},
          {floats({}, {1})},
          {nullptr}};
}

struct Refused {
  const char* message;
  std::vector<int64_t> step;
};

const std::vector<Refused> kRefusedSteps = {
    {"step 0: the step has no opcode", {}},
    {"step 0: unknown opcode -1", {-1}},
    {"step 0: unknown opcode 19", {19}},
    {"(dims): operand 'begin' is -1", {0, -1, 1}},
    {"(dims): operand 'end' is 3", {0, 0, 3}},
    {"(dims): operand 'end' is 0, expected 1 to 2", {0, 1, 0}},
    {"(dims): operand 'end' is missing", {0, 0}},
    {"(dims): 1 operands too many", {0, 0, 2, 0}},
    {"(alloc): operand 'value' is 3, but there are 3", {1, 3, 1, 0, -1, 0}},
    {"(alloc): operand 'dtype' is 0", {1, 0, 0, 0, -1, 0}},
    {"(alloc): operand 'dtype' is 8", {1, 0, 8, 0, -1, 0}},
    {"(alloc): operand 'dtype' is 29", {1, 0, 29, 0, -1, 0}},
    {"(alloc): operand 'place' is 2", {1, 0, 1, 2, -1, 0}},
    {"(alloc): operand 'offset' is 0", {1, 0, 1, 0, 0, 0}},
    {"(alloc): operand 'offset' is -1", {1, 0, 1, 1, -1, 0}},
    {"(alloc): operand 'dims' is 2, but there are 2", {1, 0, 1, 0, -1, 1, 2}},
    {"(alloc): list 'dims' has 3 items, but only 1 operands follow", {1, 0, 1, 0, -1, 3, 0}},
    {"(alloc): operand 'dims' is -1", {1, 0, 1, 0, -1, -1}},
    {"(constant): operand 'value' is -1", {2, -1, 0}},
    {"(constant): operand 'constant' is 1, but there are 1", {2, 0, 1}},
    {"(callout): operand 'callout' is 1", {3, 1, 0, 0}},
    {"(callout): operand 'ins' is -2", {3, 0, 1, -2, 0}},
    {"(callout): operand 'outs' is 3", {3, 0, 0, 1, 3}},
    {"(kernel): operand 'slot' is 1", {4, 1, 0, 0, -1, 0, 1}},
    {"(kernel): operand 'buffers' is -1", {4, 0, 1, -1, 0, -1, 0, 1}},
    {"(kernel): operand 'sizes' is 2", {4, 0, 0, 1, 2, -1, 0, 1}},
    {"(kernel): operand 'scratch' is -2", {4, 0, 0, 0, -2, 0, 1}},
    {"(kernel): operand 'range' is -1", {4, 0, 0, 0, -1, -1, 1}},
    {"(kernel): operand 'grain' is 2", {4, 0, 0, 0, -1, 0, 2}},
    {"(copy): operand 'dst' is 3", {5, 3, 0}},
    {"(copy): operand 'src' is -1", {5, 0, -1}},
    {"(move): operand 'dst' is 3", {6, 3, 0}},
    {"(move): operand 'src' is 9223372036854775807", {6, 0, INT64_MAX}},
    {"(free): operand 'value' is 3", {7, 3}},
    {"(jump): operand 'target' is 2", {8, 2}},
    {"(jump): operand 'target' is -1", {8, -1}},
    {"(branch): operand 'value' is 3", {9, 3, 0}},
    {"(branch): operand 'target' is 2", {9, 0, 2}},
    {"(branch_dim): operand 'dim' is 2", {10, 2, 0}},
    {"(branch_dim): operand 'target' is 2", {10, 0, 2}},
    {"(call): operand 'function' is 1", {11, 1, 0, 0}},
    {"(call): operand 'ins' is 3", {11, 0, 1, 3, 1, 0}},
    {"(call): operand 'outs' is 3", {11, 0, 1, 0, 1, 3}},
    {"(call): function 0 takes 1 values and gives 1, the step passes 0 and takes 1", {11, 0, 0, 1, 0}},
    {"(scalar): operand 'value' is 3", {12, 3, 7, 0}},
    {"(scalar): operand 'dtype' is 1, a scalar is", {12, 0, 1, 0}},
    {"(scalar): operand 'dim' is 2", {12, 0, 7, 2}},
    {"(index): operand 'dst' is 3", {13, 3, 0, 0, 0}},
    {"(index): operand 'src' is 3", {13, 0, 3, 0, 0}},
    {"(index): operand 'axis' is 64", {13, 0, 0, 64, 0}},
    {"(index): operand 'dim' is 2", {13, 0, 0, 0, 2}},
    {"(push): operand 'list' is 3", {14, 3, 0}},
    {"(push): operand 'src' is 3", {14, 0, 3}},
    {"(stack): operand 'dst' is 3", {15, 3, 0, 0, 0, 1, 0}},
    {"(stack): operand 'list' is 3", {15, 0, 3, 0, 0, 1, 0}},
    {"(stack): operand 'axis' is -65", {15, 0, 0, -65, 0, 1, 0}},
    {"(stack): operand 'reverse' is 2", {15, 0, 0, 0, 2, 1, 0}},
    {"(stack): operand 'dtype' is 99", {15, 0, 0, 0, 0, 99, 0}},
    {"(stack): operand 'dims' is 2", {15, 0, 0, 0, 0, 1, 1, 2}},
    {"(arena): operand 'dim' is 2", {16, 2}},
    {"(default): operand 'value' is 3", {17, 3, 0}},
    {"(default): operand 'constant' is 1", {17, 0, 1}},
    {"(view): operand 'dst' is 3", {18, 3, 0, 0}},
    {"(view): operand 'src' is -1", {18, 0, -1, 0}},
    {"(view): operand 'dims' is missing", {18, 0, 0}},
    {"(view): operand 'dims' is 2, but there are 2", {18, 0, 0, 1, 2}},
    {"(view): operand 'dims' is -1", {18, 0, 0, 1, -1}},
    {"(view): list 'dims' has 2 items, but only 1 operands follow", {18, 0, 0, 2, 0}},
    {"(view): 1 operands too many", {18, 0, 0, 0, 0}},
};

TEST(refuses_malformed_steps) {
  for (const auto& [message, step] : kRefusedSteps) {
    CHECK_THROWS(InvalidProgram, message, with_steps({step}).build());
    CHECK_THROWS(InvalidProgram, "function 0, step 0", with_steps({step}).build());
  }
}

TEST(refuses_ranks_that_no_tensor_has) {
  std::vector<int64_t> alloc = {1, 0, 1, 0, -1, kMaxRank + 1};
  alloc.insert(alloc.end(), kMaxRank + 1, 0);
  CHECK_THROWS(InvalidProgram, "a tensor has at most 64 axes", with_steps({alloc}).build());
  std::vector<int64_t> stack = {15, 0, 0, 0, 0, 1, kMaxRank};
  stack.insert(stack.end(), kMaxRank, 0);
  CHECK_THROWS(InvalidProgram, "a tensor has at most 63 axes", with_steps({stack}).build());
  std::vector<int64_t> view = {18, 0, 0, kMaxRank + 1};
  view.insert(view.end(), kMaxRank + 1, 0);
  CHECK_THROWS(InvalidProgram, "(view): list 'dims' has 65 items, a tensor has at most 64", with_steps({view}).build());
}

TEST(refuses_malformed_dim_code) {
  const auto build = [](std::array<int64_t, 5> code) { return Script{{{1, 2, {}, {}, {code}, {}}}}.build(); };
  CHECK_THROWS(InvalidProgram, "function 0, dim instruction 0: unknown op 20", build({20, 0, 0, 0, 0}));
  CHECK_THROWS(InvalidProgram, "unknown op -1", build({-1, 0, 0, 0, 0}));
  CHECK_THROWS(InvalidProgram, "(add): operand 'dst' is 2", build({1, 2, 0, 0, 0}));
  CHECK_THROWS(InvalidProgram, "(add): operand 'a' is -1", build({1, 0, -1, 0, 0}));
  CHECK_THROWS(InvalidProgram, "(add): operand 'b' is 2", build({1, 0, 0, 2, 0}));
  CHECK_THROWS(InvalidProgram, "(select): operand 'c' is 2", build({11, 0, 0, 0, 2}));
  CHECK_THROWS(InvalidProgram, "(of): operand 'a' is 1", build({13, 0, 1, 0, 0}));
  CHECK_THROWS(InvalidProgram, "(elem): operand 'a' is 1", build({14, 0, 1, 0, 0}));
  CHECK_THROWS(InvalidProgram, "(align): operand 'b' is 0", build({15, 0, 0, 0, 0}));
  CHECK_THROWS(InvalidProgram, "(dense): operand 'a' is 1", build({19, 0, 1, 0, 0}));
}

TEST(refuses_malformed_functions) {
  CHECK_THROWS(InvalidProgram, "at least one function", Script{}.build());
  CHECK_THROWS(InvalidProgram, "function 0: the number of values is -1", Script{{{-1, 0, {}, {}, {}, {}}}}.build());
  CHECK_THROWS(InvalidProgram, "the number of dims is 16777217", Script{{{0, (1 << 24) + 1, {}, {}, {}, {}}}}.build());
  CHECK_THROWS(InvalidProgram, "function 0, inputs: operand 'register' is 1",
               Script{{{1, 0, {1}, {}, {}, {}}}}.build());
  CHECK_THROWS(InvalidProgram, "function 0, inputs: a register is named twice",
               Script{{{1, 0, {0, 0}, {}, {}, {}}}}.build());
  CHECK_THROWS(InvalidProgram, "function 1, outputs: operand 'register' is -1",
               Script{{{1, 0, {}, {}, {}, {}}, {1, 0, {}, {-1}, {}, {}}}}.build());
  CHECK_THROWS(InvalidProgram, "the number of slots is -1", build_program({FunctionText{}}, 0, {}, -1));
  CHECK_THROWS(InvalidProgram, "the number of call-outs is -1", build_program({FunctionText{}}, -1, {}, 0));
}

TEST(a_jump_to_the_end_is_fine) { with_steps({{8, 1}}).build(); }

}  // namespace
}  // namespace tierup::test
