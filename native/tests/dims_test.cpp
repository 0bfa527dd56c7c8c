// Every dim instruction: its results, its errors.
#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

constexpr int64_t kMin = INT64_MIN, kMax = INT64_MAX;

int64_t evaluate(DimOp op, int64_t a, int64_t b = 0, int64_t c = 0) {
  std::vector<int64_t> dims = {a, b, c, 0};
  const std::vector<DimInstruction> code = {{op, 3, 0, 1, 2}};
  run_dims(code, 0, 1, dims, {});
  return dims[3];
}

int64_t look_at(DimOp op, const Value& value, int64_t literal) {
  std::vector<int64_t> dims(1);
  const std::vector<Value> values = {value};
  const std::vector<DimInstruction> code = {{op, 0, 0, literal, 0}};
  run_dims(code, 0, 1, dims, values);
  return dims[0];
}

TEST(dim_arithmetic) {
  CHECK_EQUAL(evaluate(DimOp::add, 2, -5), -3);
  CHECK_EQUAL(evaluate(DimOp::sub, 2, -5), 7);
  CHECK_EQUAL(evaluate(DimOp::mul, 7, -5), -35);
  CHECK_EQUAL(evaluate(DimOp::min, 3, -4), -4);
  CHECK_EQUAL(evaluate(DimOp::max, 3, -4), 3);
  CHECK_EQUAL(evaluate(DimOp::eq, 3, 3), 1);
  CHECK_EQUAL(evaluate(DimOp::eq, 3, 4), 0);
  CHECK_EQUAL(evaluate(DimOp::lt, 3, 4), 1);
  CHECK_EQUAL(evaluate(DimOp::lt, 4, 4), 0);
  CHECK_EQUAL(evaluate(DimOp::select, -1, 10, 20), 10);
  CHECK_EQUAL(evaluate(DimOp::select, 0, 10, 20), 20);
  CHECK_EQUAL(evaluate(DimOp::abs, -9), 9);
  CHECK_EQUAL(evaluate(DimOp::abs, 9), 9);
}

// Against the definition: quotient and rest in all sign combinations, including exact ones.
TEST(dim_divisions) {
  for (int64_t a = -13; a <= 13; ++a) {
    for (int64_t b = -5; b <= 5; ++b) {
      if (b == 0) continue;
      const int64_t floor = evaluate(DimOp::floordiv, a, b), ceil = evaluate(DimOp::ceildiv, a, b);
      const int64_t rest = evaluate(DimOp::mod, a, b);
      CHECK_EQUAL(floor * b + rest, a);
      CHECK(b > 0 ? rest >= 0 && rest < b : rest <= 0 && rest > b);
      CHECK_EQUAL(ceil, rest == 0 ? floor : floor + 1);
      CHECK_EQUAL(evaluate(DimOp::truncdiv, a, b), a / b);
    }
  }
  CHECK_EQUAL(evaluate(DimOp::mod, kMin, -1), 0);
  CHECK_EQUAL(evaluate(DimOp::floordiv, kMin, 1), kMin);
}

TEST(dim_arithmetic_errors) {
  CHECK_THROWS(CallError, "(add): the result does not fit", evaluate(DimOp::add, kMax, 1));
  CHECK_THROWS(CallError, "(sub): the result does not fit", evaluate(DimOp::sub, kMin, 1));
  CHECK_THROWS(CallError, "(mul): the result does not fit", evaluate(DimOp::mul, kMax, 2));
  CHECK_THROWS(CallError, "(abs): the result does not fit", evaluate(DimOp::abs, kMin));
  for (const DimOp op : {DimOp::floordiv, DimOp::ceildiv, DimOp::truncdiv}) {
    CHECK_THROWS(CallError, "division by zero", evaluate(op, 1, 0));
    CHECK_THROWS(CallError, "does not fit", evaluate(op, kMin, -1));
  }
  CHECK_THROWS(CallError, "(mod): division by zero", evaluate(DimOp::mod, 1, 0));
}

TEST(dim_broadcast) {
  CHECK_EQUAL(evaluate(DimOp::broadcast, 4, 1), 4);
  CHECK_EQUAL(evaluate(DimOp::broadcast, 1, 4), 4);
  CHECK_EQUAL(evaluate(DimOp::broadcast, 4, 4), 4);
  CHECK_EQUAL(evaluate(DimOp::broadcast, 0, 1), 0);
  CHECK_THROWS(CallError, "sizes 4 and 3 do not broadcast", evaluate(DimOp::broadcast, 4, 3));
  CHECK_THROWS(CallError, "sizes 0 and 3 do not broadcast", evaluate(DimOp::broadcast, 0, 3));
}

