// Counting the shapes that calls come with.
#include "signatures.hpp"

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

std::vector<Value> inputs_of(int64_t rows) {
  const int64_t shape[] = {rows, 3};
  std::vector<Value> inputs;
  inputs.emplace_back(make_dense(1, shape));
  inputs.emplace_back();
  return inputs;
}

TEST(signatures_are_counted_apart) {
  Signatures seen;
  for (const int64_t rows : {4, 4, 5, 4, 5}) seen.note(inputs_of(rows));
  CHECK(seen.entries().size() == 2);
  CHECK((seen.entries()[0].numbers == std::vector<int64_t>{2, 4, 3, -1}));
  CHECK(seen.entries()[0].calls == 3);
  CHECK(seen.entries()[1].calls == 2);
}

TEST(rare_signatures_make_room) {
  Signatures seen;
  for (int i = 0; i < 1000; ++i) seen.note(inputs_of(0));
  for (int64_t rows = 1; rows < 1000; ++rows) {
    seen.note(inputs_of(rows));
    CHECK(seen.entries().size() <= Signatures::kKept);
  }
  // What stopped coming is gone in the end, and what came last is there.
  CHECK(std::ranges::any_of(seen.entries(), [](const auto& entry) { return entry.numbers[1] == 999; }));
  CHECK(std::ranges::none_of(seen.entries(), [](const auto& entry) { return entry.calls > 500; }));
}

}  // namespace
}  // namespace tierup::test
