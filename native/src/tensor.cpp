#include "tensor.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "error.hpp"

namespace tierup {

namespace {

// What lies in front of aligned memory, and how it is found again.
struct Origin {
  void* memory;
  int64_t bytes;
};
static_assert(sizeof(Origin) <= alignof(std::max_align_t), "there is room for it in front of every border");

Origin* origin_of(std::byte* memory) { return reinterpret_cast<Origin*>(memory - sizeof(Origin)); }

// Blocks that were freed wait for the next call, which mostly asks for the same ones. glibc gives the top of its heap
// back to the system, and then a call whose sizes data decide touched a thousand new pages: half of its time. Small
// blocks stay in the heap by themselves; large ones are worth more to others.
class Freed {
 public:
  // A block of exactly so many bytes; null if there is none, or another thread is just here.
  std::byte* take(int64_t bytes) noexcept {
    if (!fits(bytes) || taken_.test_and_set(std::memory_order_acquire)) return nullptr;
    std::byte* found = nullptr;
    for (size_t i = count_; i-- > 0 && found == nullptr;) {
      if (origin_of(blocks_[i])->bytes == bytes) found = remove(i);
    }
    taken_.clear(std::memory_order_release);
    return found;
  }

  // Whether it is kept. The oldest go for it.
  bool keep(std::byte* memory) noexcept {
    const int64_t bytes = origin_of(memory)->bytes;
    if (!fits(bytes) || taken_.test_and_set(std::memory_order_acquire)) return false;
    while (count_ == blocks_.size() || bytes_ + bytes > kMostBytes) std::free(origin_of(remove(0))->memory);
    blocks_[count_++] = memory;
    bytes_ += bytes;
    taken_.clear(std::memory_order_release);
    return true;
  }

  void clear() noexcept {
    if (taken_.test_and_set(std::memory_order_acquire)) return;
    while (count_ > 0) std::free(origin_of(remove(count_ - 1))->memory);
    taken_.clear(std::memory_order_release);
  }

 private:
  static constexpr int64_t kLeast = 32 << 10, kMost = 4 << 20, kMostBytes = 16 << 20;

  static bool fits(int64_t bytes) { return bytes >= kLeast && bytes <= kMost; }

