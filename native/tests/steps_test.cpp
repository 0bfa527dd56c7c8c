// Every step: what it does, and how it ends a call.
#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

using Codes = std::vector<std::array<int64_t, 5>>;
using Steps = std::vector<std::vector<int64_t>>;

FunctionText function(int64_t values, int64_t dims, std::vector<int64_t> ins, std::vector<int64_t> outs, Codes code,
                      Steps steps) {
  return {values, dims, std::move(ins), std::move(outs), std::move(code), std::move(steps)};
}

// A kernel that doubles floats: buffers x, y; sizes unused.
int32_t double_floats(void* const* buffers, const int64_t*, void*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) static_cast<float*>(buffers[1])[i] = 2 * static_cast<float*>(buffers[0])[i];
  return 0;
}

// Writes its scratch full before it sums it up: wrong if two threads share one.
int32_t sum_in_scratch(void* const* buffers, const int64_t* sizes, void* scratch, int64_t begin, int64_t end) {
  auto* own = static_cast<int64_t*>(scratch);
  for (int64_t i = begin; i < end; ++i) {
    int64_t sum = 0;
    for (int64_t k = 0; k < sizes[0]; ++k) own[k] = i;
    for (int64_t k = 0; k < sizes[0]; ++k) sum += own[k];
    static_cast<int64_t*>(buffers[0])[i] = sum;
  }
  return 0;
}

int32_t give_up_at_seven(void* const*, const int64_t*, void*, int64_t begin, int64_t end) {
  return begin <= 7 && 7 < end ? 42 : 0;
}

TEST(identity_passes_the_value_on) {
  const Script script{{function(1, 0, {0}, {0}, {}, {})}};
  const Value x = floats({2}, {1, 2});
  CHECK(script.run({x})[0].get() == x.get());
}

TEST(copy_is_fresh_and_dense) {
  const Script script{{function(2, 0, {0}, {1}, {}, {{5, 1, 0}})}};
  const Ref<Tensor> x = int64s({2, 3}, {0, 1, 2, 3, 4, 5});
  std::swap(x->shape()[0], x->shape()[1]);
  std::swap(x->strides()[0], x->strides()[1]);
  const Value y = script.run({x})[0];
  CHECK(is_dense(*as_tensor(y)));
  CHECK(as_tensor(y)->data != x->data);
  CHECK((items<int64_t>(y) == std::vector<int64_t>{0, 3, 1, 4, 2, 5}));
  CHECK_EQUAL(reinterpret_cast<uintptr_t>(as_tensor(y)->data) % kAlignment, uintptr_t{0});
  CHECK_THROWS(CallError, "function 0, step 0 (copy): value 0 is empty", script.run({Value()}));
}

// Negative strides, strides of 0 and every element size against a plain loop.
TEST(copies_through_any_strides) {
  for (const int32_t dtype : {kU8, kI16, kF32, kI64, kC128}) {
    const int64_t bytes = element_bytes(dtype);
    const Ref<Tensor> base = make_dense(dtype, std::vector<int64_t>{4, 5, 6});
    for (int64_t i = 0; i < 4 * 5 * 6 * bytes; ++i) base->data[i] = static_cast<std::byte>(i * 7);
    const Ref<Tensor> view = Tensor::make(dtype, std::vector<int64_t>{2, 3, 1, 6, 2});
    const std::vector<int64_t> strides = {60 * bytes, 6 * bytes, 12345, -bytes, 0};
    std::ranges::copy(strides, view->strides().begin());
    view->data = base->data + 5 * bytes;
    const Ref<Tensor> copy = copy_dense(*view);
    int64_t at = 0;
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t j = 0; j < 3; ++j)
        for (int64_t k = 0; k < 6; ++k)
          for (int64_t m = 0; m < 2; ++m, ++at) {
            const std::byte* wanted = view->data + i * strides[0] + j * strides[1] + k * strides[3];
            CHECK(std::memcmp(copy->data + at * bytes, wanted, static_cast<size_t>(bytes)) == 0);
          }
  }
}

