#include "code.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace tierup {
namespace {

size_t aligned(size_t bytes) { return (bytes + Code::alignment - 1) / Code::alignment * Code::alignment; }

size_t total_bytes(std::span<const std::span<const std::byte>> images) {
  size_t total = 0;
  for (const auto& image : images) {
    if (image.empty()) throw std::invalid_argument("an image without code");
    if (image.size() > Code::limit_bytes - total) throw std::invalid_argument("images of more than 1 GiB");
    total += aligned(image.size());
  }
  if (total == 0) throw std::invalid_argument("no images");
  return total;
}

}  // namespace

Code::Code(std::span<const std::span<const std::byte>> images) : bytes_(total_bytes(images)) {
  addresses_.reserve(images.size());
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "no memory for machine code");
  auto* place = static_cast<std::byte*>(memory_);
  for (const auto& image : images) {
    std::memcpy(place, image.data(), image.size());
    addresses_.push_back(reinterpret_cast<uintptr_t>(place));
    place += aligned(image.size());
  }
  if (mprotect(memory_, bytes_, PROT_READ | PROT_EXEC) != 0) {
    const int error = errno;
    munmap(memory_, bytes_);
    throw std::system_error(error, std::generic_category(), "this system lets no code be made executable");
  }
  auto* start = static_cast<char*>(memory_);
  __builtin___clear_cache(start, start + bytes_);
}

Code::~Code() { munmap(memory_, bytes_); }

}  // namespace tierup
