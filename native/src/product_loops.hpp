// The loops of a product, for TIERUP_REGISTERS vectors of TIERUP_VECTOR_BYTES. Included by sources that are compiled
// for one instruction set each (product_avx512.cpp and so on). Nothing here may be shared with code for another one: it
// has a namespace of its own, TIERUP_VECTOR_NAME, and uses no inline function of a library.
#include "product_shape.hpp"

namespace tierup::TIERUP_VECTOR_NAME {
namespace {

// Sums of a tile stay in registers: 24 of 32, or 12 of 16, beside a row of the right side and its factor.
constexpr int kRows = TIERUP_REGISTERS == 32 ? 8 : 6;
constexpr int kVectors = TIERUP_REGISTERS == 32 ? 3 : 2;
constexpr int kLanes = TIERUP_VECTOR_BYTES / static_cast<int>(sizeof(float));
constexpr int kWidth = kVectors * kLanes;
static_assert(kWidth <= kMostProductColumns);
constexpr int kAhead = 16;  // rows of the right side; where they are long, each is on another page: no prefetcher follows
constexpr int kLineBytes = 64;
constexpr std::int64_t kRowColumns = 2048;  // of one row: sums that stay in the first-level cache
constexpr int kRowDepth = 4;                // rows of the right side that are added to them at once

using Vector = float __attribute__((vector_size(TIERUP_VECTOR_BYTES)));
using Loose = float __attribute__((vector_size(TIERUP_VECTOR_BYTES), aligned(1), may_alias));
using LooseFloat = float __attribute__((aligned(1), may_alias));

struct Tile {
  const LooseFloat* left;
  std::int64_t left_stride;
  const std::byte* right;
  std::ptrdiff_t right_stride;
  float* result;
  std::int64_t result_stride;
  std::int64_t depth;
  bool adds;
};

// The first tile of a panel reads the right side where it lies, and copies it to `copied` in one piece, for the others.
template <int rows, int vectors, bool copies>
void multiply_tile(const Tile& tile, float* copied) {
  using Row = Vector[static_cast<std::size_t>(vectors)];
  Row sums[static_cast<std::size_t>(rows)];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      const float* at = tile.result + r * tile.result_stride + v * kLanes;
      sums[r][v] = tile.adds ? static_cast<Vector>(*reinterpret_cast<const Loose*>(at)) : Vector{};
    }
  }
  const LooseFloat* left = tile.left;
  const std::byte* right = tile.right;
  for (std::int64_t k = 0; k < tile.depth; ++k, ++left, right += tile.right_stride) {
    Vector side[static_cast<std::size_t>(vectors)];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) side[v] = reinterpret_cast<const Loose*>(right)[v];
    if constexpr (copies) {
      const auto distance = static_cast<std::uintptr_t>(kAhead * tile.right_stride);
      const auto ahead = reinterpret_cast<std::uintptr_t>(right) + distance;
#pragma GCC unroll 3
      for (std::size_t at = 0; at < kWidth * sizeof(float); at += kLineBytes) {
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + at));
      }
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) *reinterpret_cast<Loose*>(copied + k * kWidth + v * kLanes) = side[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const float factor = left[r * tile.left_stride];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sums[r][v] += factor * side[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      *reinterpret_cast<Loose*>(tile.result + r * tile.result_stride + v * kLanes) = sums[r][v];
    }
  }
}

template <int vectors, bool copies, int rows = kRows>
void multiply_rows(std::int64_t count, const Tile& tile, float* copied = nullptr) {
  if constexpr (rows > 0) {
    if (count != rows) return multiply_rows<vectors, copies, rows - 1>(count, tile, copied);
    return multiply_tile<rows, vectors, copies>(tile, copied);
  }
}

// No more vectors of columns than there are.
template <int vectors = kVectors>
void multiply_columns(std::int64_t rows, std::int64_t columns, const Tile& tile) {
  if constexpr (vectors > 1) {
    if (columns <= (vectors - 1) * kLanes) return multiply_columns<vectors - 1>(rows, columns, tile);
  }
  multiply_rows<vectors, false>(rows, tile);
}

// Rows of the result, as many as a tile has or fewer, with fewer columns than a tile has: through one of its own.
void multiply_edge(std::int64_t rows, std::int64_t columns, Tile tile) {
  alignas(kLineBytes) float edge[kRows * kWidth];
  float* const result = tile.result;
  const std::int64_t stride = tile.result_stride;
  const std::size_t bytes = static_cast<std::size_t>(columns) * sizeof(float);
  tile.result = edge, tile.result_stride = kWidth;
  for (std::int64_t r = 0; tile.adds && r < rows; ++r) {
    __builtin_memset(edge + r * kWidth, 0, kWidth * sizeof(float));
    __builtin_memcpy(edge + r * kWidth, result + r * stride, bytes);
  }
  multiply_columns(rows, columns, tile);
  for (std::int64_t r = 0; r < rows; ++r) __builtin_memcpy(result + r * stride, edge + r * kWidth, bytes);
}

