// What a product is made of. No more than that: sources for single instruction sets include it (product_loops.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tierup {

// result[rows, columns] = left[rows, inner] · right[inner, columns], each number a sum in the order of `inner`, whatever
// the sizes. Left is dense; rows of the right side are so many bytes apart, those of the result so many floats. Both sides
// may begin at any address.
struct Product {
  const std::byte* left;
  const std::byte* right;
  std::ptrdiff_t right_stride;
  float* result;
  std::int64_t result_stride;
  std::int64_t rows, inner, columns;
};

// What a copy of a part of the right side takes at most, which stays in the second-level cache.
constexpr std::int64_t kProductDepth = 512, kMostProductColumns = 48;

}  // namespace tierup