TEST(dim_literals) {
  std::vector<int64_t> dims = {5, 0, 0};
  const std::vector<DimInstruction> code = {{DimOp::constant, 1, kMin, 0, 0}, {DimOp::align, 2, 0, 64, 0}};
  run_dims(code, 0, 2, dims, {});
  CHECK_EQUAL(dims[1], kMin);
  CHECK_EQUAL(dims[2], 64);
  for (const auto& [given, wanted] : {std::pair<int64_t, int64_t>{0, 0}, {64, 64}, {65, 128}, {-65, -64}}) {
    dims[0] = given;
    run_dims(code, 1, 2, dims, {});
    CHECK_EQUAL(dims[2], wanted);
  }
  dims[0] = kMax;
  CHECK_THROWS(CallError, "dim instruction 1 (align)", run_dims(code, 1, 2, dims, {}));
}

TEST(dim_of_a_value) {
  const Value value = floats({2, 3}, {0, 0, 0, 0, 0, 0});
  CHECK_EQUAL(look_at(DimOp::of, value, 1), 3);
  CHECK_EQUAL(look_at(DimOp::of, value, -2), 2);
  CHECK_EQUAL(look_at(DimOp::stride, value, 0), 12);
  CHECK_EQUAL(look_at(DimOp::dense, value, 0), 1);
  CHECK_THROWS(CallError, "axis 2 of a tensor of rank 2", look_at(DimOp::of, value, 2));
  CHECK_THROWS(CallError, "axis -3", look_at(DimOp::stride, value, -3));
  CHECK_THROWS(CallError, "value 0 holds no tensor", look_at(DimOp::of, Value(), 0));
  CHECK_THROWS(CallError, "value 0 holds no tensor", look_at(DimOp::of, Ref<List>(new List()), 0));
}

TEST(dim_dense_sees_gaps_and_alignment) {
  Ref<Tensor> value = floats({2, 3}, {0, 0, 0, 0, 0, 0});
  std::swap(value->strides()[0], value->strides()[1]);
  CHECK_EQUAL(look_at(DimOp::dense, value, 0), 0);
  std::swap(value->strides()[0], value->strides()[1]);
  value->data += 1;
  CHECK_EQUAL(look_at(DimOp::dense, value, 0), 0);
  value->data -= 1;
  const Ref<Tensor> one_row = floats({1, 3}, {1, 2, 3});
  one_row->strides()[0] = 999;  // the stride of an axis of size 1 means nothing
  CHECK_EQUAL(look_at(DimOp::dense, one_row, 0), 1);
  const Ref<Tensor> empty = floats({3, 0}, {});
  empty->strides()[0] = 999;
  CHECK_EQUAL(look_at(DimOp::dense, empty, 0), 1);
}

TEST(dim_elem_of_every_integer_type) {
  const auto last = [](const Ref<Tensor>& value) { return look_at(DimOp::elem, value, 1); };
  CHECK_EQUAL(last(tensor<uint8_t>(kU8, {2}, {0, 200})), 200);
  CHECK_EQUAL(last(tensor<int8_t>(kI8, {2}, {0, -100})), -100);
  CHECK_EQUAL(last(tensor<uint16_t>(kU16, {2}, {0, 60000})), 60000);
  CHECK_EQUAL(last(tensor<int16_t>(kI16, {2}, {0, -30000})), -30000);
  CHECK_EQUAL(last(tensor<int32_t>(kI32, {2}, {0, -7})), -7);
  CHECK_EQUAL(last(tensor<int64_t>(kI64, {2}, {0, kMin})), kMin);
  CHECK_EQUAL(last(tensor<uint8_t>(kBool, {2}, {0, 1})), 1);
  CHECK_EQUAL(last(tensor<uint32_t>(kU32, {2}, {0, 4000000000U})), 4000000000);
  CHECK_EQUAL(last(tensor<uint64_t>(kU64, {2}, {0, 5})), 5);
  CHECK_EQUAL(last(tensor<uint8_t>(kU4, {2}, {0, 15})), 15);
  CHECK_EQUAL(last(tensor<uint8_t>(kI4, {2}, {0, 15})), -1);
  CHECK_EQUAL(last(tensor<uint8_t>(kI4, {2}, {0, 0xf8})), -8);
  CHECK_EQUAL(last(tensor<uint8_t>(kU2, {2}, {0, 3})), 3);
  CHECK_EQUAL(last(tensor<uint8_t>(kI2, {2}, {0, 2})), -2);
}

TEST(dim_elem_follows_strides_and_refuses) {
  const Ref<Tensor> value = int64s({2, 3}, {0, 1, 2, 3, 4, 5});
  std::swap(value->shape()[0], value->shape()[1]);
  std::swap(value->strides()[0], value->strides()[1]);  // the transpose
  CHECK_EQUAL(look_at(DimOp::elem, value, 1), 3);
  CHECK_EQUAL(look_at(DimOp::elem, value, 4), 2);
  CHECK_THROWS(CallError, "element 6 of a tensor with 6", look_at(DimOp::elem, value, 6));
  CHECK_THROWS(CallError, "element -1", look_at(DimOp::elem, value, -1));
  CHECK_THROWS(CallError, "no integer elements", look_at(DimOp::elem, floats({1}, {1}), 0));
  CHECK_THROWS(CallError, "does not fit", look_at(DimOp::elem, tensor<uint64_t>(kU64, {1}, {UINT64_MAX}), 0));
}

}  // namespace
}  // namespace tierup::test
