// Tensors, the memory behind them, and copies between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtype.hpp"
#include "object.hpp"

namespace tierup {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector
constexpr int32_t kMaxRank = 64;    // NumPy's limit

// Memory that deallocate() gives back, aligned to kAlignment; never null. Throws std::bad_alloc.
std::byte* allocate(int64_t bytes);
void deallocate(std::byte* memory) noexcept;

// Gives up what deallocate() keeps for the next allocate(): some blocks, 16 MiB at the most.
void free_kept() noexcept;

// How many bytes allocate() was asked for.
int64_t allocated_bytes(const std::byte* memory) noexcept;

// A piece of the heap that tensors share.
class Block final : public Object {
 public:
  explicit Block(int64_t bytes) : Object(Kind::block), data(allocate(bytes)) {}
  ~Block() override;

  std::byte* data;  // null once somebody took it over
};

class Arena;

// A view of memory. Shape and strides lie behind the object itself, so a tensor is one allocation.
class Tensor final : public Object {
 public:
  // With row-major strides and no memory yet. Throws CallError as count_bytes() does.
  static Ref<Tensor> make(int32_t dtype, std::span<const int64_t> shape);

  std::span<int64_t> shape() { return {numbers(), static_cast<size_t>(rank)}; }
  std::span<const int64_t> shape() const { return const_cast<Tensor*>(this)->shape(); }
  std::span<int64_t> strides() { return {numbers() + rank, static_cast<size_t>(rank)}; }  // in bytes
  std::span<const int64_t> strides() const { return const_cast<Tensor*>(this)->strides(); }

  static void operator delete(void* memory) { ::operator delete(memory); }

  const int32_t dtype;
  const int32_t rank;
  std::byte* data = nullptr;
  const Arena* arena = nullptr;  // the arena that the memory lies in, if it does
  Value storage;                 // keeps the memory alive outside of arenas
  Value host;                    // the host's own object for exactly this tensor, if there is one

 private:
  Tensor(int32_t tensor_dtype, int32_t tensor_rank) : Object(Kind::tensor), dtype(tensor_dtype), rank(tensor_rank) {}
  static void* operator new(size_t size, size_t extra) { return ::operator new(size + extra); }
  static void operator delete(void* memory, size_t) { ::operator delete(memory); }
  int64_t* numbers() { return reinterpret_cast<int64_t*>(this + 1); }
};

// The tensor in a register, or null.
inline Tensor* as_tensor(const Value& value) {
  return value && value->kind == Kind::tensor ? static_cast<Tensor*>(value.get()) : nullptr;
}

// Elements and bytes of a contiguous tensor. Throw CallError if a dim is negative or the product does not fit.
int64_t count_elements(std::span<const int64_t> shape);
int64_t count_bytes(int32_t dtype, std::span<const int64_t> shape);

// `axis` counted from the front; throws CallError if a tensor of this rank has none such.
int32_t normalize_axis(int64_t axis, int32_t rank);

// Row-major without gaps, and aligned to its elements: what a kernel may read by pointer and sizes alone.
bool is_dense(const Tensor& tensor);

// A fresh dense tensor on the heap.
Ref<Tensor> make_dense(int32_t dtype, std::span<const int64_t> shape);

// A fresh dense copy on the heap. Throws CallError for strings: their elements are the host's.
Ref<Tensor> copy_dense(const Tensor& source);

// Copies elements between tensors of one shape and type through any strides. The memory must not overlap.
void copy_elements(std::byte* target, std::span<const int64_t> target_strides, const Tensor& source);

// Element `index` (in row-major order) of an integer or bool tensor. Throws CallError.
int64_t read_integer(const Tensor& tensor, int64_t index);

}  // namespace tierup
