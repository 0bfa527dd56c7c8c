// Huge pages that take the place of small ones.
#include "huge_pages.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "check.hpp"

namespace tierup::test {
namespace {

constexpr size_t kPage = HugePages::kBytes;

// Private memory that begins at a border of huge pages, filled with numbers that differ from place to place.
class Filled {
 public:
  explicit Filled(size_t bytes) : mapped_(bytes + kPage) {
    room_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room_ != MAP_FAILED);
    words_ = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(room_) + kPage - 1) / kPage * kPage);
    count_ = bytes / sizeof(uint64_t);
    for (size_t i = 0; i < count_; ++i) words_[i] = i * 0x9E3779B97F4A7C15u;
  }
  ~Filled() { munmap(room_, mapped_); }
  Filled(const Filled&) = delete;
  Filled& operator=(const Filled&) = delete;

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(words_); }
  bool is_whole() const {
    for (size_t i = 0; i < count_; i += 512) {
      if (*const_cast<volatile uint64_t*>(words_ + i) != i * 0x9E3779B97F4A7C15u) return false;
    }
    return true;
  }

 private:
  size_t mapped_, count_ = 0;
  void* room_ = nullptr;
  uint64_t* words_ = nullptr;
};

TEST(huge_pages_have_what_small_ones_held_while_others_read) {
  constexpr size_t kPages = 6;
  const Filled memory(kPages * kPage);
  std::atomic<bool> moved{false}, whole{true};
  std::thread reader([&] {
    do {
      if (!memory.is_whole()) whole = false;
    } while (!moved);
  });
  HugePages pages(kPages);
  for (size_t i = 0; i < kPages; ++i) {
    const double before_s = pages.filling_s();
    CHECK(pages.take_place_of(memory.address() + i * kPage) == 0);
    CHECK(pages.filling_s() > before_s);
  }
  moved = true;
  reader.join();
  CHECK(whole);
  CHECK(memory.is_whole());
}

TEST(no_more_pages_are_given_than_there_are) {
  const Filled memory(2 * kPage);
  HugePages pages(1);
  CHECK(pages.take_place_of(memory.address() + 4096) == EINVAL);
  CHECK(pages.take_place_of(memory.address()) == 0);
  CHECK(pages.take_place_of(memory.address() + kPage) == ENOMEM);
  HugePages none(0);
  CHECK(none.take_place_of(memory.address()) == ENOMEM);
  CHECK(memory.is_whole());
}

TEST(pages_that_were_not_needed_go_back) {
  const Filled memory(kPage);
  for (int i = 0; i < 1000; ++i) HugePages pages(1 << 16);  // 128 GiB each
  HugePages pages(2);
  CHECK(pages.take_place_of(memory.address()) == 0);
  pages.give_back();
  CHECK(pages.take_place_of(memory.address()) == ENOMEM);
  pages.give_back();
  CHECK(memory.is_whole());
}

}  // namespace
}  // namespace tierup::test
