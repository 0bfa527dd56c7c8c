// Products of f32 matrices for the baseline, on the thread that asks. The right side mostly lies in a mapped file: at
// any address, and NumPy would copy it first.
#pragma once

#include <vector>

#include "product_shape.hpp"

namespace tierup {

void multiply(const Product& product);

// The loops for one instruction set; `panel` has room for a copy of kProductDepth rows of kMostProductColumns.
struct ProductLoops {
  const char* name;
  void (*multiply)(const Product& product, float* panel);
};
std::vector<ProductLoops> runnable_product_loops();  // all that this CPU runs, widest first: for tests

}  // namespace tierup
