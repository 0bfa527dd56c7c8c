// A test framework of one page: TEST registers a function, CHECK counts a failure and goes on.
#pragma once

#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tierup::test {

inline std::vector<std::pair<std::string, std::function<void()>>>& tests() {
  static std::vector<std::pair<std::string, std::function<void()>>> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registered {
  Registered(const char* name, std::function<void()> body) { tests().emplace_back(name, std::move(body)); }
};

inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::cerr << file << ":" << line << ": " << what << "\n";
}

template <typename A, typename B>
void check_equal(const char* file, int line, const char* text, const A& got, const B& wanted) {
  if (got == wanted) return;
  std::ostringstream what;
  what << text << " is " << got << ", expected " << wanted;
  fail(file, line, what.str());
}

// The message that `body` throws as E, or "" if it throws nothing.
template <typename E, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace tierup::test

#define TEST(name)                                                      \
  static void name();                                                   \
  static const tierup::test::Registered registered_##name(#name, name); \
  static void name()

#define CHECK(condition) \
  if (!(condition)) tierup::test::fail(__FILE__, __LINE__, "CHECK(" #condition ")")

#define CHECK_EQUAL(a, b) tierup::test::check_equal(__FILE__, __LINE__, #a, (a), (b))

// The body throws E with a message that contains `part`.
#define CHECK_THROWS(E, part, ...)                                                                     \
  if (const std::string got = tierup::test::message_of<E>([&] { __VA_ARGS__; });                       \
      got.find(part) == std::string::npos || got.empty()) {                                            \
    tierup::test::fail(__FILE__, __LINE__, "expected '" + std::string(part) + "', got '" + got + "'"); \
  }