TEST(alloc_on_the_heap) {
  const Script script{
      {function(1, 2, {}, {0}, {{0, 0, 3, 0, 0}, {0, 1, 0, 0, 0}}, {{0, 0, 2}, {1, 0, 1, 0, -1, 2, 0, 1}})}};
  CHECK((shape(script.run({})[0]) == std::vector<int64_t>{3, 0}));
  const Script negative{{function(1, 1, {}, {0}, {{0, 0, -3, 0, 0}}, {{0, 0, 1}, {1, 0, 1, 0, -1, 1, 0}})}};
  CHECK_THROWS(CallError, "step 1 (alloc): a dim is negative: -3", negative.run({}));
  const int64_t huge = int64_t{1} << 40;
  const Script large{{function(1, 1, {}, {0}, {{0, 0, huge, 0, 0}}, {{0, 0, 1}, {1, 0, 1, 0, -1, 2, 0, 0}})}};
  CHECK_THROWS(CallError, "too large", large.run({}));
}

// dims: 0 size, 1 offset, 2 arena bytes. Allocates in the arena, doubles into it, returns it.
Script in_arena(int64_t size, int64_t offset, int64_t arena) {
  return {{function(2, 3, {0}, {1}, {{0, 0, size, 0, 0}, {0, 1, offset, 0, 0}, {0, 2, arena, 0, 0}},
                    {{0, 0, 3}, {16, 2}, {1, 1, 1, 1, 1, 1, 0}, {4, 0, 2, 0, 1, 0, -1, 0, 0}})},
          {},
          {},
          {double_floats}};
}

TEST(alloc_in_the_arena) {
  const Value x = floats({3}, {1, 2, 3});
  const Value y = in_arena(3, 64, 128).run({x})[0];
  CHECK((items<float>(y) == std::vector<float>{2, 4, 6}));
  CHECK(as_tensor(y)->arena == nullptr);  // what leaves the function is copied out
  CHECK_THROWS(CallError, "(alloc): 12 bytes at offset 128 of an arena of 128", in_arena(3, 128, 128).run({x}));
  CHECK_THROWS(CallError, "offset -64", in_arena(3, -64, 128).run({x}));
  CHECK_THROWS(CallError, "offset 32", in_arena(3, 32, 128).run({x}));
  CHECK_THROWS(CallError, "(arena): an arena of -1 bytes", in_arena(3, 0, -1).run({x}));
}

TEST(arena_memory_is_reused_and_may_grow) {
  CallState state;
  const Script script = in_arena(3, 0, 64);
  const Value x = floats({3}, {1, 2, 3});
  script.run({x}, state);
  const std::byte* before = state.frames[0]->arena.at(0, 64);
  script.run({x}, state);
  CHECK(state.frames[0]->arena.at(0, 64) == before);

  Arena arena;
  arena.reserve(64);
  std::byte* first = arena.at(0, 64);
  first[0] = std::byte{7};
  arena.reserve(1 << 20);
  CHECK(first[0] == std::byte{7});  // still there, until the function ends
  arena.clear();
  CHECK(arena.at(1 << 19, 64) != nullptr);
}

TEST(constants_and_defaults) {
  int alive = 0;
  {
    const Script script{{function(2, 0, {0}, {0, 1}, {}, {{2, 1, 0}, {17, 0, 1}})},
                        {},
                        {floats({1}, {5}), Ref<Token>(new Token(alive))}};
    const std::vector<Value> given = script.run({floats({1}, {9})}), left_out = script.run({Value()});
    CHECK_EQUAL(items<float>(given[0])[0], 9.0F);
    CHECK_EQUAL(items<float>(given[1])[0], 5.0F);
    CHECK(left_out[0]->kind == Kind::host);
    CHECK_EQUAL(alive, 1);
  }
  CHECK_EQUAL(alive, 0);
}