// Columns from `column` on, as many as a tile has or fewer, of `depth` rows of the right side from `from` on.
void multiply_panel(const Product& all, std::int64_t column, std::int64_t from, std::int64_t depth, float* panel) {
  const std::int64_t columns = all.columns - column < kWidth ? all.columns - column : kWidth;
  const std::byte* right = all.right + from * all.right_stride + column * static_cast<std::ptrdiff_t>(sizeof(float));
  const std::size_t bytes = static_cast<std::size_t>(columns) * sizeof(float);
  for (std::int64_t k = 0; columns < kWidth && k < depth; ++k) {
    __builtin_memset(panel + k * kWidth, 0, kWidth * sizeof(float));
    __builtin_memcpy(panel + k * kWidth, right + k * all.right_stride, bytes);
  }
  for (std::int64_t row = 0; row < all.rows; row += kRows) {
    const std::int64_t rows = all.rows - row < kRows ? all.rows - row : kRows;
    float* const result = all.result + row * all.result_stride + column;
    Tile tile{reinterpret_cast<const LooseFloat*>(all.left) + row * all.inner + from,
              all.inner,
              reinterpret_cast<const std::byte*>(panel),
              kWidth * sizeof(float),
              result,
              all.result_stride,
              depth,
              from > 0};
    if (columns < kWidth) {
      multiply_edge(rows, columns, tile);
    } else if (row > 0) {
      multiply_rows<kVectors, false>(rows, tile);
    } else {
      tile.right = right, tile.right_stride = all.right_stride;
      if (rows < all.rows) {
        multiply_rows<kVectors, true>(rows, tile, panel);
      } else {
        multiply_rows<kVectors, false>(rows, tile);
      }
    }
  }
}

// So many rows of the right side, times one factor each, are added to as many columns of one row of the result.
template <int depth>
void add_rows(const LooseFloat* left, const std::byte* right, std::ptrdiff_t right_stride, float* result,
              std::int64_t columns, bool adds) {
  std::int64_t column = 0;
  for (; column + kLanes <= columns; column += kLanes) {
    Vector sum = adds ? static_cast<Vector>(*reinterpret_cast<const Loose*>(result + column)) : Vector{};
#pragma GCC unroll 4
    for (int k = 0; k < depth; ++k) {
      const LooseFloat* const side = reinterpret_cast<const LooseFloat*>(right + k * right_stride) + column;
      sum += left[k] * *reinterpret_cast<const Loose*>(side);
    }
    *reinterpret_cast<Loose*>(result + column) = sum;
  }
  for (; column < columns; ++column) {
    float sum = adds ? result[column] : 0.0F;
#pragma GCC unroll 4
    for (int k = 0; k < depth; ++k) {
      sum += left[k] * reinterpret_cast<const LooseFloat*>(right + k * right_stride)[column];
    }
    result[column] = sum;
  }
}

// One row of the result: the right side is read once, in the order in which it lies.
void multiply_row(const Product& all) {
  const auto* const left = reinterpret_cast<const LooseFloat*>(all.left);
  for (std::int64_t column = 0; column < all.columns; column += kRowColumns) {
    const std::int64_t columns = all.columns - column < kRowColumns ? all.columns - column : kRowColumns;
    const std::byte* right = all.right + column * static_cast<std::ptrdiff_t>(sizeof(float));
    std::int64_t k = 0;
    for (; k + kRowDepth <= all.inner; k += kRowDepth, right += kRowDepth * all.right_stride) {
      add_rows<kRowDepth>(left + k, right, all.right_stride, all.result + column, columns, k > 0);
    }
    for (; k < all.inner; ++k, right += all.right_stride) {
      add_rows<1>(left + k, right, all.right_stride, all.result + column, columns, k > 0);
    }
  }
}

}  // namespace

void multiply(const Product& product, float* panel) {
  if (product.rows == 1) return multiply_row(product);
  for (std::int64_t column = 0; column < product.columns; column += kWidth) {
    for (std::int64_t from = 0; from < product.inner; from += kProductDepth) {
      const std::int64_t left = product.inner - from;
      multiply_panel(product, column, from, left < kProductDepth ? left : kProductDepth, panel);
    }
  }
}

}  // namespace tierup::TIERUP_VECTOR_NAME
