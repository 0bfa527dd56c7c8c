// What a value register can hold, counted by reference: tensors, lists, and objects that only the host understands.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace tierup {

enum class Kind : uint8_t { tensor, list, host, block };

// Born with no reference; the first Ref makes it one. Deleted with the last.
class Object {
 public:
  explicit Object(Kind object_kind) : kind(object_kind) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  bool unique() const noexcept { return references_.load(std::memory_order_acquire) == 1; }

  const Kind kind;

 protected:
  virtual ~Object() = default;

 private:
  std::atomic<uint32_t> references_{0};
};

template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_ != nullptr) object_->retain();
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <typename U>
  Ref(Ref<U> other) noexcept : object_(other.leak()) {}
  ~Ref() { reset(); }

  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  // The register is emptied first: releasing may run code of the host that looks at it.
  void reset() noexcept {
    if (T* object = std::exchange(object_, nullptr)) object->release();
  }
  // Takes over a reference that leak() handed out.
  static Ref adopt(T* object) noexcept {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  // Hands the reference to the caller.
  T* leak() noexcept { return std::exchange(object_, nullptr); }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

using Value = Ref<Object>;  // a value register; null is empty

class List final : public Object {
 public:
  List() : Object(Kind::list) {}
  std::vector<Value> items;  // tensors and host objects, never lists
};

// The parent of whatever a host keeps in a register: a Python object, or a test's stand-in for one.
class HostObject : public Object {
 public:
  HostObject() : Object(Kind::host) {}
};

}  // namespace tierup
