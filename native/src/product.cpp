#include "product.hpp"

#include <algorithm>
#include <memory>

namespace tierup {

namespace avx512 {
void multiply(const Product& product, float* panel);
}
namespace avx2 {
void multiply(const Product& product, float* panel);
}
namespace plain {
void multiply(const Product& product, float* panel);
}

std::vector<ProductLoops> runnable_product_loops() {
  std::vector<ProductLoops> loops;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) loops.push_back({"avx512f", avx512::multiply});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) loops.push_back({"avx2", avx2::multiply});
#endif
  loops.push_back({"plain", plain::multiply});
  return loops;
}

void multiply(const Product& product) {
  if (product.inner == 0) {
    for (int64_t row = 0; row < product.rows; ++row) {
      std::fill_n(product.result + row * product.result_stride, product.columns, 0.0F);
    }
    return;
  }
  static const ProductLoops widest = runnable_product_loops().front();
  const auto panel = std::make_unique_for_overwrite<float[]>(kProductDepth * kMostProductColumns);
  widest.multiply(product, panel.get());
}

}  // namespace tierup
