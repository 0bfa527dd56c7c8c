#include "dims.hpp"

#include <algorithm>
#include <array>

#include "error.hpp"
#include "tensor.hpp"

namespace tierup {

const DimOpRow& dim_op_row(DimOp op) {
  using enum DimOperand;
  static constexpr std::array<DimOpRow, kDimOps> rows = {{
      {"const", literal, none, none},   {"add", dim, dim, none},      {"sub", dim, dim, none},
      {"mul", dim, dim, none},          {"floordiv", dim, dim, none}, {"ceildiv", dim, dim, none},
      {"mod", dim, dim, none},          {"min", dim, dim, none},      {"max", dim, dim, none},
      {"eq", dim, dim, none},           {"lt", dim, dim, none},       {"select", dim, dim, dim},
      {"broadcast", dim, dim, none},    {"of", value, literal, none}, {"elem", value, literal, none},
      {"align", dim, positive, none},   {"truncdiv", dim, dim, none}, {"abs", dim, none, none},
      {"stride", value, literal, none}, {"dense", value, none, none},
  }};
  return rows[static_cast<size_t>(op)];
}

namespace {

[[noreturn]] void overflow() { throw CallError("the result does not fit an int64"); }

int64_t add(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_add_overflow(a, b, &result)) overflow();
  return result;
}

int64_t sub(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_sub_overflow(a, b, &result)) overflow();
  return result;
}

int64_t mul(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_mul_overflow(a, b, &result)) overflow();
  return result;
}

int64_t truncdiv(int64_t a, int64_t b) {
  if (b == 0) throw CallError("division by zero");
  if (a == INT64_MIN && b == -1) overflow();
  return a / b;
}

// Whether a / b has a rest, and which sign the exact quotient has.
bool inexact(int64_t a, int64_t b) { return b != -1 && a % b != 0; }
bool negative(int64_t a, int64_t b) { return (a < 0) != (b < 0); }

int64_t floordiv(int64_t a, int64_t b) { return truncdiv(a, b) - (inexact(a, b) && negative(a, b) ? 1 : 0); }

int64_t ceildiv(int64_t a, int64_t b) { return truncdiv(a, b) + (inexact(a, b) && !negative(a, b) ? 1 : 0); }

int64_t mod(int64_t a, int64_t b) {
  if (b == 0) throw CallError("division by zero");
  if (!inexact(a, b)) return 0;
  const int64_t rest = a % b;
  return negative(a, b) ? rest + b : rest;
}

int64_t broadcast(int64_t a, int64_t b) {
  if (b == 1 || a == b) return a;
  if (a == 1) return b;
  throw CallError("sizes " + std::to_string(a) + " and " + std::to_string(b) + " do not broadcast");
}

Tensor& tensor_at(std::span<const Value> values, int64_t index) {
  Tensor* tensor = as_tensor(values[static_cast<size_t>(index)]);
  if (tensor == nullptr) throw CallError("value " + std::to_string(index) + " holds no tensor");
  return *tensor;
}

int64_t evaluate(const DimInstruction& i, std::span<const int64_t> dims, std::span<const Value> values) {
  const auto dim = [&](int64_t index) { return dims[static_cast<size_t>(index)]; };
  const auto axis_of = [](int64_t axis, const Tensor& tensor) {
    return static_cast<size_t>(normalize_axis(axis, tensor.rank));
  };
  switch (i.op) {
    case DimOp::constant: return i.a;
    case DimOp::add: return add(dim(i.a), dim(i.b));
    case DimOp::sub: return sub(dim(i.a), dim(i.b));
    case DimOp::mul: return mul(dim(i.a), dim(i.b));
    case DimOp::floordiv: return floordiv(dim(i.a), dim(i.b));
    case DimOp::ceildiv: return ceildiv(dim(i.a), dim(i.b));
    case DimOp::mod: return mod(dim(i.a), dim(i.b));
    case DimOp::min: return std::min(dim(i.a), dim(i.b));
    case DimOp::max: return std::max(dim(i.a), dim(i.b));
    case DimOp::eq: return dim(i.a) == dim(i.b);
    case DimOp::lt: return dim(i.a) < dim(i.b);
    case DimOp::select: return dim(i.a) != 0 ? dim(i.b) : dim(i.c);
    case DimOp::broadcast: return broadcast(dim(i.a), dim(i.b));
    case DimOp::elem: return read_integer(tensor_at(values, i.a), i.b);
    case DimOp::align: return mul(ceildiv(dim(i.a), i.b), i.b);
    case DimOp::truncdiv: return truncdiv(dim(i.a), dim(i.b));
    case DimOp::abs: return dim(i.a) < 0 ? sub(0, dim(i.a)) : dim(i.a);
    case DimOp::dense: return is_dense(tensor_at(values, i.a));
    case DimOp::of: {
      const Tensor& tensor = tensor_at(values, i.a);
      return tensor.shape()[axis_of(i.b, tensor)];
    }
    case DimOp::stride: {
      const Tensor& tensor = tensor_at(values, i.a);
      return tensor.strides()[axis_of(i.b, tensor)];
    }
  }
  __builtin_unreachable();  // unknown codes are refused when the program is built
}

}  // namespace

void run_dims(std::span<const DimInstruction> code, int32_t begin, int32_t end, std::span<int64_t> dims,
              std::span<const Value> values) {
  for (int32_t at = begin; at < end; ++at) {
    const DimInstruction& instruction = code[static_cast<size_t>(at)];
    try {
      dims[static_cast<size_t>(instruction.dst)] = evaluate(instruction, dims, values);
    } catch (const CallError& error) {
      throw CallError("dim instruction " + std::to_string(at) + " (" + dim_op_row(instruction.op).name +
                      "): " + error.what());
    }
  }
}

}  // namespace tierup
