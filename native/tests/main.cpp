#include "check.hpp"

// Runs all tests, or those whose name contains the first argument.
int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  int ran = 0;
  for (const auto& [name, body] : tierup::test::tests()) {
    if (name.find(filter) == std::string::npos) continue;
    ++ran;
    const int before = tierup::test::failures();
    try {
      body();
    } catch (const std::exception& error) {
      tierup::test::fail(name.c_str(), 0, std::string("threw ") + error.what());
    }
    if (tierup::test::failures() != before) std::cerr << "FAILED " << name << "\n";
  }
  std::cout << ran << " native tests, " << tierup::test::failures() << " failures\n";
  return tierup::test::failures() == 0 && ran > 0 ? 0 : 1;
}
