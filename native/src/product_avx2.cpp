#define TIERUP_VECTOR_NAME avx2
#define TIERUP_VECTOR_BYTES 32
#define TIERUP_REGISTERS 16
#include "product_loops.hpp"
