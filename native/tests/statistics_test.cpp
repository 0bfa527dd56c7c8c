// Statistics of inputs: what is counted, through strides and over samples. Python compares more with NumPy.
#include "statistics.hpp"

#include <cmath>

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

TEST(numbers_are_counted) {
  const Statistics found = statistics_of(*floats({2, 3}, {0.0f, -0.0f, 2.5f, -7.0f, NAN, INFINITY}));
  CHECK(found.numbers && found.elements == 6 && found.looked == 6);
  CHECK(found.zeros == 2 && found.nonfinite == 2);
  CHECK(found.min == -7.0 && found.max == 2.5);
}

TEST(nothing_has_no_extremes) {
  const Statistics empty = statistics_of(*floats({0, 3}, {}));
  CHECK(empty.elements == 0 && empty.looked == 0 && empty.min == 0 && empty.max == 0);
  const Statistics strange = statistics_of(*floats({2}, {NAN, -INFINITY}));
  CHECK(strange.nonfinite == 2 && strange.min == 0 && strange.max == 0);
}

TEST(strides_make_no_difference) {
  std::vector<int64_t> numbers(60);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i * i % 7) - 2;
  const Ref<Tensor> dense = int64s({6, 10}, numbers);
  std::vector<int64_t> turned;
  for (size_t column = 0; column < 10; ++column) {
    for (size_t row = 0; row < 6; ++row) turned.push_back(numbers[row * 10 + column]);
  }
  const Ref<Tensor> across = int64s({10, 6}, turned);
  Ref<Tensor> view = Tensor::make(kI64, dense->shape());
  view->strides()[0] = 8;
  view->strides()[1] = 48;
  view->data = across->data;
  const Statistics one = statistics_of(*dense), other = statistics_of(*view);
  CHECK(one.hash == other.hash && one.zeros == other.zeros && one.min == other.min && one.max == other.max);
  CHECK(one.hash != statistics_of(*across).hash);
}

TEST(large_ones_are_sampled_all_over) {
  constexpr int64_t kElements = 1 << 20;
  std::vector<float> numbers(kElements);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i % 4 == 0 ? 1.0f : 0.0f;
  const Statistics found = statistics_of(*floats({kElements}, numbers));
  CHECK(found.elements == kElements && found.looked == Statistics::kLooked);
  CHECK(found.zeros == Statistics::kLooked / 4 * 3);  // runs of 16 hold four of every pattern of four
  for (size_t i = 0; i < numbers.size() / 2; ++i) numbers[i] = 0.0f;
  const Statistics half = statistics_of(*floats({kElements}, numbers));
  CHECK(half.zeros == Statistics::kLooked / 8 * 7);
  CHECK(half.hash != found.hash);
}

TEST(halves_are_read_exactly) {
  // The smallest subnormal, one, the largest number, minus infinity.
  const Ref<Tensor> halves = tensor<uint16_t>(kF16, {4}, {0x0001, 0x3c00, 0x7bff, 0xfc00});
  const Statistics found = statistics_of(*halves);
  CHECK(found.min == 0x1p-24 && found.max == 65504 && found.nonfinite == 1);
  const Statistics negative = statistics_of(*tensor<uint16_t>(kF16, {2}, {0x8001, 0x8000}));
  CHECK(negative.min == -0x1p-24 && negative.max == 0 && negative.zeros == 1);
}

TEST(complex_numbers_have_a_hash_only) {
  const Statistics found = statistics_of(*tensor<float>(kC64, {1}, {1.0f, 2.0f}));
  CHECK(!found.numbers && found.elements == 1);
  CHECK(found.hash != statistics_of(*tensor<float>(kC64, {1}, {1.0f, 3.0f})).hash);
}

}  // namespace
}  // namespace tierup::test
