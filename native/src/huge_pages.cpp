#include "huge_pages.hpp"

#include <cerrno>

#if defined(__linux__)
#include <sys/mman.h>
#include <time.h>

#include <cstring>

#include "park.hpp"
#include "threads.hpp"
#endif

namespace tierup {

#if defined(__linux__)
namespace {

// A map that could not be changed for want of memory may have lost the old page already; what it held still lies aside.
int put_back(void* place, const void* page) noexcept {
  const int error = errno;
  constexpr int kHere = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  void* const room = mmap(place, HugePages::kBytes, PROT_READ | PROT_WRITE, kHere, -1, 0);
  if (room == place) {
    std::memcpy(place, page, HugePages::kBytes);
  } else if (room != MAP_FAILED) {
    munmap(room, HugePages::kBytes);  // Linux before 4.17 takes the address for a wish
  }
  return error;
}

double core_s() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace

HugePages::HugePages(size_t pages) noexcept {
  const size_t wanted = pages * kBytes, mapped = wanted + kBytes;
  void* const room = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return;
  const auto begin = reinterpret_cast<uintptr_t>(room);
  next_ = (begin + kBytes - 1) / kBytes * kBytes;
  end_ = next_ + wanted;
  if (next_ != begin) munmap(room, next_ - begin);
  if (end_ != begin + mapped) munmap(reinterpret_cast<void*>(end_), begin + mapped - end_);
  if (madvise(reinterpret_cast<void*>(next_), wanted, MADV_HUGEPAGE) == 0) return;
  munmap(reinterpret_cast<void*>(next_), wanted);
  next_ = end_ = 0;
}

void HugePages::give_back() noexcept {
  if (filler_.joinable()) {
    stop_ = true;
    asked_.fetch_add(1);
    unpark_all(asked_);
    filler_.join();
  }
  if (next_ != end_) munmap(reinterpret_cast<void*>(next_), end_ - next_);
  next_ = end_;
}

int HugePages::take_place_of(uintptr_t address) noexcept {
  if (next_ == end_) return ENOMEM;
  if (address % kBytes != 0) return EINVAL;
  if (!filler_.joinable()) filler_ = start_thread([this] { fill(); });
  if (!filler_.joinable()) return EAGAIN;
  void *const place = reinterpret_cast<void*>(address), *const page = reinterpret_cast<void*>(next_);
  place_ = place;
  const uint32_t before = filled_.load();
  asked_.fetch_add(1);
  unpark_all(asked_);
  park(filled_, before);
  // Whoever reads there meanwhile waits for the map, some microseconds, and then finds the page.
  if (mremap(page, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) return put_back(place, page);
  next_ += kBytes;
  return 0;
}

void HugePages::fill() noexcept {
  step_back();
  for (uint32_t asked = 0;; filled_.fetch_add(1), unpark_all(filled_)) {
    park(asked_, asked++);
    if (stop_) return;
    std::memcpy(reinterpret_cast<void*>(next_), place_, kBytes);
    filling_s_ = core_s();
  }
}

#else

HugePages::HugePages(size_t) noexcept {}

void HugePages::give_back() noexcept {}

int HugePages::take_place_of(uintptr_t) noexcept { return ENOSYS; }

#endif

}  // namespace tierup
