// Which shapes calls come with, and how often: a small table that forgets what has become rare.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor.hpp"

namespace tierup {

class Signatures {
 public:
  static constexpr size_t kKept = 64;

  struct Entry {
    std::vector<int64_t> numbers;  // of each input: its rank and sizes; -1 where it is no tensor
    uint64_t calls;
    uint64_t id;  // no other signature has had it
  };

  // The id of these inputs' signature. Not for several threads at once.
  uint64_t note(std::span<const Value> inputs) {
    write_numbers(inputs);
    // Mostly the one of the last call.
    if (last_ < entries_.size() && entries_[last_].numbers == numbers_) {
      ++entries_[last_].calls;
      return entries_[last_].id;
    }
    auto found = std::ranges::find(entries_, numbers_, &Entry::numbers);
    if (found != entries_.end()) {
      ++found->calls;
    } else if (entries_.size() < kKept) {
      entries_.push_back({numbers_, 1, ids_++});
      found = entries_.end() - 1;
    } else {
      // Everything ages when something has to go, so that what was frequent once does not stay for ever.
      for (Entry& entry : entries_) entry.calls /= 2;
      found = std::ranges::min_element(entries_, {}, &Entry::calls);
      *found = {numbers_, 1, ids_++};
    }
    last_ = static_cast<size_t>(found - entries_.begin());
    return found->id;
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void write_numbers(std::span<const Value> inputs) {
    numbers_.clear();
    for (const Value& input : inputs) {
      const Tensor* tensor = as_tensor(input);
      if (tensor == nullptr) {
        numbers_.push_back(-1);
        continue;
      }
      numbers_.push_back(tensor->rank);
      numbers_.insert(numbers_.end(), tensor->shape().begin(), tensor->shape().end());
    }
  }

  std::vector<Entry> entries_;
  std::vector<int64_t> numbers_;
  size_t last_ = 0;
  uint64_t ids_ = 0;
};

}  // namespace tierup
