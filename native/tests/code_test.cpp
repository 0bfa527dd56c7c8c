// Machine code that is copied, made executable, run and unmapped.
#include "code.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "check.hpp"

namespace tierup::test {
namespace {

using Bytes = std::vector<std::byte>;

// A function that returns `number`.
Bytes returning(uint8_t number) {
#if defined(__x86_64__)
  const uint8_t code[] = {0xb8, number, 0, 0, 0, 0xc3};  // mov eax, number; ret
#elif defined(__aarch64__)
  const uint32_t move = 0x52800000u | uint32_t{number} << 5;  // mov w0, number
  const uint8_t code[] = {uint8_t(move), uint8_t(move >> 8), uint8_t(move >> 16), uint8_t(move >> 24),
                          0xc0,          0x03,               0x5f,                0xd6};  // ret
#endif
  const auto* begin = reinterpret_cast<const std::byte*>(code);
  return {begin, begin + sizeof code};
}

int call(uintptr_t address) { return reinterpret_cast<int (*)()>(address)(); }

// What the kernel lets this process do with an address: "r-xp" and the like; "" where nothing is mapped.
std::string permissions(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string mode;
    words >> std::hex >> begin >> dash >> end >> mode;
    if (begin <= address && address < end) return mode;
  }
  return "";
}

TEST(images_run_where_they_lie) {
  const Bytes first = returning(41), second = returning(42);
  const std::span<const std::byte> images[] = {first, second};
  const Code code(images);
  CHECK_EQUAL(code.addresses().size(), size_t{2});
  CHECK_EQUAL(call(code.addresses()[0]), 41);
  CHECK_EQUAL(call(code.addresses()[1]), 42);
  CHECK_EQUAL(code.addresses()[1] - code.addresses()[0], Code::alignment);
  CHECK_EQUAL(code.addresses()[0] % Code::alignment, uintptr_t{0});
  CHECK_EQUAL(code.bytes(), 2 * Code::alignment);
}

TEST(code_is_executable_and_not_writable_while_it_lives) {
  const Bytes image = returning(7);
  const std::span<const std::byte> images[] = {image};
  uintptr_t address = 0;
  {
    const Code code(images);
    address = code.addresses()[0];
    CHECK_EQUAL(permissions(address), "r-xp");
  }
  CHECK_EQUAL(permissions(address).find('x'), std::string::npos);
}

TEST(nothing_to_run_is_refused) {
  const std::span<const std::byte> images[] = {{}};
  CHECK_THROWS(std::invalid_argument, "without code", Code code(images));
  CHECK_THROWS(std::invalid_argument, "no images", Code code({}));
}

TEST(too_much_to_run_is_refused) {
  std::byte byte{};
  const std::span<const std::byte> images[] = {{&byte, 1}, {&byte, Code::limit_bytes}};  // not read
  CHECK_THROWS(std::invalid_argument, "more than 1 GiB", Code code(images));
}

}  // namespace
}  // namespace tierup::test
