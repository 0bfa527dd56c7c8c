#define TIERUP_VECTOR_NAME avx512
#define TIERUP_VECTOR_BYTES 64
#define TIERUP_REGISTERS 32
#include "product_loops.hpp"
