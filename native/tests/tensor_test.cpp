// Memory of tensors: blocks that are kept for the next call.
#include "tensor.hpp"

#include <vector>

#include "check.hpp"

namespace tierup {
namespace {

constexpr int64_t kSome = 64 << 10;

TEST(freed_blocks_serve_the_next_call) {
  free_kept();
  std::byte* const first = allocate(kSome);
  std::byte* const other = allocate(2 * kSome);
  deallocate(first);
  deallocate(other);
  std::byte* const again = allocate(kSome);
  CHECK(again == first);
  CHECK(allocated_bytes(again) == kSome);
  std::byte* const beside = allocate(kSome);  // there was one of this size
  CHECK(beside != again);
  deallocate(again);
  deallocate(beside);
  free_kept();
}

TEST(what_is_kept_is_bounded) {
  free_kept();
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(allocate(4 << 20));
  for (std::byte* block : blocks) deallocate(block);  // all but the last four are freed, or this is found as a leak
  std::byte* const newest = allocate(4 << 20);
  CHECK(newest == blocks.back());
  deallocate(newest);
  free_kept();
}

}  // namespace
}  // namespace tierup
