#include "statistics.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tierup {
namespace {

constexpr int64_t kRun = 16;  // elements side by side: a cache line of f32
constexpr int64_t kRuns = Statistics::kLooked / kRun;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Where run `index` of a tensor with so many elements begins: somewhere in the index-th of kRuns equal parts, so that a
// pattern in the data is not met at the same place each time.
int64_t run_begin(int64_t index, int64_t elements) {
  const int64_t part = elements / kRuns;
  const auto room = static_cast<uint64_t>(part - kRun + 1);
  return index * part + static_cast<int64_t>(mix(static_cast<uint64_t>(index) + 1) % room);
}

// Copies `count` elements from `first` on, in row-major order, through the tensor's strides.
void gather(const Tensor& tensor, int64_t first, int64_t count, std::byte* target) {
  const auto bytes = static_cast<size_t>(element_bytes(tensor.dtype));
  const auto shape = tensor.shape();
  const auto strides = tensor.strides();
  for (int64_t i = first; i < first + count; ++i) {
    const std::byte* at = tensor.data;
    int64_t rest = i;
    for (size_t axis = shape.size(); axis-- > 0;) {
      at += rest % shape[axis] * strides[axis];
      rest /= shape[axis];
    }
    std::memcpy(target, at, bytes);
    target += bytes;
  }
}

// The elements to look at, side by side: where they lie, or copied to `room`.
const std::byte* looked_at(const Tensor& tensor, int64_t elements, std::byte* room) {
  const bool dense = is_dense(tensor);
  const auto bytes = static_cast<size_t>(element_bytes(tensor.dtype));
  if (elements <= Statistics::kLooked) {
    if (dense) return tensor.data;
    gather(tensor, 0, elements, room);
    return room;
  }
  for (int64_t run = 0; run < kRuns; ++run) {
    const int64_t begin = run_begin(run, elements);
    std::byte* const target = room + static_cast<size_t>(run * kRun) * bytes;
    if (dense) {
      std::memcpy(target, tensor.data + static_cast<size_t>(begin) * bytes, kRun * bytes);
    } else {
      gather(tensor, begin, kRun, target);
    }
  }
  return room;
}

// In four lanes, since each step waits for its multiplication.
uint64_t hash_bytes(const std::byte* data, size_t bytes, uint64_t seed) {
  std::array<uint64_t, 4> lanes{seed, seed + 1, seed + 2, seed + 3};
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), data + at, 32);
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = std::rotl((lanes[lane] ^ words[lane]) * 0x9e3779b97f4a7c15, 29);
    }
  }
  std::array<uint64_t, 4> rest{};
  if (at < bytes) std::memcpy(rest.data(), data + at, bytes - at);
  uint64_t hash = bytes;
  for (size_t lane = 0; lane < 4; ++lane) hash = mix(hash ^ lanes[lane] ^ mix(rest[lane] + lane));
  return hash;
}

// IEEE's half and bfloat16 as f32, exactly.
float half_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

float bfloat_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// `value_of` turns a stored element into a number that can be compared.
template <typename Stored, typename ValueOf>
void count(const std::byte* data, Statistics& found, ValueOf value_of) {
  using Number = decltype(value_of(Stored{}));
  using Limits = std::numeric_limits<Number>;
  Number least = Limits::max(), most = Limits::lowest();
  int64_t zeros = 0, nonfinite = 0;
  for (int64_t i = 0; i < found.looked; ++i) {
    Stored stored;
    std::memcpy(&stored, data + static_cast<size_t>(i) * sizeof(Stored), sizeof(Stored));
    const Number number = value_of(stored);
    bool finite = true;
    if constexpr (std::is_floating_point_v<Number>) finite = number >= Limits::lowest() && number <= Limits::max();
    zeros += number == Number{0};
    nonfinite += !finite;
    least = finite && number < least ? number : least;
    most = finite && number > most ? number : most;
  }
  found.numbers = true;
  found.zeros = zeros;
  found.nonfinite = nonfinite;
  if (nonfinite == found.looked) return;
  found.min = static_cast<double>(least);
  found.max = static_cast<double>(most);
}

template <typename Stored>
void count_plain(const std::byte* data, Statistics& found) {
  count<Stored>(data, found, [](Stored stored) { return stored; });
}

constexpr int32_t kBf16 = 16;

void count_elements_of(int32_t dtype, const std::byte* data, Statistics& found) {
  switch (dtype) {
    case kF32: return count_plain<float>(data, found);
    case kF64: return count_plain<double>(data, found);
    case kF16: return count<uint16_t>(data, found, half_value);
    case kBf16: return count<uint16_t>(data, found, bfloat_value);
    case kI8: return count_plain<int8_t>(data, found);
    case kI16: return count_plain<int16_t>(data, found);
    case kI32: return count_plain<int32_t>(data, found);
    case kI64: return count_plain<int64_t>(data, found);
    case kU8:
    case kBool: return count_plain<uint8_t>(data, found);
    case kU16: return count_plain<uint16_t>(data, found);
    case kU32: return count_plain<uint32_t>(data, found);
    case kU64: return count_plain<uint64_t>(data, found);
    default: return;
  }
}

}  // namespace

Statistics statistics_of(const Tensor& tensor) {
  Statistics found;
  found.elements = count_elements(tensor.shape());
  found.looked = std::min(found.elements, Statistics::kLooked);
  constexpr size_t kWidest = 16;
  alignas(64) std::array<std::byte, kWidest * Statistics::kLooked> room;
  const std::byte* const data = looked_at(tensor, found.elements, room.data());
  const auto bytes = static_cast<size_t>(found.looked * element_bytes(tensor.dtype));
  const uint64_t seed = mix(static_cast<uint64_t>(found.elements) << 8 ^ static_cast<uint64_t>(tensor.dtype));
  found.hash = hash_bytes(data, bytes, seed);
  count_elements_of(tensor.dtype, data, found);
  return found;
}

}  // namespace tierup
