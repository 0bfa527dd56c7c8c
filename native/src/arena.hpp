// The memory that one running function lays its intermediate tensors out in.
#pragma once

#include <string>

#include "error.hpp"
#include "tensor.hpp"

namespace tierup {

class Arena {
 public:
  // Makes room for `bytes`. What already lies in the arena stays where it is until clear().
  void reserve(int64_t bytes) {
    if (bytes < 0) throw CallError("an arena of " + std::to_string(bytes) + " bytes");
    if (bytes <= capacity_) return;
    Ref<Block> larger(new Block(bytes));
    if (block_) retired_.push_back(std::move(block_));
    block_ = std::move(larger);
    capacity_ = bytes;
  }

  std::byte* at(int64_t offset, int64_t bytes) const {
    if (offset < 0 || offset % kAlignment != 0 || bytes > capacity_ || offset > capacity_ - bytes) {
      throw CallError(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of an arena of " +
                      std::to_string(capacity_) + " bytes (offsets are multiples of " + std::to_string(kAlignment) +
                      ")");
    }
    return block_ ? block_->data + offset : nullptr;
  }

  // Ends the function: only the largest block is kept, for the next one.
  void clear() { retired_.clear(); }

 private:
  Ref<Block> block_;
  int64_t capacity_ = 0;
  std::vector<Ref<Block>> retired_;
};

}  // namespace tierup
