#include "huge_pages.hpp"

#include <cerrno>

#if defined(__linux__)
#include <sys/mman.h>

#include <cstring>
#endif

namespace tierup {

#if defined(__linux__)

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

HugePages::~HugePages() {
  if (next_ != end_) munmap(reinterpret_cast<void*>(next_), end_ - next_);
}

int HugePages::take_place_of(uintptr_t address) noexcept {
  if (next_ == end_) return ENOMEM;
  if (address % kBytes != 0) return EINVAL;
  void *const place = reinterpret_cast<void*>(address), *const page = reinterpret_cast<void*>(next_);
  std::memcpy(page, place, kBytes);
  // Whoever reads there meanwhile waits for the map, some microseconds, and then finds the page.
  if (mremap(page, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) return errno;
  next_ += kBytes;
  return 0;
}

#else

HugePages::HugePages(size_t) noexcept {}

HugePages::~HugePages() = default;

int HugePages::take_place_of(uintptr_t) noexcept { return ENOSYS; }

#endif

}  // namespace tierup