TEST(callouts_get_and_give_values) {
  int alive = 0;
  const Script script{{function(4, 0, {0}, {2}, {}, {{3, 0, 3, 0, -1, 3, 2, -1, 1}, {3, 1, 1, 1, 1, 2}})},
                      {[&](std::span<Object* const> ins, std::span<Value* const> outs) {
                         CHECK(ins[0]->kind == Kind::tensor && ins[1] == nullptr && ins[2] == nullptr);
                         CHECK(outs[0] == nullptr);
                         *outs[1] = Ref<Token>(new Token(alive));
                       },
                       [](std::span<Object* const> ins, std::span<Value* const> outs) {
                         CHECK(ins[0]->kind == Kind::host);
                         *outs[0] = floats({}, {3});
                       }}};
  CHECK_EQUAL(items<float>(script.run({floats({}, {1})})[0])[0], 3.0F);
  CHECK_EQUAL(alive, 0);  // everything is given back when the call ends
}

struct HostError {};

TEST(what_a_callout_throws_passes_through) {
  int alive = 0;
  CallState state;
  const Script script{{function(2, 0, {}, {}, {}, {{3, 0, 0, 1, 0}, {3, 1, 0, 0}})},
                      {[&](auto, std::span<Value* const> outs) { *outs[0] = Ref<Token>(new Token(alive)); },
                       [](auto, auto) { throw HostError(); }}};
  bool thrown = false;
  try {
    script.run({}, state);
  } catch (const HostError&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK_EQUAL(alive, 0);
}

TEST(free_and_move) {
  int alive = 0;
  const Script script{{function(3, 0, {0}, {1}, {}, {{6, 1, 0}, {7, 0}, {3, 0, 2, 0, 1, 0}, {6, 1, 2}})},
                      {[&](std::span<Object* const> ins, auto) { CHECK(ins[0] == nullptr && ins[1] != nullptr); }}};
  const std::vector<Value> outs = script.run({Ref<Token>(new Token(alive))});
  CHECK(!outs[0]);
  CHECK_EQUAL(alive, 0);
}

TEST(branches) {
  // 0: branch v0 -> 3; 1: v1 = constant 0; 2: jump 4; 3: v1 = constant 1
  const Script script{{function(2, 0, {0}, {1}, {}, {{9, 0, 3}, {2, 1, 0}, {8, 4}, {2, 1, 1}})},
                      {},
                      {floats({}, {10}), floats({}, {20})}};
  CHECK_EQUAL(items<float>(script.run({boolean(true)})[0])[0], 10.0F);
  CHECK_EQUAL(items<float>(script.run({boolean(false)})[0])[0], 20.0F);
  CHECK_EQUAL(items<float>(script.run({tensor<uint8_t>(kBool, {1, 1}, {1})})[0])[0], 10.0F);
  CHECK_THROWS(CallError, "(branch): value 0 is no bool scalar", script.run({floats({}, {1})}));
  CHECK_THROWS(CallError, "is no bool scalar", script.run({tensor<uint8_t>(kBool, {2}, {1, 1})}));
  CHECK_THROWS(CallError, "value 0 is empty", script.run({Value()}));
}

// A loop that pushes its counter: [0, 1, .., n - 1] along a new axis.
Script counting(int64_t reverse) {
  const Codes code = {{14, 0, 0, 0, 0}, {0, 1, 0, 0, 0}, {0, 2, 1, 0, 0}, {10, 3, 1, 0, 0}, {1, 1, 1, 2, 0}};
  return {{function(
      4, 4, {0}, {3}, code,
      {{0, 0, 3}, {0, 3, 4}, {10, 3, 7}, {12, 1, 7, 1}, {14, 2, 1}, {0, 4, 5}, {8, 1}, {15, 3, 2, 0, reverse, 7, 0}})}};
}

TEST(loops_push_and_stack) {
  CHECK((items<int64_t>(counting(0).run({int64s({}, {4})})[0]) == std::vector<int64_t>{0, 1, 2, 3}));
  CHECK((items<int64_t>(counting(1).run({int64s({}, {4})})[0]) == std::vector<int64_t>{3, 2, 1, 0}));
  CHECK((shape(counting(0).run({int64s({}, {0})})[0]) == std::vector<int64_t>{0}));
}

TEST(stack_along_any_axis) {
  for (const int64_t axis : {0, 1, 2, -1}) {
    const Script script{{function(4, 0, {0, 1}, {3}, {}, {{14, 2, 0}, {14, 2, 1}, {15, 3, 2, axis, 0, 1, 0}})}};
    const Value joined = script.run({floats({1, 2}, {1, 2}), floats({1, 2}, {3, 4})})[0];
    const int64_t at = axis < 0 ? axis + 3 : axis;
    std::vector<int64_t> wanted = {1, 2};
    wanted.insert(wanted.begin() + at, 2);
    CHECK(shape(joined) == wanted);
    CHECK((items<float>(joined) == (at == 2 ? std::vector<float>{1, 3, 2, 4} : std::vector<float>{1, 2, 3, 4})));
  }
  const Script empty{
      {function(2, 2, {}, {1}, {{0, 0, 5, 0, 0}, {0, 1, 6, 0, 0}}, {{0, 0, 2}, {15, 1, 0, 1, 0, 1, 2, 0, 1}})}};
  CHECK((shape(empty.run({})[0]) == std::vector<int64_t>{5, 0, 6}));
}

TEST(stack_and_push_refuse) {
  const Script two{{function(4, 0, {0, 1}, {3}, {}, {{14, 2, 0}, {14, 2, 1}, {15, 3, 2, 0, 0, 1, 0}})}};
  CHECK_THROWS(CallError, "(stack): the items to stack differ", two.run({floats({1}, {1}), floats({2}, {1, 2})}));
  CHECK_THROWS(CallError, "differ", two.run({floats({1}, {1}), int64s({1}, {1})}));
  int alive = 0;
  CHECK_THROWS(CallError, "no tensor of numbers", two.run({floats({1}, {1}), Ref<Token>(new Token(alive))}));
  CHECK_THROWS(CallError, "(push): value 1 is empty", two.run({floats({1}, {1}), Value()}));
  const Script not_a_list{{function(2, 0, {0}, {1}, {}, {{15, 1, 0, 0, 0, 1, 0}})}};
  CHECK_THROWS(CallError, "no list", not_a_list.run({floats({1}, {1})}));
  const Script axis{{function(3, 0, {0}, {2}, {}, {{14, 1, 0}, {15, 2, 1, 2, 0, 1, 0}})}};
  CHECK_THROWS(CallError, "axis 2 of a tensor of rank 2", axis.run({floats({1}, {1})}));
  const Script nested{{function(2, 0, {0}, {1}, {}, {{14, 1, 0}, {14, 1, 1}})}};
  CHECK_THROWS(CallError, "lists do not nest", nested.run({floats({1}, {1})}));
  const Script onto_tensor{{function(1, 0, {0}, {}, {}, {{14, 0, 0}})}};
  CHECK_THROWS(CallError, "value 0 holds no list", onto_tensor.run({floats({1}, {1})}));
}

TEST(lists_are_values) {
  // v1 = [x]; v2 = v1; push v2; stack both
  const Script script{{function(5, 0, {0}, {3, 4}, {},
                                {{14, 1, 0}, {6, 2, 1}, {14, 2, 0}, {15, 3, 1, 0, 0, 1, 0}, {15, 4, 2, 0, 0, 1, 0}})}};
  const std::vector<Value> outs = script.run({floats({}, {1})});
  CHECK((shape(outs[0]) == std::vector<int64_t>{1}));
  CHECK((shape(outs[1]) == std::vector<int64_t>{2}));
}

TEST(pushed_arena_tensors_survive_the_arena) {
  // Doubles x into one place of the arena twice (x, then 2x), pushing each time.
  const Codes code = {{0, 0, 2, 0, 0}, {0, 1, 0, 0, 0}, {0, 2, 128, 0, 0}, {0, 3, 64, 0, 0}};
  const Script script{{function(5, 4, {0}, {4}, code,
                                {{0, 0, 4},
                                 {16, 2},
                                 {1, 1, 1, 1, 1, 1, 0},
                                 {4, 0, 2, 0, 1, 0, -1, 0, 0},
                                 {14, 3, 1},
                                 {4, 0, 2, 1, 1, 0, -1, 0, 0},
                                 {14, 3, 1},
                                 {15, 4, 3, 0, 0, 1, 0}})},
                      {},
                      {},
                      {double_floats}};
  CHECK((items<float>(script.run({floats({2}, {1, 3})})[0]) == std::vector<float>{2, 6, 4, 12}));
}

TEST(index_is_a_view) {
  const auto at = [](int64_t axis, int64_t position) {
    return Script{{function(2, 1, {0}, {1}, {{0, 0, position, 0, 0}}, {{0, 0, 1}, {13, 1, 0, axis, 0}})}};
  };
  const Value x = int64s({2, 3}, {0, 1, 2, 3, 4, 5});
  const Value row = at(0, 1).run({x})[0], column = at(1, -1).run({x})[0];
  CHECK((items<int64_t>(row) == std::vector<int64_t>{3, 4, 5}));
  CHECK((items<int64_t>(column) == std::vector<int64_t>{2, 5}));
  CHECK((items<int64_t>(at(-1, 0).run({x})[0]) == std::vector<int64_t>{0, 3}));
  CHECK(as_tensor(row)->storage.get() == as_tensor(x)->storage.get());
  CHECK_THROWS(CallError, "(index): position 2 on an axis of size 2", at(0, 2).run({x}));
  CHECK_THROWS(CallError, "position -3", at(0, -3).run({x}));
  CHECK_THROWS(CallError, "axis 2", at(2, 0).run({x}));
  CHECK_THROWS(CallError, "axis 0 of a tensor of rank 0", at(0, 0).run({int64s({}, {1})}));
}

// v1 = v0 under the shape `sizes`.
Script viewing(const std::vector<int64_t>& sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  Codes code;
  std::vector<int64_t> view = {18, 1, 0, rank};
  for (int64_t i = 0; i < rank; ++i) {
    code.push_back({0, i, sizes[static_cast<size_t>(i)], 0, 0});
    view.push_back(i);
  }
  return {{function(2, rank, {0}, {1}, code, {{0, 0, rank}, view})}};
}

TEST(view_shares_dense_memory) {
  const Ref<Tensor> x = int64s({2, 3}, {0, 1, 2, 3, 4, 5});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{6}, {3, 2}, {1, 6, 1}, {2, 3}}) {
    const Value y = viewing(sizes).run({x})[0];
    CHECK(shape(y) == sizes);
    CHECK(is_dense(*as_tensor(y)));
    CHECK(as_tensor(y)->data == x->data);
    CHECK(as_tensor(y)->storage.get() == x->storage.get());
  }
  const Script in_place{{function(1, 1, {0}, {0}, {{0, 0, 6, 0, 0}}, {{0, 0, 1}, {18, 0, 0, 1, 0}})}};
  CHECK((items<int64_t>(in_place.run({int64s({2, 3}, {0, 1, 2, 3, 4, 5})})[0]) ==
         std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(view_of_one_element_or_none) {
  const Value x = floats({1, 1}, {7}), scalar = viewing({}).run({x})[0];
  CHECK(shape(scalar).empty());
  CHECK(as_tensor(scalar)->data == as_tensor(x)->data);
  CHECK((shape(viewing({1, 1}).run({scalar})[0]) == std::vector<int64_t>{1, 1}));
  CHECK((shape(viewing({4, 0}).run({floats({0, 3}, {})})[0]) == std::vector<int64_t>{4, 0}));
  CHECK_THROWS(CallError, "value 0 has 0 elements, but the dims say 1", viewing({}).run({floats({0}, {})}));
  CHECK_THROWS(CallError, "value 0 has 1 elements, but the dims say 0", viewing({0}).run({floats({}, {1})}));
}

TEST(view_copies_what_is_not_dense) {
  const Ref<Tensor> x = int64s({2, 3}, {0, 1, 2, 3, 4, 5});
  std::swap(x->shape()[0], x->shape()[1]);
  std::swap(x->strides()[0], x->strides()[1]);
  const Value y = viewing({6}).run({x})[0];
  CHECK((items<int64_t>(y) == std::vector<int64_t>{0, 3, 1, 4, 2, 5}));
  CHECK(as_tensor(y)->storage.get() != x->storage.get());

  const Ref<Tensor> bytes = make_dense(kU8, std::vector<int64_t>{17});
  const std::array<float, 4> numbers = {1, 2, 3, 4};
  std::memcpy(bytes->data + 1, numbers.data(), sizeof numbers);
  const Ref<Tensor> unaligned = Tensor::make(kF32, std::vector<int64_t>{4});
  unaligned->data = bytes->data + 1;
  unaligned->storage = bytes->storage;
  const Value aligned = viewing({2, 2}).run({unaligned})[0];
  CHECK((items<float>(aligned) == std::vector<float>{1, 2, 3, 4}));
  CHECK(is_dense(*as_tensor(aligned)));
}

TEST(view_in_the_arena) {
  // As in_arena(6, 64, 128), then viewed as (2, 3) and doubled again in place through the view.
  Script script = in_arena(6, 64, 128);
  FunctionText& text = script.functions[0];
  text.n_values = 3;
  text.n_dims = 5;
  text.outputs = {1, 2};
  text.dim_code.insert(text.dim_code.end(), {{0, 3, 2, 0, 0}, {0, 4, 3, 0, 0}});
  text.steps.insert(text.steps.end(), {{0, 3, 5}, {18, 2, 1, 2, 3, 4}, {4, 0, 2, 2, 2, 0, -1, 0, 0}});
  const std::vector<Value> outs = script.run({floats({6}, {1, 2, 3, 4, 5, 6})});
  CHECK((items<float>(outs[0]) == std::vector<float>{4, 8, 12, 16, 20, 24}));  // one memory under both
  CHECK((items<float>(outs[1]) == std::vector<float>{4, 8, 12, 16, 20, 24}));
  CHECK((shape(outs[1]) == std::vector<int64_t>{2, 3}));
  CHECK(as_tensor(outs[1])->arena == nullptr);  // and what leaves the function is copied out
  CHECK(as_tensor(outs[1])->data != as_tensor(outs[0])->data);
}

TEST(view_refuses) {
  const Value x = floats({2, 3}, {0, 1, 2, 3, 4, 5});
  CHECK_THROWS(CallError, "function 0, step 1 (view): value 0 has 6 elements, but the dims say 8",
               viewing({2, 4}).run({x}));
  CHECK_THROWS(CallError, "(view): a dim is negative: -2", viewing({-2, -3}).run({x}));
  CHECK_THROWS(CallError, "a dim is negative: -1", viewing({0, -1}).run({floats({0}, {})}));
  const int64_t huge = int64_t{1} << 32;
  CHECK_THROWS(CallError, "too large", viewing({huge, huge}).run({floats({0}, {})}));  // 0 modulo 2^64
  CHECK_THROWS(CallError, "too large", viewing({0, huge, huge}).run({floats({0}, {})}));
  CHECK_THROWS(CallError, "too large", viewing({0, int64_t{1} << 62}).run({floats({0}, {})}));  // in bytes
  CHECK_THROWS(CallError, "value 0 is empty", viewing({1}).run({Value()}));
  CHECK_THROWS(CallError, "value 0 holds no tensor", viewing({1}).run({Ref<List>(new List())}));
}

TEST(scalars) {
  const auto scalar = [](int64_t dtype, int64_t number) {
    return Script{{function(1, 1, {}, {0}, {{0, 0, number, 0, 0}}, {{0, 0, 1}, {12, 0, dtype, 0}})}}.run({})[0];
  };
  CHECK_EQUAL(items<int64_t>(scalar(kI64, INT64_MIN))[0], INT64_MIN);
  CHECK_EQUAL(items<int32_t>(scalar(kI32, -5))[0], -5);
  CHECK_EQUAL(int{items<uint8_t>(scalar(kBool, 256))[0]}, 1);
  CHECK_THROWS(CallError, "(scalar): 2147483648 does not fit an int32", scalar(kI32, int64_t{1} << 31));
}

TEST(calls_have_frames_of_their_own) {
  // Function 1 swaps its inputs; its registers are not the caller's.
  const Script script{
      {function(3, 0, {0, 1}, {0, 1}, {}, {{11, 1, 2, 0, 1, 2, 0, 1}}), function(2, 0, {0, 1}, {1, 0}, {}, {})}};
  const std::vector<Value> outs = script.run({floats({}, {1}), floats({}, {2})});
  CHECK_EQUAL(items<float>(outs[0])[0], 2.0F);
  CHECK_EQUAL(items<float>(outs[1])[0], 1.0F);
  const Script absent{
      {function(1, 0, {0}, {0}, {}, {{11, 1, 2, 0, -1, 2, -1, 0}}), function(2, 0, {0, 1}, {0, 1}, {}, {})}};
  CHECK(!absent.run({floats({}, {1})})[0]);
}

TEST(results_leave_the_callees_arena) {
  Script script = in_arena(2, 0, 64);
  script.functions.push_back(script.functions[0]);
  script.functions[0] = function(3, 0, {0}, {1, 2}, {}, {{11, 1, 1, 0, 1, 1}, {11, 1, 1, 1, 1, 2}});
  const std::vector<Value> outs = script.run({floats({2}, {1, 2})});
  CHECK((items<float>(outs[0]) == std::vector<float>{2, 4}));
  CHECK((items<float>(outs[1]) == std::vector<float>{4, 8}));
}

TEST(depth_is_bounded) {
  const Script script{{function(0, 0, {}, {}, {}, {{11, 0, 0, 0}})}};
  CHECK_THROWS(CallError, "function 0, step 0 (call): functions call each other more than 128 deep", script.run({}));
}

TEST(kernels_cover_their_range) {
  const auto doubled = [&](int64_t grain) {
    const Codes code = {{13, 0, 0, 0, 0}, {0, 1, grain, 0, 0}};
    return Script{
        {function(2, 2, {0}, {1}, code, {{0, 0, 2}, {1, 1, 1, 0, -1, 1, 0}, {4, 0, 2, 0, 1, 1, 0, -1, 0, 1}})},
        {},
        {},
        {double_floats}};
  };
  for (const size_t size : {0U, 1U, 7U, 1000U}) {
    std::vector<float> numbers(size);
    for (size_t i = 0; i < size; ++i) numbers[i] = static_cast<float>(i);
    const Value x = tensor<float>(kF32, {static_cast<int64_t>(size)}, numbers);
    for (float& number : numbers) number *= 2;
    for (const int64_t grain : {-1, 1, 3, 5000}) CHECK(items<float>(doubled(grain).run({x})[0]) == numbers);
  }
  CHECK_THROWS(CallError, "value 0 holds no tensor", doubled(1).run({Ref<List>(new List())}));
}

TEST(every_thread_has_its_own_scratch) {
  const Codes code = {{0, 0, 400, 0, 0}, {0, 1, 100, 0, 0}, {0, 2, 800, 0, 0}};
  const Script script{{function(1, 3, {}, {0}, code, {{0, 0, 3}, {1, 0, 7, 0, -1, 1, 0}, {4, 0, 1, 0, 1, 1, 2, 0, 0}})},
                      {},
                      {},
                      {sum_in_scratch}};
  const std::vector<int64_t> sums = items<int64_t>(script.run({})[0]);
  for (size_t i = 0; i < sums.size(); ++i) CHECK_EQUAL(sums[i], static_cast<int64_t>(i) * 100);
}

TEST(kernels_end_calls) {
  const auto over = [](int64_t range, int64_t scratch, KernelFn kernel) {
    return Script{
        {function(0, 2, {}, {}, {{0, 0, range, 0, 0}, {0, 1, scratch, 0, 0}}, {{0, 0, 2}, {4, 0, 0, 0, 1, 0, 0}})},
        {},
        {},
        {kernel}};
  };
  CHECK_THROWS(CallError, "(kernel): the kernel in slot 0 gave up with status 42",
               over(100, 0, give_up_at_seven).run({}));
  CHECK_THROWS(CallError, "slot 0 holds no kernel", over(1, 0, nullptr).run({}));
  CHECK_THROWS(CallError, "the range is negative: -1", over(-1, 0, give_up_at_seven).run({}));
  CHECK_THROWS(CallError, "scratch of -1 bytes", over(1, -1, give_up_at_seven).run({}));
  CHECK_THROWS(std::bad_alloc, "bad_alloc", over(1, INT64_MAX - 100, give_up_at_seven).run({}));
}

TEST(strings_belong_to_the_host) {
  int alive = 0;
  Ref<Tensor> words = Tensor::make(kString, std::vector<int64_t>{2, 3});
  std::array<void*, 6> pointers{};
  words->data = reinterpret_cast<std::byte*>(pointers.data());
  words->storage = Ref<Token>(new Token(alive));
  const Script copy{{function(2, 1, {0}, {1}, {{13, 0, 0, 1, 0}}, {{0, 0, 1}, {5, 1, 0}})}};
  CHECK(copy.run({words})[0].get() == words.get());
  const Script index{{function(2, 1, {0}, {1}, {}, {{13, 1, 0, 0, 0}})}};
  CHECK((shape(index.run({words})[0]) == std::vector<int64_t>{3}));
  const Script stack{{function(3, 0, {0}, {2}, {}, {{14, 1, 0}, {15, 2, 1, 0, 0, 1, 0}})}};
  CHECK_THROWS(CallError, "no tensor of numbers", stack.run({words}));
  const Script kernel{{function(1, 1, {0}, {}, {}, {{4, 0, 1, 0, 0, -1, 0, 0}})}, {}, {}, {double_floats}};
  CHECK_THROWS(CallError, "holds strings", kernel.run({words}));
  CHECK_THROWS(CallError, "(view): value 0 holds strings", viewing({6}).run({words}));
}

TEST(long_loops_take_turns) {
  const auto turns = [](int64_t rounds) {
    const std::vector<std::array<int64_t, 5>> dims = {
        {0, 1, 1, 0, 0}, {0, 2, rounds, 0, 0}, {1, 0, 0, 1, 0}, {10, 3, 2, 0, 0}};
    const Script script{{function(0, 4, {}, {}, dims, {{0, 0, 2}, {0, 2, 4}, {10, 3, 1}})}};
    const Program program = script.build();
    FakeHost host;
    CallState state;
    run({program, {}, pool(), host, state}, {}, {});
    return host.turns;
  };
  CHECK_EQUAL(turns(1000), 0);
  CHECK_EQUAL(turns(10'000), 4);
}

TEST(long_work_steps_aside) {
  const auto asides = [](int64_t size) {
    const Script script{{function(2, 0, {0}, {1}, {}, {{5, 1, 0}})}};
    const Program program = script.build();
    FakeHost host;
    CallState state;
    std::vector<Value> ins = {make_dense(kU8, std::vector<int64_t>{size})}, outs(1);
    run({program, {}, pool(), host, state}, ins, outs);
    return host.stepped_aside;
  };
  CHECK_EQUAL(asides(1000), 0);
  CHECK_EQUAL(asides(1 << 20), 1);
}

}  // namespace
}  // namespace tierup::test
