// Element types, by their ONNX TensorProto number.
#pragma once

#include <cstdint>

namespace tierup {

enum Dtype : int32_t {
  kF32 = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kI32 = 6,
  kI64 = 7,
  kString = 8,
  kBool = 9,
  kF16 = 10,
  kF64 = 11,
  kU32 = 12,
  kU64 = 13,
  kC64 = 14,
  kC128 = 15,
  kU4 = 21,
  kI4 = 22,
  kU2 = 25,
  kI2 = 26,
};

constexpr int32_t kDtypes = 29;  // one past the last number

// Bytes an element takes in memory, 0 for a number that is no type. Types below a byte take a whole one, as in
// ml_dtypes. A string is a pointer of the host's: such tensors have a shape, but only the host may touch elements.
constexpr int64_t element_bytes(int64_t dtype) {
  constexpr int8_t bytes[kDtypes] = {0,  4, 1, 1, 2, 2, 4, 8, 8, 1, 2, 8, 4, 8, 8,
                                     16, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  return dtype >= 0 && dtype < kDtypes ? bytes[dtype] : 0;
}

}  // namespace tierup
