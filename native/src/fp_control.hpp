// The floating-point control word of this thread: rounding and denormal mode. A worker takes on its caller's.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tierup {

#if defined(__x86_64__)
inline uint32_t fp_control() { return _mm_getcsr(); }
inline void set_fp_control(uint32_t word) { _mm_setcsr(word); }
inline void cpu_pause() { _mm_pause(); }
#elif defined(__aarch64__)
inline uint32_t fp_control() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return static_cast<uint32_t>(word);
}
inline void set_fp_control(uint32_t word) { asm volatile("msr fpcr, %0" ::"r"(static_cast<uint64_t>(word))); }
inline void cpu_pause() { asm volatile("yield"); }
#else
inline uint32_t fp_control() { return 0; }
inline void set_fp_control(uint32_t) {}
inline void cpu_pause() {}
#endif

}  // namespace tierup