  std::byte* remove(size_t index) noexcept {
    std::byte* const memory = blocks_[index];
    std::move(blocks_.begin() + static_cast<std::ptrdiff_t>(index) + 1,
              blocks_.begin() + static_cast<std::ptrdiff_t>(count_), blocks_.begin() + static_cast<std::ptrdiff_t>(index));
    --count_;
    bytes_ -= origin_of(memory)->bytes;
    return memory;
  }

  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;  // held by a thread that a fork left behind: then nothing is kept
  std::array<std::byte*, 64> blocks_{};        // the oldest first
  size_t count_ = 0;
  int64_t bytes_ = 0;
};

constinit Freed freed;

}  // namespace

// Not aligned_alloc(): glibc then asks for more than a block of that size had when it was freed, and cuts the rest off.
// So freed blocks do not fit the next call's, and a process that answers with 16 MiB grew by as much at every call.
std::byte* allocate(int64_t bytes) {
  if (bytes < 0 || bytes > INT64_MAX - kAlignment) throw std::bad_alloc();
  if (std::byte* const kept = freed.take(bytes)) return kept;
  void* memory = std::malloc(static_cast<size_t>(bytes + kAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  std::byte* aligned = static_cast<std::byte*>(memory) + (kAlignment - address % kAlignment);
  *origin_of(aligned) = {memory, bytes};
  return aligned;
}

void deallocate(std::byte* memory) noexcept {
  if (memory != nullptr && !freed.keep(memory)) std::free(origin_of(memory)->memory);
}

void free_kept() noexcept { freed.clear(); }

int64_t allocated_bytes(const std::byte* memory) noexcept { return origin_of(const_cast<std::byte*>(memory))->bytes; }

Block::~Block() { deallocate(data); }

namespace {

// The product of `unit` and all sizes that are not 0. Bounding it, and not the true product, bounds the strides of
// empty tensors too; NumPy does the same.
int64_t checked_product(int64_t unit, std::span<const int64_t> shape) {
  for (const int64_t size : shape) {
    if (size < 0) throw CallError("a dim is negative: " + std::to_string(size));
    if (size != 0 && __builtin_mul_overflow(unit, size, &unit)) throw CallError("a tensor is too large for memory");
  }
  return unit;
}

bool has_zero(std::span<const int64_t> shape) { return std::ranges::find(shape, 0) != shape.end(); }

}  // namespace

Ref<Tensor> Tensor::make(int32_t dtype, std::span<const int64_t> shape) {
  checked_product(element_bytes(dtype), shape);
  if (shape.size() > kMaxRank) {
    throw CallError("a tensor of rank " + std::to_string(shape.size()) + " is above the limit of " +
                    std::to_string(kMaxRank));
  }
  const auto rank = static_cast<int32_t>(shape.size());
  Ref<Tensor> tensor(new (2 * sizeof(int64_t) * shape.size()) Tensor(dtype, rank));
  int64_t stride = element_bytes(dtype);
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    tensor->shape()[i] = shape[i];
    tensor->strides()[i] = stride;
    if (shape[i] != 0) stride *= shape[i];
  }
  return tensor;
}

int64_t count_elements(std::span<const int64_t> shape) {
  const int64_t product = checked_product(1, shape);
  return has_zero(shape) ? 0 : product;
}

int64_t count_bytes(int32_t dtype, std::span<const int64_t> shape) {
  const int64_t product = checked_product(element_bytes(dtype), shape);
  return has_zero(shape) ? 0 : product;
}

int32_t normalize_axis(int64_t axis, int32_t rank) {
  if (axis < -rank || axis >= rank) {
    throw CallError("axis " + std::to_string(axis) + " of a tensor of rank " + std::to_string(rank));
  }
  return static_cast<int32_t>(axis < 0 ? axis + rank : axis);
}

namespace {

// The alignment that loads of an element need: that of its parts, so 8 for a complex of two doubles.
int64_t element_alignment(int32_t dtype) {
  const int64_t bytes = element_bytes(dtype);
  return dtype == kC64 || dtype == kC128 ? bytes / 2 : bytes;
}

}  // namespace

bool is_dense(const Tensor& tensor) {
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element_alignment(tensor.dtype)) != 0) {
    return false;
  }
  int64_t stride = element_bytes(tensor.dtype);
  bool dense = true;
  for (size_t i = tensor.shape().size(); i-- > 0;) {
    const int64_t size = tensor.shape()[i];
    if (size == 0) return true;
    if (size != 1) dense &= tensor.strides()[i] == stride;
    stride *= size;
  }
  return dense;
}

Ref<Tensor> make_dense(int32_t dtype, std::span<const int64_t> shape) {
  const int64_t bytes = count_bytes(dtype, shape);
  Ref<Tensor> tensor = Tensor::make(dtype, shape);
  Ref<Block> block(new Block(bytes));
  tensor->data = block->data;
  tensor->storage = std::move(block);
  return tensor;
}

Ref<Tensor> copy_dense(const Tensor& source) {
  if (source.dtype == kString) throw CallError("strings can only be copied by the host");
  Ref<Tensor> copy = make_dense(source.dtype, source.shape());
  copy_elements(copy->data, copy->strides(), source);
  return copy;
}

