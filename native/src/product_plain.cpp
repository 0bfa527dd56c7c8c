#define TIERUP_VECTOR_NAME plain
#define TIERUP_VECTOR_BYTES 16
#if defined(__aarch64__)
#define TIERUP_REGISTERS 32
#else
#define TIERUP_REGISTERS 16
#endif
#include "product_loops.hpp"
