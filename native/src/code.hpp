// Machine code in memory of its own: written first, then made executable, never both at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tierup {

// Images lie side by side, each on a border of `alignment` bytes, and begin with their first instruction. They are
// unmapped with this object; whoever may still run them keeps it.
class Code {
 public:
  static constexpr size_t alignment = 64;
  static constexpr size_t limit_bytes = size_t{1} << 30;

  // Throws std::invalid_argument if there is nothing to run or too much of it, std::system_error if there is no memory.
  explicit Code(std::span<const std::span<const std::byte>> images);
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code();

  // Where each image begins.
  const std::vector<uintptr_t>& addresses() const { return addresses_; }
  size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<uintptr_t> addresses_;
};

}  // namespace tierup