namespace {

struct Axis {
  int64_t size, target_stride, source_stride;
};

template <int64_t bytes>
void copy_row(std::byte* target, const std::byte* source, const Axis& row) {
  for (int64_t i = 0; i < row.size; ++i) {
    std::memcpy(target + i * row.target_stride, source + i * row.source_stride, static_cast<size_t>(bytes));
  }
}

void copy_row(std::byte* target, const std::byte* source, const Axis& row, int64_t bytes) {
  if (row.target_stride == bytes && row.source_stride == bytes) {
    std::memcpy(target, source, static_cast<size_t>(bytes * row.size));
    return;
  }
  switch (bytes) {
    case 1: return copy_row<1>(target, source, row);
    case 2: return copy_row<2>(target, source, row);
    case 4: return copy_row<4>(target, source, row);
    case 8: return copy_row<8>(target, source, row);
    default: return copy_row<16>(target, source, row);
  }
}

}  // namespace

void copy_elements(std::byte* target, std::span<const int64_t> target_strides, const Tensor& source) {
  // Axes of size 1 are left out and neighbours that lie as one axis in both tensors become one.
  std::array<Axis, kMaxRank + 1> axes;
  const int64_t bytes = element_bytes(source.dtype);
  size_t rank = 1;
  axes[0] = {1, bytes, bytes};
  for (size_t i = source.shape().size(); i-- > 0;) {
    const Axis outer{source.shape()[i], target_strides[i], source.strides()[i]};
    if (outer.size == 0) return;
    if (outer.size == 1) continue;
    Axis& inner = axes[rank - 1];
    if (inner.size == 1) {
      inner = outer;
    } else if (outer.target_stride == inner.target_stride * inner.size &&
               outer.source_stride == inner.source_stride * inner.size) {
      inner.size *= outer.size;
    } else {
      axes[rank++] = outer;
    }
  }
  // An odometer over all axes but the innermost, which is axes[0].
  std::array<int64_t, kMaxRank + 1> at{};
  const std::byte* from = source.data;
  for (;;) {
    copy_row(target, from, axes[0], bytes);
    size_t axis = 1;
    for (; axis < rank; ++axis) {
      target += axes[axis].target_stride;
      from += axes[axis].source_stride;
      if (++at[axis] < axes[axis].size) break;
      target -= axes[axis].target_stride * axes[axis].size;
      from -= axes[axis].source_stride * axes[axis].size;
      at[axis] = 0;
    }
    if (axis == rank) return;
  }
}

namespace {

template <typename T>
T load(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

// The low bits of a byte as a signed number: whether ml_dtypes extends the sign in memory is its own business.
int64_t load_signed_bits(const std::byte* address, int bits) {
  const int64_t low = load<uint8_t>(address) & ((1 << bits) - 1);
  return low >= (1 << (bits - 1)) ? low - (1 << bits) : low;
}

}  // namespace

int64_t read_integer(const Tensor& tensor, int64_t index) {
  const int64_t count = count_elements(tensor.shape());
  if (index < 0 || index >= count) {
    throw CallError("element " + std::to_string(index) + " of a tensor with " + std::to_string(count) + " elements");
  }
  const std::byte* address = tensor.data;
  for (size_t i = tensor.shape().size(); i-- > 0;) {
    address += index % tensor.shape()[i] * tensor.strides()[i];
    index /= tensor.shape()[i];
  }
  switch (tensor.dtype) {
    case kU8: return load<uint8_t>(address);
    case kI8: return load<int8_t>(address);
    case kU16: return load<uint16_t>(address);
    case kI16: return load<int16_t>(address);
    case kI32: return load<int32_t>(address);
    case kI64: return load<int64_t>(address);
    case kBool: return load<uint8_t>(address) != 0;
    case kU32: return load<uint32_t>(address);
    case kU4: return load<uint8_t>(address) & 15;
    case kI4: return load_signed_bits(address, 4);
    case kU2: return load<uint8_t>(address) & 3;
    case kI2: return load_signed_bits(address, 2);
    case kU64: {
      const auto value = load<uint64_t>(address);
      if (value > INT64_MAX) throw CallError("element " + std::to_string(value) + " does not fit an int64");
      return static_cast<int64_t>(value);
    }
    default: throw CallError("a tensor of type " + std::to_string(tensor.dtype) + " has no integer elements");
  }
}

}  // namespace tierup
