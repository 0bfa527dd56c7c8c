// Dim code: the small integer program that computes sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "object.hpp"

namespace tierup {

enum class DimOp : int32_t {
  constant = 0,
  add = 1,
  sub = 2,
  mul = 3,
  floordiv = 4,
  ceildiv = 5,
  mod = 6,
  min = 7,
  max = 8,
  eq = 9,
  lt = 10,
  select = 11,
  broadcast = 12,
  of = 13,
  elem = 14,
  align = 15,
  truncdiv = 16,
  abs = 17,
  stride = 18,
  dense = 19,
};
constexpr int32_t kDimOps = 20;

struct DimInstruction {
  DimOp op;
  int32_t dst;
  int64_t a, b, c;
};

// How an operand of an instruction is read.
enum class DimOperand : uint8_t { none, dim, value, literal, positive };

struct DimOpRow {
  const char* name;
  DimOperand a, b, c;
};

const DimOpRow& dim_op_row(DimOp op);

// Runs instructions [begin, end) of a validated code. Throws CallError.
void run_dims(std::span<const DimInstruction> code, int32_t begin, int32_t end, std::span<int64_t> dims,
              std::span<const Value> values);

}  // namespace tierup
