// Products with every instruction set that this processor has, at the borders of tiles, panels and addresses.
#include "product.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

constexpr float kCanary = -12345.0F;

// Rows of the right side lie `gap` floats apart from each other, `shift` bytes behind the border of a float.
struct Sides {
  Sides(int64_t rows_, int64_t inner_, int64_t columns_, int64_t gap, size_t shift_)
      : rows(rows_), inner(inner_), columns(columns_), stride(columns_ + gap), shift(shift_) {
    left.resize(static_cast<size_t>(rows * inner));
    right.resize(static_cast<size_t>(inner * stride));
    uint32_t state = 1;
    const auto draw = [&] {
      state = state * 1664525 + 1013904223;
      return static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
    };
    for (float& number : left) number = draw();
    for (float& number : right) number = draw();
  }

  // As many floats more before and behind it are there to be left alone, and some between its rows.
  std::vector<float> multiplied(const ProductLoops& loops) const {
    constexpr size_t kMargin = 64, kBetween = 3;
    const auto high = static_cast<size_t>(rows), wide = static_cast<size_t>(columns);
    std::vector<std::byte> bytes(right.size() * sizeof(float) + shift);
    if (!right.empty()) std::memcpy(bytes.data() + shift, right.data(), right.size() * sizeof(float));
    std::vector<std::byte> factors(left.size() * sizeof(float) + shift);
    if (!left.empty()) std::memcpy(factors.data() + shift, left.data(), left.size() * sizeof(float));
    std::vector<float> room(kMargin + high * (wide + kBetween) + kMargin, kCanary), result;
    std::vector<float> panel(kProductDepth * kMostProductColumns);
    loops.multiply({factors.data() + shift, bytes.data() + shift, stride * static_cast<int64_t>(sizeof(float)),
                    room.data() + kMargin, columns + static_cast<int64_t>(kBetween), rows, inner, columns},
                   panel.data());
    for (size_t i = 0; i < room.size(); ++i) {
      const size_t place = i - kMargin;
      if (i >= kMargin && place < high * (wide + kBetween) && place % (wide + kBetween) < wide) {
        result.push_back(room[i]);
      } else {
        CHECK(room[i] == kCanary);
      }
    }
    return result;
  }

  int64_t rows, inner, columns, stride;
  size_t shift;
  std::vector<float> left, right;
};

void check_against_doubles(const ProductLoops& loops, const Sides& sides) {
  const std::vector<float> result = sides.multiplied(loops);
  for (int64_t row = 0; row < sides.rows; ++row) {
    for (int64_t column = 0; column < sides.columns; ++column) {
      double sum = 0, bound = 0;
      for (int64_t k = 0; k < sides.inner; ++k) {
        const double term = static_cast<double>(sides.left[static_cast<size_t>(row * sides.inner + k)]) *
                            static_cast<double>(sides.right[static_cast<size_t>(k * sides.stride + column)]);
        sum += term, bound += std::abs(term);
      }
      const double got = static_cast<double>(result[static_cast<size_t>(row * sides.columns + column)]);
      CHECK(std::abs(sum - got) <= (4 + std::sqrt(static_cast<double>(sides.inner))) * 0x1p-24 * bound);
    }
  }
}

TEST(products_are_right_at_the_borders_of_tiles) {
  for (const ProductLoops& loops : runnable_product_loops()) {
    for (const int64_t rows : {1, 5, 6, 7, 8, 9, 17}) {
      for (const int64_t columns : {1, 7, 8, 15, 16, 17, 47, 48, 49, 97}) {
        check_against_doubles(loops, {rows, 3, columns, 0, 0});
      }
    }
  }
}

TEST(products_are_right_at_the_borders_of_panels_and_at_any_address) {
  for (const ProductLoops& loops : runnable_product_loops()) {
    constexpr int64_t kDeep = kProductDepth;
    for (const int64_t inner : {int64_t{1}, kDeep - 1, kDeep, kDeep + 1, 2 * kDeep + 3}) {
      for (const size_t shift : {0U, 1U, 2U, 3U}) check_against_doubles(loops, {9, inner, 53, 5, shift});
    }
  }
}

TEST(a_number_depends_on_its_row_and_column_alone) {
  const Sides all(20, kProductDepth + 9, 107, 0, 1);
  std::vector<float> fused;  // plain loops need not fuse multiplying and adding
  for (const ProductLoops& loops : runnable_product_loops()) {
    const std::vector<float> whole = all.multiplied(loops);
    for (const int64_t row : {0, 7, 19}) {
      Sides one = all;
      one.rows = 1;
      one.left.assign(all.left.begin() + row * all.inner, all.left.begin() + (row + 1) * all.inner);
      const auto begin = whole.begin() + row * all.columns;
      CHECK(one.multiplied(loops) == std::vector<float>(begin, begin + all.columns));
    }
    if (std::strcmp(loops.name, "plain") == 0) continue;
    CHECK(fused.empty() || fused == whole);
    fused = whole;
  }
}

TEST(one_row_is_right_at_the_borders_of_its_blocks) {
  for (const ProductLoops& loops : runnable_product_loops()) {
    for (const int64_t columns : {1, 15, 2047, 2048, 2049, 4099}) {
      for (const int64_t inner : {1, 3, 4, 5, 8, 11}) check_against_doubles(loops, {1, inner, columns, 2, 3});
    }
  }
}

TEST(what_is_no_number_stays_in_its_row_and_column) {
  for (const ProductLoops& loops : runnable_product_loops()) {
    Sides sides(9, 4, 50, 0, 1);
    sides.left[0] = std::numeric_limits<float>::quiet_NaN();
    sides.right[3 * 50 + 49] = std::numeric_limits<float>::infinity();
    const std::vector<float> result = sides.multiplied(loops);
    for (size_t row = 0; row < 9; ++row) {
      for (size_t column = 0; column < 50; ++column) {
        CHECK(std::isfinite(result[row * 50 + column]) == (row > 0 && column < 49));
      }
    }
  }
}

TEST(a_product_of_nothing_is_zero) {
  float result[6] = {1, 2, 3, 4, 5, 6};
  multiply({nullptr, nullptr, 12, result, 3, 2, 0, 3});
  for (const float number : result) CHECK(number == 0.0F);
  const float right[15] = {};
  multiply({nullptr, reinterpret_cast<const std::byte*>(right), 12, nullptr, 3, 0, 5, 3});  // there is nothing to write
}

}  // namespace
}  // namespace tierup::test
