// What the elements of an input are like: how many are zero, how large they are, whether they are those of last time.
#pragma once

#include <cstdint>

#include "tensor.hpp"

namespace tierup {

struct Statistics {
  static constexpr int64_t kLooked = 4096;  // elements that are looked at, at most: some microseconds

  int64_t elements = 0;   // of the tensor
  int64_t looked = 0;     // at so many: all, or a fixed sample that is spread evenly
  int64_t zeros = 0;      // of those looked at, and so on
  int64_t nonfinite = 0;  // NaN and infinities
  double min = 0, max = 0;  // of the finite ones; both 0 where there is none
  uint64_t hash = 0;      // of type, number of elements, and the bytes looked at
  bool numbers = false;   // false: of complex numbers and types below 16 bits of float, only the hash is known
};

// Of any tensor but one of strings, through any strides. Equal tensors have equal statistics, whatever their strides.
Statistics statistics_of(const Tensor& tensor);

}  // namespace tierup
