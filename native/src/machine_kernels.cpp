// The inner loops of the fingerprint: independent FMA chains, and vector loads over a working set.
#include "machine.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tierup {
namespace {

// Makes a value unknown to the compiler: it cannot fold a chain, nor see that all chains are the same one.
template <class T>
inline __attribute__((always_inline)) void hide(T& value) {
#if defined(__x86_64__)
  __asm__ volatile("" : "+x"(value));
#elif defined(__aarch64__)
  __asm__ volatile("" : "+w"(value));
#else
  __asm__ volatile("" : "+m"(value));
#endif
}

inline __attribute__((always_inline)) void forget_memory() { __asm__ volatile("" ::: "memory"); }

// acc = acc · 0.5 + 1 converges to 2: no infinities, no denormals, whatever the number of steps.
constexpr float kFactor = 0.5F;
constexpr float kAddend = 1.0F;

// The three variants have one shape. They are not one template because GCC splits wide generic vectors before it
// inlines them into a function that has the wide registers.

using Vector4 = float __attribute__((vector_size(16)));
using Words2 = std::uint64_t __attribute__((vector_size(16)));
constexpr int kPortableChains = 12;  // 16 registers on plain x86-64, 32 on aarch64: leaves room for both constants

float fma_steps_portable(std::int64_t steps) {
  Vector4 factor = Vector4{} + kFactor, addend = Vector4{} + kAddend;
  hide(factor);
  hide(addend);
  Vector4 acc[kPortableChains] = {};
  for (Vector4& chain : acc) hide(chain);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kPortableChains; ++i) acc[i] = acc[i] * factor + addend;  // contracted where there is FMA
  }
  Vector4 sum = acc[0];
  for (int i = 1; i < kPortableChains; ++i) sum += acc[i];
  return sum[0];
}

std::uint64_t read_passes_portable(const std::byte* data, std::size_t bytes, std::int64_t passes) {
  constexpr int kLoads = 8;
  Words2 acc[kLoads] = {};
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::size_t at = 0; at < bytes; at += sizeof(acc)) {
      const auto* block = reinterpret_cast<const Words2*>(data + at);
#pragma GCC unroll 8
      for (int i = 0; i < kLoads; ++i) acc[i] |= block[i];
    }
    forget_memory();
  }
  Words2 all = acc[0];
  for (int i = 1; i < kLoads; ++i) all |= acc[i];
  return all[0];
}

constexpr MachineKernels kPortable{"portable", 2 * 4 * kPortableChains, fma_steps_portable, read_passes_portable};

#if defined(__x86_64__)

constexpr int kAvx2Chains = 12;  // of 16 registers; two FMA units of 4 to 5 cycles need 10

__attribute__((target("avx2,fma"))) float fma_steps_avx2(std::int64_t steps) {
  __m256 factor = _mm256_set1_ps(kFactor), addend = _mm256_set1_ps(kAddend);
  hide(factor);
  hide(addend);
  __m256 acc[kAvx2Chains] = {};
  for (__m256& chain : acc) hide(chain);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kAvx2Chains; ++i) acc[i] = _mm256_fmadd_ps(acc[i], factor, addend);
  }
  __m256 sum = acc[0];
  for (int i = 1; i < kAvx2Chains; ++i) sum = _mm256_add_ps(sum, acc[i]);
  return sum[0];
}

__attribute__((target("avx2,fma"))) std::uint64_t read_passes_avx2(const std::byte* data, std::size_t bytes,
                                                                   std::int64_t passes) {
  constexpr int kLoads = 8;
  __m256i acc[kLoads] = {};
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::size_t at = 0; at < bytes; at += sizeof(acc)) {
      const auto* block = reinterpret_cast<const __m256i*>(data + at);
#pragma GCC unroll 8
      for (int i = 0; i < kLoads; ++i) acc[i] = _mm256_or_si256(acc[i], _mm256_load_si256(block + i));
    }
    forget_memory();
  }
  __m256i all = acc[0];
  for (int i = 1; i < kLoads; ++i) all = _mm256_or_si256(all, acc[i]);
  return static_cast<std::uint64_t>(all[0]);
}

constexpr MachineKernels kAvx2{"avx2", 2 * 8 * kAvx2Chains, fma_steps_avx2, read_passes_avx2};

constexpr int kAvx512Chains = 24;  // of 32 registers

__attribute__((target("avx512f"))) float fma_steps_avx512(std::int64_t steps) {
  __m512 factor = _mm512_set1_ps(kFactor), addend = _mm512_set1_ps(kAddend);
  hide(factor);
  hide(addend);
  __m512 acc[kAvx512Chains] = {};
  for (__m512& chain : acc) hide(chain);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kAvx512Chains; ++i) acc[i] = _mm512_fmadd_ps(acc[i], factor, addend);
  }
  __m512 sum = acc[0];
  for (int i = 1; i < kAvx512Chains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return sum[0];
}

__attribute__((target("avx512f"))) std::uint64_t read_passes_avx512(const std::byte* data, std::size_t bytes,
                                                                    std::int64_t passes) {
  constexpr int kLoads = 16;
  __m512i acc[kLoads] = {};
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::size_t at = 0; at < bytes; at += sizeof(acc)) {
      const std::byte* block = data + at;
#pragma GCC unroll 16
      for (int i = 0; i < kLoads; ++i) acc[i] = _mm512_or_si512(acc[i], _mm512_load_si512(block + 64 * i));
    }
    forget_memory();
  }
  __m512i all = acc[0];
  for (int i = 1; i < kLoads; ++i) all = _mm512_or_si512(all, acc[i]);
  return static_cast<std::uint64_t>(all[0]);
}

constexpr MachineKernels kAvx512{"avx512f", 2 * 16 * kAvx512Chains, fma_steps_avx512, read_passes_avx512};

#endif

}  // namespace

std::vector<const MachineKernels*> runnable_machine_kernels() {
  std::vector<const MachineKernels*> kernels;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(&kAvx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernels.push_back(&kAvx2);
#endif
  kernels.push_back(&kPortable);
  return kernels;
}

const MachineKernels& machine_kernels() {
  static const MachineKernels* const widest = runnable_machine_kernels().front();
  return *widest;
}

std::string hypervisor_signature() {
#if defined(__x86_64__)
  constexpr unsigned kPresent = 1U << 31;       // leaf 1, ECX: reserved for hypervisors by AMD and Intel
  constexpr unsigned kSignature = 0x4000'0000;  // the leaf where all of them leave their name
  unsigned eax = 0, name[3] = {};
  __cpuid(1, eax, name[0], name[1], name[2]);
  if ((name[1] & kPresent) == 0) return "";
  __cpuid(kSignature, eax, name[0], name[1], name[2]);
  const std::string text(reinterpret_cast<const char*>(name), sizeof(name));
  return text.substr(0, text.find('\0'));
#else
  return "";
#endif
}

}  // namespace tierup
